"""A network of the user's own: named by its path, or by the entry point of a package."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as checkpointed

from tests import jobs
from tests.conftest import data_flags, install_package, make_set
from tests.ranks import Ranks, call_main, call_train
from unet_ddp import Predictor, TrainedRun, evaluate
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, from_plain
from unet_ddp.extras.report.compare import read_run
from unet_ddp.network.any_size import make_own
from unet_ddp.network.architecture import (
    Architecture,
    build_network,
    choose_architecture,
    freeze_encoder,
    trust,
)
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.plugins import read_sources

SOURCE = '''
import torch
from torch import nn


class Tiny(nn.Module):
    """Halves the image once, and has a layer that it does not use."""

    stride = 2

    def __init__(self, channels, num_classes, width=4):
        super().__init__()
        self.num_classes, self.name = 99, "mine"  # not those of the padding
        self.down = nn.Sequential(
            nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.unused = nn.Conv2d(width, width, 1)
        self.head = nn.ConvTranspose2d(width, num_classes, 2, 2)

    def forward(self, images):
        return self.head(self.down(images))
'''
FLAGS = ["--width", "3", "--epochs", "1", "--validation", "20", "--workers", "0", "--batch-size"]
NAME = "my_networks:Tiny"


@pytest.fixture
def own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, and a package that is installed there with an entry point."""
    (tmp_path / "my_networks.py").write_text(SOURCE)
    install_package(tmp_path, f"[unet_ddp.networks]\ntiny = {NAME}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    return tmp_path


def build(name: str, **how: Any) -> Any:
    return build_network(choose_architecture(name, None, channels=3, num_classes=2, width=5), **how)


@pytest.mark.parametrize("name", [NAME, "tiny"])
def test_a_path_and_an_entry_point_name_a_network_for_any_size(
    own_network: Path, name: str
) -> None:
    network = build(name).eval()
    assert network.down[0].out_channels == 5  # --width is among its parameters
    assert type(network).__name__ == "Tiny" and network.stride == 2
    assert next(iter(network.state_dict())) == "down.0.weight"
    images = torch.randn(1, 3, 7, 9)
    padded = nn.functional.pad(images, (0, 1, 0, 1))
    with torch.no_grad():
        assert torch.equal(network(images), network(padded)[..., :7, :9])
    described = from_plain(
        Architecture, choose_architecture(name, None, channels=3, num_classes=2).to_dict()
    )
    assert str(described) == f"{name}, 3 channels, 2 classes"
    assert list(read_sources("networks", name)) == [name] and not read_sources("networks", "unet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def Tiny(channels): pass", "TypeError: Tiny.. takes 1 positional argument"),
        ("def Tiny(channels, classes): return 3", "returns 3, no torch.nn.Module"),
        ("from torch.nn import Conv2d\ndef Tiny(channels, classes): return Conv2d(3, 2, 1)", "its stride is"),
        ("from torch.nn import Bilinear\ndef Tiny(*_): return Bilinear(3, 2, 1)", "TypeError: missing .* 'input2'"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_a_line(own_network: Path, text: str, said: str) -> None:
    (own_network / "my_networks.py").write_text(text)
    with pytest.raises(UserError, match=f"--model {NAME}: {said}"):
        build(NAME)


@pytest.mark.parametrize(
    ("returned", "said"),
    [("x", r"returns \(2, 3, 32, 64\) for"), ("{'out': x}", "returns dict for")],
)
def test_logits_of_another_shape_are_a_line(own_network: Path, returned: str, said: str) -> None:
    text = "from torch import nn\nclass Tiny(nn.Module):\n    def __init__(self, *_): super().__init__()\n"
    (own_network / "my_networks.py").write_text(
        f"{text}    def forward(self, x): return {returned}\n"
    )
    expected = r" images \(2, 3, 32, 64\); expected logits \(2, 2, 32, 64\)"
    with pytest.raises(UserError, match=f"--model {NAME}: {said}{expected}"):
        build(NAME)(torch.zeros(2, 3, 30, 40))  # without a stride it is padded to 32


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_traced_network_has_no_signature_and_is_one() -> None:
    def make(channels: int, num_classes: int) -> nn.Module:
        traced = torch.jit.trace(
            nn.Conv2d(channels, num_classes, 1), torch.zeros(1, channels, 8, 8)
        )
        assert isinstance(traced, nn.Module)
        return traced

    network = make_own("mine", make, 3, 2, {})
    assert network(torch.zeros(1, 3, 9, 11)).shape == (1, 2, 9, 11)


def test_settings_that_it_does_not_have_are_refused(own_network: Path) -> None:
    with pytest.raises(UserError, match=f"--checkpointing: {NAME} has no parameter checkpointing"):
        build(NAME, checkpointing=True)
    with pytest.raises(UserError, match=f"--encoder-weights: {NAME} has no parameter"):
        build(NAME, encoder_weights="imagenet")
    with pytest.raises(UserError, match="--freeze encoder: no module of the network is called"):
        freeze_encoder(nn.Sequential(nn.Conv2d(3, 2, 1)))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d,
        type("Mine", (nn.BatchNorm2d,), {"forward": print}),
        type(
            "Active", (nn.BatchNorm2d,), {"forward": print, "act": nn.ReLU(), "drop": nn.Identity()}
        ),
    ],
)
def test_batch_norm_that_can_not_be_global_is_refused(norm: type[nn.Module]) -> None:
    with pytest.raises(
        UserError, match=f"--batch-norm global: {norm.__name__} .*--batch-norm local"
    ):
        synchronise_batchnorm(nn.Sequential(norm(3)), World(size=2))


