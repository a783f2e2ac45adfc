"""The encoder: its parameters, frozen or with a learning rate of their own."""

from __future__ import annotations

import pytest
from torch import nn

from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.encoder import freeze_encoder, in_encoder, parameter_groups


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
    groups = parameter_groups(network, 0.25)
    assert [group["lr_scale"] for group in groups] == [0.25, 1.0]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert all(a is b for a, b in zip(grouped, network.parameters(), strict=True))
    count = sum(in_encoder(name) for name, _ in network.named_parameters())
    assert len(groups[0]["params"]) == count > 0
