"""Networks in checkpoints of any program, and the checkpoint to predict with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import Architecture
from unet_ddp.network.unet import UNet
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.weights import (
    find_model,
    infer_unet,
    load_weights,
    read_model,
    strip_prefixes,
    with_scale,
)

FORMS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "raw": dict,
    "module.": lambda s: {f"module.{k}": v for k, v in s.items()},
    "_orig_mod.": lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    "module._orig_mod.": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "_orig_mod.module.": lambda s: {f"_orig_mod.module.{k}": v for k, v in s.items()},
    "module.module., n_averaged": lambda s: {
        "n_averaged": torch.tensor(3), **{f"module.module.{k}": v for k, v in s.items()}
    },
    "model": lambda s: {"model": s, "epoch": 3},
    "state_dict": lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
    "model_state_dict": lambda s: {"model_state_dict": s, "loss": 0.1},
    "mask_values": lambda s: {**s, "mask_values": [0, 1]},
    "mask_values within": lambda s: {"model": {**s, "mask_values": [0, 255]}},
    "ours": lambda s: {
        "format": 1,
        "model": s,
        "architecture": Architecture("unet", 3, 2, None, 4, False).to_dict(),
        "labels": Labels((0, 255)).to_dict(),
        "preprocessing": Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5).to_dict(),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def network() -> UNet:
    """A network whose classes win half of a noisy image's pixels each."""
    torch.manual_seed(1)
    network = UNet(3, 2, width=4).eval()
    with torch.no_grad():
        logits = network(torch.rand(1, 3, 64, 64))
        network.outc.conv.bias[0] += (logits[:, 1] - logits[:, 0]).median()
    return network


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "x.png"
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_predicts_the_same(
    network: UNet, photo: Path, tmp_path: Path, form: str
) -> None:
    path = tmp_path / "x.pth"
    torch.save(FORMS[form](network.state_dict()), path)
    found = Predictor.from_checkpoint(path, device="cpu")(photo).ids
    pixels, device = Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5), torch.device("cpu")
    backend = TorchBackend(network, pixels, device)
    plain = Predictor([LoadedModel(backend, Labels((0, 255)), pixels, None, [])], device=device)
    assert (found == plain(photo).ids).all()
    assert 0 < found.mean() < 1  # both classes


def test_the_notes_say_what_was_inferred(network: UNet, tmp_path: Path) -> None:
    torch.save(FORMS["_orig_mod.module."](network.state_dict()), tmp_path / "x.pth")
    model = read_model(tmp_path / "x.pth")
    notes = "; ".join(model.notes)
    assert "_orig_mod.module." in notes and "width 4, transposed" in notes and "2 classes" in notes


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(("width", "channels", "classes"), [(4, 1, 2), (8, 3, 5)])
def test_the_network_is_inferred_from_shapes(
    bilinear: bool, width: int, channels: int, classes: int
) -> None:
    state = UNet(channels, classes, width=width, bilinear=bilinear).state_dict()
    assert infer_unet(state) == Architecture("unet", channels, classes, None, width, bilinear)