@pytest.mark.parametrize("name", [NAME, "tiny"])
def test_a_checkpoint_picks_no_network_not_even_of_an_installed_package(
    own_network: Path, name: str
) -> None:
    own = Architecture(name, 3, 2)
    with pytest.raises(UserError, match=f"its network is {name}, .* starts no code; .* --network"):
        trust(own, None, "a.pt")
    with pytest.raises(UserError, match="starts no code"):
        trust(own, "unet", "a.pt")
    assert trust(own, name, "a.pt") == own and "my_networks" not in sys.modules


class Tiny(nn.Module):
    """That of SOURCE, where the ranks of the tests find it."""

    stride = 2

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(width)
        self.down = nn.Sequential(nn.Conv2d(channels, width, 3, 2, 1), norm, nn.ReLU())
        self.unused = nn.Conv2d(width, width, 1)
        self.head = nn.ConvTranspose2d(width, num_classes, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.down(images))
        return logits


class Tripled(Tiny):
    """With a hook on its batch norm, which is reached through a plain list."""

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__(channels, num_classes, width)
        self.down[1].register_forward_hook(lambda module, given, output: output * 3)
        self.steps = [*self.down]

    def forward(self, images: Tensor) -> Tensor:
        for step in self.steps:
            images = step(images)
        logits: Tensor = self.head(images)
        return logits


class ByFunction(Tiny):
    """Its batch norm is of the images of one rank."""

    def forward(self, images: Tensor) -> Tensor:
        features, norm = self.down[0](images), self.down[1]
        buffers = norm.running_mean, norm.running_var
        features = F.batch_norm(features, *buffers, norm.weight, norm.bias, self.training)
        logits: Tensor = self.head(features)
        return logits


def test_batch_norm_by_a_function_is_refused_on_several_ranks(tmp_path: Path, ranks: Ranks) -> None:
    argv = [*data_flags(make_set(tmp_path, 8)), *FLAGS, "2", "--model", f"{__name__}:ByFunction"]
    for status, _, err in ranks.run(2, call_train, argv, str(tmp_path)):
        assert status == 2
        assert (
            not err
            or "error: --batch-norm global: F.batch_norm in forward knows one process" in err
        )
    argv += ["--batch-norm", "local"]
    assert [status for status, _, _ in ranks.run(2, call_train, argv, str(tmp_path))] == [0, 0]
    alone = [*argv[:-2], "--exp-name", "alone"]
    assert ranks.run(1, call_train, alone, str(tmp_path))[0][0] == 0


class Reentrant(nn.Module):
    """It computes a layer again in the backward pass, by torch's older way."""

    stride, is_reentrant = 1, True

    def __init__(self, channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, 1, 1)
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU())
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = checkpointed(self.second, self.first(images), use_reentrant=self.is_reentrant)
        logits: Tensor = self.head(features)
        return logits


