"""The encoder of a network: smp's, or the classic U-Net's way down."""

from __future__ import annotations

from typing import Any

from torch import nn

_NAMES = ("encoder.", "inc.", "down")


def in_encoder(name: str) -> bool:
    """Return whether a parameter or buffer of this name belongs to the encoder."""
    return name.startswith(_NAMES)


def freeze_encoder(network: nn.Module) -> list[nn.Module]:
    """Freeze the encoder, in evaluation mode; return its modules, see `TrainState.frozen`."""
    parts = [child for name, child in network.named_children() if in_encoder(f"{name}.")]
    for part in parts:
        part.requires_grad_(False).eval()
    return parts


def parameter_groups(network: nn.Module, encoder_rate: float) -> list[dict[str, Any]]:
    """Return the optimizer's groups, in the parameters' order: the encoder and the rest.

    As in timm, "lr_scale" is the factor of a group's learning rate.
    """
    named = list(network.named_parameters())
    encoder = [parameter for name, parameter in named if in_encoder(name)]
    rest = [parameter for name, parameter in named if not in_encoder(name)]
    return [{"params": encoder, "lr_scale": encoder_rate}, {"params": rest, "lr_scale": 1.0}]
