"""Networks by name: what a checkpoint keeps of them builds them again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unet_ddp.errors import UserError, from_plain
from unet_ddp.network.architecture import (
    Architecture,
    build_network,
    choose_architecture,
    freeze_encoder,
    in_encoder,
    parameter_groups,
)
from unet_ddp.network.unet import UNet


@pytest.mark.parametrize(
    ("model", "encoder", "chosen"),
    [
        ("unet", None, Architecture("unet", 3, 2, None, 64, True)),
        ("U-Net", None, Architecture("unet", 3, 2, None, 64, True)),
        ("unet", "resnet18", Architecture("unet", 3, 2, "resnet18")),
        ("U-Net++", None, Architecture("unetplusplus", 3, 2, "resnet34")),
        ("DeepLabV3_Plus", "mit_b0", Architecture("deeplabv3plus", 3, 2, "mit_b0")),
        ("own:Net", "resnet18", Architecture("own:Net", 3, 2, "resnet18", 64, True)),
    ],
)
def test_names_are_read_as_people_write_them(
    model: str, encoder: str | None, chosen: Architecture
) -> None:
    how = {"channels": 3, "num_classes": 2, "width": 64, "bilinear": True}
    assert choose_architecture(model, encoder, **how) == chosen


def test_defaults_are_width_32_and_transposed_convolutions() -> None:
    chosen = choose_architecture("unet", None, channels=1, num_classes=5)
    assert chosen == Architecture("unet", 1, 5, None, width=32, bilinear=False)


@pytest.mark.parametrize("bilinear", [False, True])
def test_a_network_is_built_again_from_plain_values(bilinear: bool) -> None:
    """The keys are those of released checkpoints."""
    chosen = Architecture("unet", 4, 3, None, 2, bilinear)
    plain = chosen.to_dict()
    assert plain == {
        "model": "unet", "channels": 4, "num_classes": 3, "encoder": None, "width": 2,
        "bilinear": bilinear,
    }  # fmt: skip
    assert from_plain(Architecture, plain) == chosen
    network = build_network(from_plain(Architecture, plain))
    assert isinstance(network, UNet) and not network.checkpointing
    network.load_state_dict(UNet(4, 3, width=2, bilinear=bilinear).state_dict())
    weight = network.down1.maxpool_conv[1].double_conv[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert build_network(chosen, checkpointing=True).checkpointing


def test_an_encoder_is_built_with_the_channels_and_classes_of_the_data() -> None:
    chosen = choose_architecture("fpn", "tu-mobilenetv3_small_050", channels=5, num_classes=4)
    network = build_network(chosen).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 5, 32, 32)).shape == (1, 4, 32, 32)


def test_a_line_about_the_network() -> None:
    classic = "classic U-Net of width 32, {} upsampling, 3 channels, 2 classes"
    assert str(Architecture("unet", 3, 2)) == classic.format("transposed")
    assert str(Architecture("unet", 3, 2, bilinear=True)) == classic.format("bilinear")
    assert str(Architecture("fpn", 1, 9, "resnet18")) == "fpn with resnet18, 1 channel, 9 classes"


@pytest.mark.parametrize(
    ("encoder", "how", "message"),
    [
        (None, {"encoder_weights": "imagenet"}, r"--encoder-weights imagenet: .*use --encoder too"),
        ("resnet18", {"checkpointing": True}, "--checkpointing: only the classic U-Net"),
    ],
)
def test_what_a_network_does_not_have_is_a_mistake(
    encoder: str | None, how: dict, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build_network(Architecture("unet", 3, 2, encoder), **how)


def build(model: str, encoder: str | None) -> nn.Module:
    return build_network(choose_architecture(model, encoder, channels=3, num_classes=2, width=2))


@pytest.fixture(scope="module", params=[("unet", None), ("fpn", "resnet18")], ids=str)
def network(request: pytest.FixtureRequest) -> nn.Module:
    return build(*request.param)


def test_the_encoder_is_smp_s_or_the_way_down(network: nn.Module) -> None:
    parts = {name.split(".")[0] for name in network.state_dict() if in_encoder(name)}
    others = {name.split(".")[0] for name in network.state_dict() if not in_encoder(name)}
    if "inc" in parts:
        assert parts == {"inc", "down1", "down2", "down3", "down4"}
        assert others == {"up1", "up2", "up3", "up4", "outc"}
    else:
        assert (parts, others) == ({"encoder"}, {"decoder", "segmentation_head"})


@pytest.mark.parametrize(("model", "encoder"), [("unet", None), ("fpn", "resnet18")])
def test_a_frozen_encoder_is_evaluated_and_has_no_gradients(
    model: str, encoder: str | None
) -> None:
    network = build(model, encoder).train()
    parts = freeze_encoder(network)
    assert all(child in parts for child in network.children() if not child.training)
    for name, module in network.named_modules():
        assert module.training is not in_encoder(f"{name}."), name
    for name, parameter in network.named_parameters():
        assert parameter.requires_grad is not in_encoder(name), name


def test_groups_keep_the_parameters_order(network: nn.Module) -> None:
    """A checkpoint's moments are numbered by it: those of runs with one group fit too."""
    groups = parameter_groups(network, 0.25, 4.0)
    assert [group["lr_scale"] for group in groups] == [0.25, 1.0, 4.0]
    classes = network.eval()(torch.zeros(1, 3, 32, 32)).shape[1]
    assert [len(parameter) for parameter in groups[-1]["params"]] == [classes] * 2
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert all(a is b for a, b in zip(grouped, network.parameters(), strict=True))
    count = sum(in_encoder(name) for name, _ in network.named_parameters())
    assert len(groups[0]["params"]) == count > 0
