"""Weights of one network for another: classes by name, other bands, encoders alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.models import adapt_input_conv
from torch import Tensor, nn

from unet_ddp.checkpoints.weights import SavedModel, State, build_blank, read_model
from unet_ddp.config import TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.extras.transfer.fit import (
    FittedWeights,
    adapt_bands,
    fit_weights,
    match_classes,
    read_weights,
)
from unet_ddp.network.architecture import Architecture, build_network, in_encoder

PLAIN = Architecture("unet", 3, 3, None, 4)
SMP = Architecture("unet", 3, 2, "resnet18")
FILE = Path("x.pt")
STREET = Labels((0, 1, 2), names=("road", "car", "tree"))
ORGANS = OverlapLabels((1, 2), names=("organ", "tumour"))


def new_network(architecture: Architecture = PLAIN, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    network = build_network(architecture).eval()
    with torch.no_grad():
        for name, buffer in network.named_buffers():  # statistics as of a trained network
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + ("var" in name) * 0.5)
    return network


def fit(
    state: State, architecture: Architecture = PLAIN, *, old: Labels | None = STREET,
    new: Labels = STREET, parts: str = "all",
) -> tuple[nn.Module, FittedWeights]:  # fmt: skip
    """A network of another seed with the weights that fit, and what is said of them."""
    loaded = SavedModel(state, None, old, None, [])
    fitted = fit_weights(loaded, architecture, new, FILE, encoder_only=parts == "encoder")
    network = new_network(architecture, seed=2)
    network.load_state_dict(fitted.state, strict=False)
    return network, fitted


@torch.no_grad()
def logits_of(network: nn.Module, channels: int = 3) -> Tensor:
    torch.manual_seed(3)
    images = torch.rand(2, 1 if channels == 1 else 3, 32, 32)
    return network(images)


# -- classes -------------------------------------------------------------------------------------


def test_classes_of_the_same_name_predict_the_same() -> None:
    """Logits are linear in the head: a new class has the mean of the old classes' logits."""
    old = new_network()
    before = logits_of(old)
    new = Labels((5, 6, 7, 8), names=("tree", "bus", "road", "bike"))
    network, fitted = fit(old.state_dict(), replace(PLAIN, num_classes=4), new=new)
    after = logits_of(network)
    assert torch.equal(after[:, 0], before[:, 2]) and torch.equal(after[:, 2], before[:, 0])
    mean = before.mean(dim=1)
    torch.testing.assert_close(after[:, 1], mean)
    torch.testing.assert_close(after[:, 3], mean)
    assert fitted.adapted == ["outc.conv, to classes tree, bus, road and 1 more"]
    assert fitted.left == ["classes car"]
    assert fitted.new == ["from the mean of the old classes bus, bike"]


def test_the_same_classes_are_taken_as_they_are() -> None:
    old = new_network()
    network, fitted = fit(old.state_dict())
    assert torch.equal(logits_of(network), logits_of(old))
    count = len(old.state_dict())
    assert fitted.describe(FILE) == [
        f"taken: {count} tensors of x.pt", "adapted: nothing", "left: nothing", "new: nothing"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "rows"),
    [
        (STREET, Labels((9, 8, 7), names=("car", "sky", "road")), [1, None, 0]),
        (STREET, Labels((2, 5, 0)), [2, None, 0]),  # the new ones have no names
        (Labels((2, 5, 0)), STREET, [2, None, 0]),
        (Labels((0, 255)), Labels((0, 1)), [0, 1]),  # background and foreground
        (Labels((0, 255)), Labels((0, 1), names=("rest", "cell")), [0, 1]),
        (Labels((0, 1), names=("a", "b")), Labels((0, 1), names=("b", "c")), [1, None]),
        (Labels((0, 255)), Labels((0, 1, 255)), [0, None, 1]),
        (Labels((0, 0xFF), rgb=True), Labels((0, 0xFF, 7), rgb=True), [0, 1, None]),
        (Labels((0, 1, 2)), Labels((0, 1, 2), rgb=True), [None] * 3),  # grey 1 is not #000001
        (Labels((0, 255)), ORGANS, [None, None]),  # a background is no organ
        (Labels((0, 1, 2)), ORGANS, [None, None]),  # 2 is the second bit
        (Labels((0, 1), names=("rest", "tumour")), ORGANS, [None, 1]),
        (ORGANS, Labels((0, 255)), [None, None]),
        (replace(ORGANS, names=None), ORGANS, [0, 1]),
    ],
)
def test_the_same_class_is_found(old: Labels, new: Labels, rows: list[int | None]) -> None:
    assert match_classes(old, new) == rows


