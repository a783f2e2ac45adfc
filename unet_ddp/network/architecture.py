"""A network by its name: the classic U-Net, or one of segmentation-models-pytorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.errors import UserError
from unet_ddp.network.unet import UNet


@dataclass(frozen=True)
class Architecture:
    """All that it takes to build the network again; kept in the checkpoint."""

    model: str
    channels: int
    num_classes: int
    encoder: str | None = None
    """None for the classic U-Net."""
    width: int = 32
    bilinear: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Architecture:
        """The architecture that `to_dict` gave."""
        return cls(**plain)

    def __str__(self) -> str:
        kind = (
            f"{self.model} with {self.encoder}"
            if self.encoder
            else f"classic U-Net of width {self.width}, "
            f"{'bilinear' if self.bilinear else 'transposed'} upsampling"
        )
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
    """The architecture that ``--model`` and ``--encoder`` name."""
    name = model.lower().replace("+", "plus").replace("-", "").replace("_", "")
    if name == "unet" and encoder is None:
        return Architecture("unet", channels, num_classes, None, width, bilinear)
    return Architecture(name, channels, num_classes, encoder or "resnet34")


def build_network(
    architecture: Architecture, *, encoder_weights: str | None = None, checkpointing: bool = False
) -> nn.Module:
    """The network, in channels_last order.

    Args:
        encoder_weights: pretrained weights to fetch for the encoder, as imagenet.

    Raises:
        UserError: no such model or encoder, or its weights can't be had.
    """
    if architecture.encoder is None:
        if encoder_weights is not None:
            raise UserError(
                "--encoder-weights: the classic U-Net has no pretrained ones; give --encoder too, "
                "as --encoder resnet34"
            )
        network: nn.Module = UNet(
            architecture.channels,
            architecture.num_classes,
            width=architecture.width,
            bilinear=architecture.bilinear,
            checkpointing=checkpointing,
        )
    elif checkpointing:
        raise UserError("--checkpointing: for the classic U-Net only; leave it or --model out")
    else:
        network = _build_smp(architecture, encoder_weights)
    return network.to(memory_format=torch.channels_last)


class _AnySize(nn.Module):
    """Before one of smp's classes: takes images of any size, padded and cropped back.

    A base class and no wrapper, so that the parameters keep smp's names.
    """

    stride = 32

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) to logits (N, num_classes, H, W)."""
        height, width = images.shape[-2:]
        rows, columns = -height % self.stride, -width % self.stride
        if torch.compiler.is_exporting() or rows or columns:  # exported, it is for any size
            images = F.pad(images, (0, columns, 0, rows))
        logits: Tensor = super().forward(images)
        return logits[..., :height, :width]


def _build_smp(architecture: Architecture, encoder_weights: str | None) -> nn.Module:
    import segmentation_models_pytorch as smp

    known = smp.MODEL_ARCHITECTURES_MAPPING
    if architecture.model not in known:
        raise UserError(f"--model {architecture.model}: none of unet, {', '.join(sorted(known))}")
    base = known[architecture.model]
    # timm's own encoders know one set of weights: smp wants True for it.
    is_timm = str(architecture.encoder).startswith("tu-")
    weights = True if encoder_weights and is_timm else encoder_weights
    network_class: Any = type(base.__name__, (_AnySize, base), {})
    try:
        network: nn.Module = network_class(
            encoder_name=architecture.encoder,
            encoder_weights=weights,
            in_channels=architecture.channels,
            classes=architecture.num_classes,
        )
    except Exception as error:
        raise UserError(_why_not(architecture, encoder_weights, error)) from error
    return network


def _why_not(architecture: Architecture, encoder_weights: str | None, error: Exception) -> str:
    """smp's, timm's and the hub's many exceptions as one line."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    unknown = isinstance(error, (KeyError, ValueError)) and not isinstance(error, OSError)
    if encoder_weights is not None and not unknown:
        return (
            f"--encoder-weights {encoder_weights}: the weights of {architecture.encoder} can't be "
            f"fetched ({reason}); connect to the internet once, or leave the flag out"
        )
    return (
        f"--model {architecture.model} --encoder {architecture.encoder} can't be built: {reason}; "
        "segmentation-models-pytorch lists its encoders in its documentation"
    )