def test_one_sigmoid_output_is_the_same_as_two(photo: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = UNet(3, 1, width=4).eval()
    with torch.no_grad():
        network.outc.conv.bias -= network(torch.rand(1, 3, 64, 64)).median()
    torch.save(network.state_dict(), tmp_path / "x.pth")
    predictor = Predictor.from_checkpoint(tmp_path / "x.pth", device="cpu", scale=1.0)
    pixels = torch.from_numpy(np.asarray(Image.open(photo)).copy()).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        expected = torch.sigmoid(network(pixels))[0, 0] > 0.5
    assert (predictor(photo).ids == expected.numpy()).mean() > 0.999


def test_a_submodule_called_module_is_not_damaged() -> None:
    state = {"module.a": torch.zeros(1), "b.module.c": torch.zeros(1)}
    assert strip_prefixes(state) == (state, [])


def test_mismatches_are_named(network: UNet) -> None:
    other = UNet(3, 5, width=4).state_dict()
    other["extra"] = torch.zeros(1)
    with pytest.raises(UserError) as caught:
        load_weights(network, other, Path("x.pt"))
    assert "outc.conv.weight is (5, 4, 1, 1) in the file, (2, 4, 1, 1)" in str(caught.value)
    assert "extra" in str(caught.value)


def test_only_the_first_problems_are_named(network: UNet) -> None:
    with pytest.raises(UserError) as caught:
        load_weights(network, {"x": torch.zeros(1)}, Path("x.pt"))
    count = len(network.state_dict()) + 1
    line = str(caught.value)
    assert line.count("missing in the file") == 3
    assert f"; and {count - 3} more; use the flags" in line
    three = {**network.state_dict(), **{f"extra{k}": torch.zeros(1) for k in range(3)}}
    with pytest.raises(UserError, match=r"^x.pt: .*extra2 is not in the network; use the flags"):
        load_weights(network, three, Path("x.pt"))


def test_weights_that_fit_are_loaded(network: UNet) -> None:
    other = UNet(3, 2, width=4)
    load_weights(other, network.state_dict(), Path("x.pt"))
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def write_ours(path: Path, network: UNet, **changed: Any) -> Path:
    torch.save({**FORMS["ours"](network.state_dict()), **changed}, path)
    return path


def test_of_our_checkpoints_the_average_is_read(network: UNet, tmp_path: Path) -> None:
    average = {name: value + 1 for name, value in network.state_dict().items()}
    path = write_ours(tmp_path / "x.pt", network, ema=average, threshold=0.25)
    model = read_model(path)
    assert torch.equal(model.state["inc.double_conv.0.weight"], average["inc.double_conv.0.weight"])
    assert model.threshold == 0.25 and model.notes == []
    assert model.labels == Labels((0, 255))
    assert model.preprocessing is not None and model.preprocessing.scale == 0.5
    assert model.architecture == Architecture("unet", 3, 2, None, 4, False)
    path = write_ours(tmp_path / "x.pt", network, ema=None)
    assert torch.equal(read_model(path).state["outc.conv.bias"], network.outc.conv.bias)
    assert read_model(path).threshold is None


@pytest.mark.parametrize(
    "changed", [{"architecture": {"layers": 9}}, {"labels": {}}, {"preprocessing": {"mean": "x"}}]
)
def test_a_checkpoint_of_another_version_is_named(
    network: UNet, tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = write_ours(tmp_path / "x.pt", network, unet_ddp="9.9", **changed)
    with pytest.raises(UserError, match=r"x.pt: written by another version of unet_ddp \(9.9\)"):
        read_model(path)


def test_a_file_without_weights_is_named_with_its_keys(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x.pt: contains no weights; its keys are epoch, loss$"):
        read_model(tmp_path / "x.pt")


def test_weights_of_an_unknown_network_have_no_architecture(tmp_path: Path) -> None:
    torch.save({"module.a": torch.zeros(2), "module.b": torch.ones(1)}, tmp_path / "x.pt")
    model = read_model(tmp_path / "x.pt")
    assert model.state.keys() == {"a", "b"}
    assert (model.architecture, model.labels, model.preprocessing) == (None, None, None)
    assert model.notes == ["prefix module. stripped"]


@pytest.mark.parametrize(
    ("values", "classes", "labels"),
    [
        (None, 2, Labels((0, 255))),
        (None, 3, Labels((0, 1, 2))),
        ([0, 1], 2, Labels((0, 1))),
        ([0.0, 0.5], 2, Labels((0, 127))),  # shares of 255
        ([0, 1, 2], 2, Labels((0, 255))),  # of another network
        ([[0, 0, 0], [255, 1, 2]], 2, Labels((0, 0xFF0102), rgb=True)),
    ],
)
def test_labels_of_other_programs(
    tmp_path: Path, values: Any, classes: int, labels: Labels
) -> None:
    state = UNet(3, classes, width=2).state_dict()
    torch.save(state if values is None else {**state, "mask_values": values}, tmp_path / "x.pt")
    model = read_model(tmp_path / "x.pt")
    assert model.labels == labels
    assert model.preprocessing == Preprocessing(3, (0.0,) * 3, (1.0,) * 3, 0.5)


def test_scale_is_for_files_that_do_not_contain_theirs(network: UNet, tmp_path: Path) -> None:
    ours = read_model(write_ours(tmp_path / "ours.pt", network))
    torch.save(network.state_dict(), tmp_path / "theirs.pt")
    theirs = read_model(tmp_path / "theirs.pt")
    assert with_scale(ours, None) is ours
    with pytest.raises(UserError, match=r"--scale 0.7: this checkpoint contains its scale, 0.5;"):
        with_scale(ours, 0.7)
    scaled = with_scale(theirs, 1.0)
    assert scaled.preprocessing is not None and scaled.preprocessing.scale == 1.0
    for scale in (0.0, 1.01):
        with pytest.raises(UserError, match="must be above 0 and at most 1"):
            with_scale(theirs, scale)


def test_the_checkpoint_to_predict_with_is_found(tmp_path: Path) -> None:
    def touch(name: str, age: int) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
        return path

    assert find_model("some.pt", tmp_path) == Path("some.pt")
    assert find_model(str(tmp_path), tmp_path) == tmp_path / "best.pt"
    with pytest.raises(UserError, match=r"best.pt: not found; train first, or use --model FILE"):
        find_model(None, tmp_path)
    (tmp_path / "broken" / "best.pt").mkdir(parents=True)
    last = touch("stopped/last.pt", 0)
    assert find_model(None, tmp_path) == last
    older, newer = touch("a/best.pt", 20), touch("b/best.pt", 10)
    touch("c/best.pt", 30)
    assert find_model(None, tmp_path) == newer != older
    own = touch("best.pt", 99)
    assert find_model(None, tmp_path) == own
