"""Networks of segmentation-models-pytorch: any size, its parameter names, its errors in a line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import segmentation_models_pytorch
import torch
from torch import nn

from unet_ddp.errors import UserError
from unet_ddp.extras.smp import networks as smp
from unet_ddp.network.any_size import AnySize, fit_any_size


def build(model: str, encoder: str, encoder_weights: str | None = None) -> Any:
    return smp.build(3, 4, model=model, encoder=encoder, encoder_weights=encoder_weights)


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (33, 64), (64, 32)])
def test_any_size_is_padded_below_and_to_the_right(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = build("fpn", "tu-mobilenetv3_small_050").eval()
    padded = torch.zeros(1, 3, *(-(-side // 32) * 32 for side in size))
    images = torch.randn(1, 3, *size)
    padded[..., : size[0], : size[1]] = images
    with torch.no_grad():
        expected = super(AnySize, network).forward(padded)[..., : size[0], : size[1]]
        assert torch.equal(network(images), expected)


@pytest.mark.parametrize(
    ("model", "encoder"),
    [
        ("pan", "resnet18"),
        pytest.param("dpt", "tu-vit_tiny_patch16_224", marks=pytest.mark.thorough),
    ],
)
def test_images_smaller_than_the_network_needs_are_padded(model: str, encoder: str) -> None:
    """PAN pools to a 128th and DPT's encoders are made for one size; both learn from small images."""
    network = build(model, encoder)
    for height, width in ((33, 80), (128, 160)):
        logits = network(torch.randn(2, 3, height, width))
        assert logits.shape == (2, 4, height, width)
    logits.mean().backward()


@pytest.mark.parametrize("size", [(64, 96), (50, 77), (33, 160)])
def test_padding_that_no_size_changes_gives_the_bits_of_timm_s(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """timm computes it from each size, which took `export` more than six minutes."""
    from timm.layers import Conv2dSame

    ours = build("unet", "tu-tf_efficientnet_lite0").eval()
    monkeypatch.setattr(smp, "fix_padding", lambda network: None)
    theirs = build("unet", "tu-tf_efficientnet_lite0").eval()
    theirs.load_state_dict(ours.state_dict())
    found = [sum(type(each) is Conv2dSame for each in net.modules()) for net in (ours, theirs)]
    assert found[0] == 0 < found[1]
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))


def test_parameters_keep_their_names() -> None:
    """So that weights made by smp's own classes load."""
    theirs = segmentation_models_pytorch.Unet(
        "resnet18", encoder_weights=None, in_channels=3, classes=4
    )
    network = build("unet", "resnet18")
    network.load_state_dict(theirs.state_dict())
    assert type(network).__name__ == "Unet"


@pytest.mark.parametrize(
    ("model", "encoder", "message"),
    [
        ("yolo", "resnet18", "--model yolo: unknown; expected one of deeplabv3, .* unetplusplus"),
        ("fpn", "resnet7", "--model fpn --encoder resnet7: can't be built"),
        ("unet", "tu-nonsense", "--encoder tu-nonsense: can't be built"),
        ("dpt", "resnet18", "Only Timm encoders are supported"),
        ("dpt", "tu-eva02_tiny_patch14_224", "its steps of 14 pixels"),
    ],
)
def test_unknown_networks_are_named(model: str, encoder: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(model, encoder)


@pytest.mark.parametrize(
    "encoder",
    [
        "tu-hf-hub:somebody/payload", "tu-hf_hub:somebody/payload", "tu-local-dir:payload",
        "tu-resnet18.hf-hub:a/b", "tu-resnet18.é", "hf-hub:a/b", "tu-a/resnet18", "timm-res2hf-hub:a/b", "../resnet18",
        "resnet18\n", "tu-", "", ["resnet18"],
    ],
)  # fmt: skip
def test_an_encoder_is_a_name_and_no_address(monkeypatch: pytest.MonkeyPatch, encoder: str) -> None:
    """A checkpoint names it: nothing is asked of a hub, or looked for on the disk."""
    monkeypatch.setattr("timm.create_model", lambda *_, **__: pytest.fail("timm was asked"))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: pytest.fail("hub"))
    with pytest.raises(UserError, match=r"neither segmentation-models-pytorch nor timm"):
        build("unet", encoder)


