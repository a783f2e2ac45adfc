"""Networks by name: the classic U-Net, or one of segmentation-models-pytorch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from torch import nn

from unet_ddp.errors import Limit, UserError, from_plain, shorten
from unet_ddp.network import smp
from unet_ddp.network.unet import UNet

_ENCODER = ("encoder.", "inc.", "down")  # what its parameters' names begin with


@dataclass(frozen=True)
class Architecture:
    """Everything needed to build the network again, as saved in the checkpoint."""

    model: str
    channels: Annotated[int, Limit(1, 4096)]
    num_classes: Annotated[int, Limit(2, 255)]
    encoder: str | None = None  # None for the classic U-Net
    width: Annotated[int, Limit(1, 4096)] = 32
    bilinear: bool = False

    def __post_init__(self) -> None:
        """Refuse another model without encoder: smp's all have one."""
        if self.encoder is None and self.model != "unet":
            raise UserError(f"model: {shorten(self.model)}; expected unet, or an encoder too")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Any) -> Architecture:
        """Return the architecture that `to_dict` described, checked."""
        return from_plain(cls, plain)

    def __str__(self) -> str:
        """Return the run's line about its network."""
        upsampling = f"{'bilinear' if self.bilinear else 'transposed'} upsampling"
        classic = f"classic U-Net of width {self.width}, {upsampling}"
        kind = f"{self.model} with {self.encoder}" if self.encoder else classic
        return f"{kind}, {self.channels} channels, {self.num_classes} classes"


def choose_architecture(
    model: str,
    encoder: str | None,
    *,
    channels: int,
    num_classes: int,
    width: int = 32,
    bilinear: bool = False,
) -> Architecture:
    """Return the architecture that ``--model`` and ``--encoder`` name."""
    name = model.lower().replace("+", "plus").replace("-", "").replace("_", "")
    if name == "unet" and encoder is None:
        return Architecture("unet", channels, num_classes, None, width, bilinear)
    return Architecture(name, channels, num_classes, encoder or "resnet34")


def build_network(
    architecture: Architecture, *, encoder_weights: str | None = None, checkpointing: bool = False
) -> nn.Module:
    """Return a new network, in channels_last order.

    `encoder_weights` names the encoder's pretrained weights to download, e.g. imagenet; for
    `checkpointing` see `UNet`.

    Raises:
        UserError: the model or encoder is unknown, or its weights can't be downloaded.
    """
    if architecture.encoder is not None:
        if checkpointing:
            raise UserError(
                "--checkpointing: only the classic U-Net has it; leave out --checkpointing, or "
                "--model and --encoder"
            )
        network = smp.build(
            architecture.model,
            architecture.encoder,
            channels=architecture.channels,
            num_classes=architecture.num_classes,
            encoder_weights=encoder_weights,
        )
    elif encoder_weights is not None:
        raise UserError(
            f"--encoder-weights {encoder_weights}: the classic U-Net has no pretrained weights; "
            "use --encoder too, e.g. --encoder resnet34"
        )
    else:
        network = UNet(
            architecture.channels,
            architecture.num_classes,
            width=architecture.width,
            bilinear=architecture.bilinear,
            checkpointing=checkpointing,
        )
    return network.to(memory_format=torch.channels_last)


# -- the encoder: smp's, or the classic U-Net's way down ------------------------------------


def in_encoder(name: str) -> bool:
    """Return whether a parameter or buffer of this name belongs to the encoder."""
    return name.startswith(_ENCODER)


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