def test_a_head_whose_classes_are_unknown_is_taken_by_value() -> None:
    state = new_network(replace(SMP, num_classes=3)).state_dict()
    network, _ = fit(state, SMP, old=None, new=Labels((2, 7)))
    head = "segmentation_head.0.weight"
    assert torch.equal(network.state_dict()[head][0], state[head][2])
    torch.testing.assert_close(network.state_dict()[head][1], state[head].mean(dim=0))


def test_smp_s_single_output_is_two_classes(tmp_path: Path) -> None:
    network = new_network(replace(SMP, num_classes=2))
    state = {k: v[1:] if k.startswith("segm") else v for k, v in network.state_dict().items()}
    torch.save(state, tmp_path / "x.pt")
    read = read_model(tmp_path / "x.pt").state
    assert (read["segmentation_head.0.weight"][0] == 0).all()
    assert torch.equal(read["segmentation_head.0.weight"][1:], state["segmentation_head.0.weight"])
    assert read["segmentation_head.0.bias"].shape == (2,)


# -- bands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("have", "want"), [(3, 1), (3, 2), (3, 4), (3, 5), (3, 7)])
def test_bands_are_adapted_as_timm_does(have: int, want: int) -> None:
    kernels = torch.rand(4, have, 3, 3)
    torch.testing.assert_close(adapt_bands(kernels, want), adapt_input_conv(want, kernels))


def test_grey_images_give_what_they_gave_in_colour_and_the_other_way_round() -> None:
    colour = new_network()
    grey, fitted = fit(colour.state_dict(), replace(PLAIN, channels=1))
    assert fitted.adapted == ["inc.double_conv.0.weight, from 3 to 1 channel"]
    images = torch.rand(2, 1, 32, 32)
    same = images.expand(-1, 3, -1, -1)
    with torch.no_grad():
        torch.testing.assert_close(grey(images), colour(same))
        again, _ = fit(grey.state_dict(), PLAIN)
        torch.testing.assert_close(again(same), grey(images))
        bands, _ = fit(grey.state_dict(), replace(PLAIN, channels=7))
        torch.testing.assert_close(bands(images.expand(-1, 7, -1, -1)), grey(images))


# -- encoders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("parts", ["all", "encoder"])
def test_an_encoder_alone(is_whole: bool, parts: str) -> None:
    """--load takes all of a file, --encoder-weights its encoder; the rest is new."""
    state = {k: v for k, v in new_network().state_dict().items() if is_whole or in_encoder(k)}
    network, fitted = fit(state, parts=parts)
    fresh = new_network(seed=2).state_dict()
    for name, value in network.state_dict().items():
        is_taken = in_encoder(name) or (is_whole and parts == "all")
        assert torch.equal(value, (state if is_taken else fresh)[name]), name
    assert bool(fitted.new) is not (is_whole and parts == "all")
    assert fitted.new == [] or fitted.new[0].startswith("up1.up.weight, up1.up.bias, ")
    assert (fitted.left != []) is (is_whole and parts == "encoder")


def test_a_network_that_is_an_encoder_and_a_head_is_taken_whole() -> None:
    own = Architecture("tests.zoo:Plain", 3, 3, None, 4)
    old = new_network(own)
    network, fitted = fit(old.state_dict(), own)
    assert (fitted.left, fitted.new) == ([], [])
    assert torch.equal(logits_of(network), logits_of(old))
    new = Labels((5, 6, 7, 8), names=("tree", "bus", "road", "car"))
    network, fitted = fit(old.state_dict(), replace(own, num_classes=4), new=new)
    found, before = logits_of(network), logits_of(old)
    torch.testing.assert_close(found[:, [2, 3, 0]], before, rtol=1e-4, atol=1e-5)
    _, fitted = fit(old.state_dict(), own, old=None)  # a file that does not name its classes
    assert fitted.left == ["head.weight, head.bias"]


def test_the_encoder_of_a_network_with_another_decoder() -> None:
    """Their heads share a name."""
    state = new_network(SMP).state_dict()
    other, fitted = fit(state, replace(SMP, model="fpn"), new=Labels((0, 1)))
    for name, value in other.state_dict().items():
        assert not in_encoder(name) or torch.equal(value, state[name]), name
    assert any(name.startswith("decoder.") for name in fitted.new)
    assert any(name.startswith("decoder.") for name in fitted.left)


def test_a_file_of_torchvision() -> None:
    torch.manual_seed(4)
    theirs = torchvision.models.resnet18().eval()
    images = torch.rand(1, 3, 64, 64)
    network, fitted = fit(theirs.state_dict(), SMP, old=None, new=Labels((0, 1)))
    layers = [theirs.conv1, theirs.bn1, theirs.relu, theirs.maxpool, theirs.layer1]
    layers += [theirs.layer2, theirs.layer3, theirs.layer4]
    with torch.no_grad():
        torch.testing.assert_close(network.encoder(images)[-1], nn.Sequential(*layers)(images))
    assert fitted.left == ["fc.weight, fc.bias"]