def test_encoders_of_smp_and_timm_are_known() -> None:
    names = ["resnet18", "efficientnet-b0", "timm-efficientnet-b0", "tu-resnet18.a1_in1k"]
    names += ["timm-regnetx_002", "timm-mobilenetv3_small_075"]  # smp's older names of timm's
    assert [name for name in names if not smp.is_known(name)] == []
    assert all(map(smp.is_known, segmentation_models_pytorch.encoders.get_encoder_names()))
    assert not smp.is_known("tu-nonsense")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("imagenet", r"--encoder-weights imagenet: can't download .* resnet18 \(no connection\)"),
        ("imgnet", "--model unet --encoder resnet18: can't be built .*imgnet"),
    ],
)
def test_weights_that_can_not_be_downloaded(
    monkeypatch: pytest.MonkeyPatch, weights: str, message: str
) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise OSError("no\n connection")

    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", no_connection)
    with pytest.raises(UserError, match=message):
        build("unet", "resnet18", weights)


@pytest.mark.parametrize(
    ("encoder", "asked", "given"),
    [
        ("tu-resnet18", "imagenet", True),
        ("tu-resnet18", None, None),
        ("resnet18", "ssl", "ssl"),
    ],
)
def test_smp_is_asked_for_weights_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, encoder: str, asked: str | None, given: object
) -> None:
    class Recording(torch.nn.Module):
        def __init__(self, **how: object) -> None:
            super().__init__()
            self.how, self.encoder = how, SimpleNamespace(output_stride=32)

    known = segmentation_models_pytorch.MODEL_ARCHITECTURES_MAPPING
    monkeypatch.setitem(known, "recording", Recording)
    network = smp.build(5, 7, model="recording", encoder=encoder, encoder_weights=asked)
    assert network.how == {
        "encoder_name": encoder, "encoder_weights": given, "in_channels": 5, "classes": 7
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyError("a" * 999), "'" + "a" * 199), (RuntimeError(), "RuntimeError")],
)
def test_a_long_reason_is_one_line_of_at_most_200_characters(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    class Failing(torch.nn.Module):
        def __init__(self, **_: object) -> None:
            raise error

    monkeypatch.setitem(segmentation_models_pytorch.MODEL_ARCHITECTURES_MAPPING, "x", Failing)
    with pytest.raises(UserError, match=rf"built \({reason}\);"):
        build("x", "resnet18")


def test_a_network_for_any_size_is_exported_for_any_number_of_images() -> None:
    network = fit_any_size(nn.Sequential(nn.Conv2d(3, 2, 1)), "mine", 2).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(
        network, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=({0: batch},)
    )
    assert exported.module()(torch.zeros(5, 3, 32, 32)).shape == (5, 2, 32, 32)


@pytest.mark.parametrize(
    ("encoder", "side"),
    [("tu-swin_tiny_patch4_window7_224", 0), ("tu-gcvit_xxtiny", 224), ("tu-pvt_v2_b0", 0)],
)
def test_an_encoder_made_for_one_size_takes_any_or_says_its_own(encoder: str, side: int) -> None:
    with torch.device("meta"), torch.no_grad():
        network = build("unet", encoder).eval()
        assert network.largest == side
        for size in ((200, 160), (64, 96)):
            assert network(torch.zeros(1, 3, *size)).shape == (1, 4, *size)
        if side:
            with pytest.raises(
                UserError, match=f"{encoder}: takes images of 224x224 at most, not 300x32"
            ):
                network(torch.zeros(1, 3, 32, 300))