class NonReentrant(Reentrant):
    is_reentrant = False


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpointing_is_refused_on_several_ranks_before_the_first_step(
    tmp_path: Path, ranks: Ranks
) -> None:
    """Issue: DDP's traceback after the run had its folder."""
    argv = [*data_flags(make_set(tmp_path, 8)), *FLAGS, "2", "--model", f"{__name__}:Reentrant"]
    outcomes = ranks.run(2, call_train, argv, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [2, 2]
    said = "".join(err for _, _, err in outcomes).splitlines()
    assert said == [
        f"error: --model {__name__}:Reentrant: checkpoint(..., use_reentrant=True) fails on several processes; "
        "use use_reentrant=False"
    ]
    assert not (tmp_path / "checkpoints" / "last.pt").exists()
    outcomes = ranks.run(2, call_train, [*argv[:-1], f"{__name__}:NonReentrant"], str(tmp_path))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    status, _, err = call_train([*argv, "--exp-name", "alone"], str(tmp_path))  # one process
    assert status == 0, err


@pytest.mark.parametrize(("kind", "size"), [("Tiny", 2), ("Tiny", 4), ("Tripled", 2)])
def test_weights_are_the_same_on_any_number_of_ranks(ranks: Ranks, kind: str, size: int) -> None:
    name = f"{__name__}:{kind}"
    alone = ranks.run(1, jobs.weights_after, name, None, 1, 4)[0]
    start = ranks.run(1, jobs.weights_after, name, None, 1, 0)[0]
    assert np.abs(alone["down.0.weight"] - start["down.0.weight"]).max() > 1e-3
    assert np.array_equal(alone["unused.weight"], start["unused.weight"])
    for weights in ranks.run(size, jobs.weights_after, name, None, 1, 4):
        for name, expected in alone.items():
            np.testing.assert_allclose(weights[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)


def check_python_names_it(best: Path, moved: Path) -> None:
    """Predict and evaluate with a checkpoint's network by its import path, its class, and its run."""
    moved.write_text(SOURCE)
    assert Predictor.from_checkpoint(best, network="moved:Tiny").stride == 2
    kind = sys.modules["moved"].Tiny  # as `train` takes the class
    assert Predictor.from_checkpoint(best, network=kind).stride == 2
    assert Predictor.from_checkpoint(TrainedRun(best.parent, "moved:Tiny")).stride == 2
    assert evaluate(best, network=kind).dice == evaluate(best, network="moved:Tiny").dice
    with pytest.raises(UserError, match="network: Local is in no module; write it into a file"):
        Predictor.from_checkpoint(best, network=type("Local", (), {}))


def test_a_run_with_an_own_network_predicts_and_is_resumed_if_it_is_told(
    own_network: Path, ranks: Ranks
) -> None:
    """No checkpoint starts code, wherever one is read."""
    make_set(own_network, 10)
    folder, argv = str(own_network), [*data_flags(own_network), *FLAGS, "2"]
    outcomes = ranks.run(2, call_train, [*argv, "--model", NAME], folder)
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert f"network: {NAME}, 3 channels, 2 classes" in outcomes[0][1]
    best = own_network / "checkpoints" / "best.pt"
    for path in (best, best.with_name("last.pt")):  # its text is kept, and never run from there
        assert checkpoint.load(path)["sources"] == {NAME: SOURCE}
    mark = own_network / "was_run"
    (own_network / "my_networks.py").write_text(f"open({str(mark)!r}, 'w').close()\n{SOURCE}")
    image = str(next((own_network / "imgs").iterdir()))
    commands = {
        "predict": ["--model", str(best), image, "-o", "mask.png"],
        "evaluate": ["--workers", "0"],
        "report": [],
        "train": [*argv, "--load", str(best), "--exp-name", "more"],
    }
    for program, given in commands.items():
        flag = "--model" if program == "train" else "--network"
        sys.modules.pop("my_networks", None)
        status, _, err = call_main("unet_ddp.__main__", [program, *given], folder)
        said = f"its network is {NAME}, and a checkpoint starts no code; if you trust it, type {flag} {NAME}"
        assert status == 2 and said in err and not mark.exists(), (program, err)
        assert read_run(best.parent).cells["parameters"] == "0.00 M" and not mark.exists()
        status, _, err = call_main("unet_ddp.__main__", [program, *given, flag, NAME], folder)
        assert status == 0 and mark.exists(), (program, err)
        mark.unlink()
    assert (own_network / "mask.png").is_file()
    check_python_names_it(best, own_network / "moved.py")
    assert not mark.exists()
    sys.modules.pop("my_networks", None)
    status, _, err = call_train([*argv, "--resume"], folder)
    assert status == 2 and f"type --model {NAME}, too" in err and not mark.exists()
    resume = [*argv, "--resume", "--epochs", "2", "--model", NAME, "--batch-size", "4"]
    status, _, err = call_train(resume, folder)
    assert status == 2 and "Continue with the new one by --changed-code" in err
    sys.modules.pop("my_networks", None)
    status, out, err = call_train([*resume, "--changed-code"], folder)
    assert status == 0, err
    assert f"--model {NAME}: its source has changed since the run's last save" in out
    with (own_network / "checkpoints" / "metrics.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