def test_a_file_of_timm_whose_encoder_has_other_dots() -> None:
    torch.manual_seed(4)
    theirs = timm.create_model("convnext_atto").eval()
    images = torch.rand(1, 3, 64, 64)
    architecture = replace(SMP, encoder="tu-convnext_atto")
    network, _ = fit(theirs.state_dict(), architecture, parts="encoder", new=Labels((0, 1)))
    with torch.no_grad():
        expected = theirs.stages(theirs.stem(images))
        torch.testing.assert_close(network.encoder(images)[-1], expected)


def test_names_of_earlier_versions() -> None:
    """Without batch norm's counters, and DenseNet's layers as torchvision's files have them."""
    network = new_network(SMP)
    state = {k: v for k, v in network.encoder.state_dict().items() if "num_batches" not in k}
    assert fit(state, SMP, parts="encoder")[1].new[0].startswith("decoder.")
    dense = replace(SMP, encoder="densenet121")
    wanted = build_blank(dense, FILE).state_dict()
    theirs = {
        name.removeprefix("encoder.").replace("norm1", "norm.1").replace("conv2", "conv.2"): value
        for name, value in wanted.items()
        if in_encoder(name)
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in theirs
    values = {name: torch.full(value.shape, 0.5) for name, value in theirs.items()}
    loaded = SavedModel(values, None, None, None, [])
    fitted = fit_weights(loaded, dense, STREET, FILE, encoder_only=True)
    assert len(fitted.state) == len(theirs) and fitted.left == []


# -- what does not fit -----------------------------------------------------------------------------


def without(state: State, name: str) -> State:
    return {key: value for key, value in state.items() if key != name}


def test_what_does_not_fit_is_one_line() -> None:
    plain, smp = new_network().state_dict(), new_network(SMP).state_dict()
    conv, up = "inc.double_conv.0.weight", "up1.up.weight"
    cases: list[tuple[State, Architecture, dict[str, Any], str]] = [
        ({"a": torch.ones(1)}, PLAIN, {}, f"{conv} is missing in the file; .* more"),
        (smp, PLAIN, {}, f"{conv} is missing"),
        (plain, replace(PLAIN, width=8), {}, rf"{conv} is \(4, 3, 3, 3\) in the file, \(8, 3"),
        (without(plain, conv), PLAIN, {"parts": "encoder"}, f"{conv} is missing"),
        (without(plain, up), PLAIN, {}, f"network: {up} is missing in the file; use the flags"),
        ({**plain, conv: plain[conv][..., :2]}, replace(PLAIN, channels=1), {}, rf"{conv} is \(4, 3, 3, 2"),
        ({**plain, conv: plain[conv].int()}, replace(PLAIN, channels=1), {}, f"{conv} is int32"),
        ({**plain, conv: plain[conv][:, :0]}, replace(PLAIN, channels=1), {}, rf"{conv} is \(4, 0"),
        ({**plain, conv: plain[conv] * torch.nan}, PLAIN, {}, f"{conv} contains nan"),
        ({**plain, "outc.conv.bias": torch.ones(7)}, replace(PLAIN, num_classes=5), {}, "outc.conv"),
        ({**plain, "outc.conv.bias": torch.tensor(1.0)}, PLAIN, {}, r"outc.conv.bias is \(\)"),
        (smp, replace(SMP, encoder="resnet34"), {"parts": "encoder"}, "layer1.2.conv1.weight is missing"),
    ]  # fmt: skip
    for state, architecture, how, message in cases:
        new = Labels(tuple(range(architecture.num_classes)))
        with pytest.raises(UserError, match=rf"^x.pt: .*{message}"):
            fit(state, architecture, new=new, old=STREET, **how)


def test_nan_in_what_is_left_does_not_matter() -> None:
    state = {**new_network().state_dict(), "fc.weight": torch.tensor([torch.nan])}
    assert fit(state)[1].left == ["fc.weight"]


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_flags_name_the_file(tmp_path: Path, is_whole: bool) -> None:
    """--load wins, and of a run it is the best network."""
    torch.save(new_network().state_dict(), tmp_path / "best.pt")
    config = TrainConfig()
    network = replace(config.network, encoder_weights=str(tmp_path / "best.pt"))
    run = replace(config.run, load=str(tmp_path) if is_whole else None)
    weights = read_weights(replace(config, run=run, network=network))
    assert (weights.source, weights.is_whole) == (tmp_path / "best.pt", is_whole)
    assert weights.model.architecture == PLAIN
