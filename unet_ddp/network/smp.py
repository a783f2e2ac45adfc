"""Networks of segmentation-models-pytorch, for images of any size."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.errors import UserError


class _AnySize(nn.Module):
    """A mixin that pads images before one of smp's classes and crops the logits back.

    A base class rather than a wrapper, so that the parameters keep smp's names.
    """

    stride = 32
    """Total downsampling factor of smp's encoders; they refuse other sizes than its multiples."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of `images` (N, channels, H, W)."""
        height, width = images.shape[-2:]
        rows, columns = -height % self.stride, -width % self.stride
        # Exported, the network is for any size, whatever the example's needs: always pad.
        if torch.compiler.is_exporting() or rows or columns:
            images = F.pad(images, (0, columns, 0, rows))
        logits: Tensor = super().forward(images)
        return logits[..., :height, :width]


def build(
    model: str, encoder: str, *, channels: int, num_classes: int, encoder_weights: str | None
) -> nn.Module:
    """Return smp's `model` on `encoder`, with new or downloaded weights.

    Raises:
        UserError: the model or encoder is unknown, or its weights can't be downloaded.
    """
    import segmentation_models_pytorch

    known = segmentation_models_pytorch.MODEL_ARCHITECTURES_MAPPING
    if model not in known:
        raise UserError(f"--model {model}: unknown; expected one of {', '.join(sorted(known))}")
    if not _is_known(encoder):
        raise UserError(
            f"--model {model} --encoder {encoder}: can't be built (neither segmentation-models-pytorch "
            "nor timm, as tu-NAME, has this encoder); see the list in the former's documentation"
        )
    # timm's own encoders have one set of weights: smp wants True for it.
    weights = True if encoder_weights and encoder.startswith("tu-") else encoder_weights
    network_class: Any = type(known[model].__name__, (_AnySize, known[model]), {})
    try:
        network: nn.Module = network_class(
            encoder_name=encoder, encoder_weights=weights, in_channels=channels, classes=num_classes
        )
    except Exception as error:  # smp, timm and the hub raise many kinds
        raise UserError(_explain(model, encoder, encoder_weights, error)) from error
    return network


def _is_known(encoder: str) -> bool:
    """Return whether smp or timm has this encoder; timm's other names are addresses of a hub or a folder."""
    import timm
    from segmentation_models_pytorch.encoders import encoders

    if not re.fullmatch(r"[\w.-]+", str(encoder), re.ASCII):
        return False
    return encoder in encoders or timm.is_model(re.sub("^(tu|timm)-", "", encoder))


def _explain(model: str, encoder: str, encoder_weights: str | None, error: Exception) -> str:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    is_unknown = isinstance(error, (KeyError, ValueError)) and not isinstance(error, OSError)
    if encoder_weights is not None and not is_unknown:
        return (
            f"--encoder-weights {encoder_weights}: can't download the weights of {encoder} "
            f"({reason}); connect to the internet once, or leave the flag out"
        )
    return (
        f"--model {model} --encoder {encoder}: can't be built ({reason}); "
        "see the list of encoders in segmentation-models-pytorch's documentation"
    )
