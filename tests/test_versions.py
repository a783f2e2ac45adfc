"""Versions of modules: a state dict that a module has saved is no old one, and an old one is converted.

The module is `zoo.VersionedConv`: of a state before version 2 it turns the signs.
"""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unet_ddp
from tests import zoo
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp import Predictor
from unet_ddp.checkpoints.file import Content, copy_to_host, load, save
from unet_ddp.prediction.backends import open_model
from unet_ddp.training.own_network import try_network

NAME, LOSS, CPU = "tests.zoo:N_versioned", "tests.zoo:L_versioned", torch.device("cpu")
QUICK = ["--workers", "0", "--device", "cpu", "--precision", "float32", "--augmentation", "none"]
NEW = ["--width", "3", "--validation", "20", "--model", NAME, "--loss", LOSS]
BLOCK = "block.0."


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    make_set(tmp_path, 10)
    monkeypatch.chdir(tmp_path)
    return [*data_flags(tmp_path), *QUICK]


def run(words: list[str]) -> str:
    status, out, err = call_train(words, str(Path.cwd()))
    assert status == 0, err
    return out


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the state dicts of a checkpoint."""
    content = load(path)
    parts = [name for name in ("model", "ema", "loss") if content.get(name)]
    save(path, {**content, **{name: change(content[name]) for name in parts}})


def forget(state: Any) -> Any:
    """Return the state dict as programs before saved it, without versions."""
    return dict(state)


def age(state: Any) -> Any:
    """Return what version 1 of the module's code would have saved."""
    old = OrderedDict((name, -each if BLOCK in name else each) for name, each in state.items())
    vars(old)["_metadata"] = {"": {"version": 1}, "block.0": {"version": 1}}
    return old if any("head" in name for name in state) else state  # the loss is as it is


def weights(path: Path) -> dict[str, Tensor]:
    backend: Any = open_model(str(path), CPU, network=NAME, fold=False).backend
    return {name: each.clone() for name, each in backend.network.state_dict().items()}


def assert_same(one: Content, other: Content) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("change", [forget, age])
def test_a_file_without_versions_and_one_of_an_earlier_version_are_the_same_network(
    flags: list[str], change: Callable[[Any], Any]
) -> None:
    new = [*flags, *NEW, "--epochs", "2", "--batch-size", "2", "--ema", "0.5", "--exp-name"]
    run([*new, "whole"])
    run([*new, "part", "--stop-after", "3"])
    whole, part = Path("checkpoints/whole/last.pt"), Path("checkpoints/part/last.pt")
    expected = weights(whole)
    rewrite(part, change)
    run([*QUICK, *NEW[-4:], "--exp-name", "part", "--resume"])
    for name in ("model", "ema", "loss"):
        assert_same(load(whole)[name], load(part)[name])
    rewrite(whole, change)
    assert_same(weights(whole), expected)
    run([*new, "more", "--load", str(whole), "--callback", "tests.zoo:Start"])
    assert_same(zoo.Start.state["model"], expected)


def test_a_file_of_another_program_has_its_versions_below_its_prefix(flags: list[str]) -> None:
    wrapped = nn.DataParallel(zoo.NETWORKS["versioned"][0](3, 2))
    torch.save(wrapped.state_dict(), "new.pt")
    old = age(wrapped.state_dict())
    versions = {f"module.{name}".strip("."): each for name, each in vars(old)["_metadata"].items()}
    vars(old)["_metadata"] = versions
    torch.save(old, "old.pt")
    for name in ("new", "old"):
        words = [*NEW, "--epochs", "1", "--batch-size", "4", "--callback", "tests.zoo:Start"]
        run([*flags, *words, "--exp-name", name, "--load", f"{name}.pt"])
        assert_same(zoo.Start.state["model"], wrapped.module.state_dict())


def test_two_ranks_programs_and_plain_torch_take_the_weights_as_they_were_trained(
    flags: list[str], ranks: Ranks
) -> None:
    folder = str(Path.cwd())
    new = [*flags, *NEW, "--epochs", "2", "--batch-size", "1", "--exp-name"]
    resume = [*QUICK, *NEW[-4:], "--exp-name", "part", "--resume"]
    for words in ([*new, "whole"], [*new, "part", "--stop-after", "3"], resume):
        outcomes = ranks.run(2, call_train, words, folder)
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    whole, part = (load(Path("checkpoints", each, "last.pt")) for each in ("whole", "part"))
    assert_same(whole["model"], part["model"])
    assert_same(weights(Path("checkpoints/whole/last.pt")), whole["model"])
    own: nn.Module = zoo.NETWORKS["versioned"][0](3, 2)
    own.load_state_dict(torch.load("checkpoints/whole/best.pt", weights_only=True)["model"])
    image = next(Path("imgs").iterdir())
    predict = Predictor.from_checkpoint("checkpoints/whole", network=NAME)
    pixels = torch.from_numpy(predict(image).probabilities)
    assert_same(own.state_dict(), load(Path("checkpoints/whole/best.pt"))["model"])
    assert pixels.isfinite().all()
    words = ["evaluate", "--model", "checkpoints/whole", "--network", NAME, "--workers", "0"]
    status, out, err = call_main("unet_ddp.__main__", words, folder)
    best = f"{load(Path('checkpoints/whole/best.pt'))['best']['dice']:.4f}"
    assert status == 0 and best in out, (err, out, best)


def test_versions_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    """A reader of checkpoints makes no other objects; a flag says how a state was loaded, not what it is."""
    network = nn.utils.spectral_norm(nn.Conv2d(1, 1, 1))
    state = network.state_dict()
    of_root = vars(state)["_metadata"][""]
    of_root |= {"made by": Path("x"), "assign_to_params_buffers": True}
    save(tmp_path / "x.pt", copy_to_host({"model": state}))
    read = vars(load(tmp_path / "x.pt")["model"])["_metadata"]
    assert read == {"": {"version": 1, "spectral_norm": {"weight.version": 1}}}


class Mobile(nn.Module):
    """A network around torchvision's, which takes no state without a version."""

    stride = 32

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        from torchvision.models import mnasnet0_5

        self.inner = mnasnet0_5()
        self.head = nn.Conv2d(1280, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.head(self.inner.layers(images))
        return nn.functional.interpolate(features, scale_factor=32)


def test_a_network_that_takes_no_state_without_a_version_is_tried() -> None:
    network = Mobile(3, 2)
    assert try_network("mobile", network, lambda: Mobile(3, 2), torch.rand(2, 3, 64, 64))


def test_each_state_dict_of_a_module_is_loaded_with_its_versions() -> None:
    """A plain dict has no versions: `load_state` gives it those of the module, and nothing else loads one."""
    others = ("numbers", "optimizer", "scaler", "state")  # no modules
    found = []
    for path in Path(unet_ddp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "load_state_dict":
                receiver = ast.unparse(node.value)
                if not receiver.startswith("Numbers(") and not receiver.endswith(others):
                    found.append(f"{path.name}: {receiver}")
    assert sorted(found) == ["state.py: Optimizer", "state_dicts.py: module"]
