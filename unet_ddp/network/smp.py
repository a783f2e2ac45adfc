"""Networks of segmentation-models-pytorch, for images of any size."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.errors import UserError

_SMALLEST = {"pan": 128}  # pools to a 128th


class _AnySize(nn.Module):
    """A mixin that pads images before one of smp's classes and crops the logits back.

    A base class rather than a wrapper, so that the parameters keep smp's names.
    """

    stride = 32
    """Total downsampling factor of smp's encoders; they refuse other sizes than its multiples."""
    smallest = 1
    """Side of the smallest image, a multiple of the stride or 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of `images` (N, channels, H, W)."""
        height, width = images.shape[-2:]
        rows, columns = -height % self.stride, -width % self.stride
        if self.smallest > 1:
            rows = cast(int, torch.sym_max(rows, self.smallest - height))
            columns = cast(int, torch.sym_max(columns, self.smallest - width))
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
    needs = {"smallest": _SMALLEST.get(model, _AnySize.smallest)}
    network_class: Any = type(known[model].__name__, (_AnySize, known[model]), needs)
    settings = {"encoder_name": encoder, "in_channels": channels, "classes": num_classes}
    try:
        network = _construct(network_class, **settings, encoder_weights=weights)
    except Exception as error:  # smp, timm and the hub raise many kinds
        raise UserError(_explain(model, encoder, encoder_weights, error)) from error
    step = network.encoder.output_stride
    if _AnySize.stride % step:
        raise UserError(
            f"--model {model} --encoder {encoder}: its steps of {step} pixels do not divide "
            f"{_AnySize.stride}; use an encoder with patches of 8, 16 or 32 pixels"
        )
    return cast(nn.Module, network)


def _construct(network_class: Any, **settings: Any) -> Any:
    """Return the network; DPT's vision transformers, made for one size, take any if they are asked to."""
    if network_class.__name__ == "DPT":
        with suppress(TypeError):  # an encoder that knows no such setting
            return network_class(**settings, dynamic_img_size=True)
    return network_class(**settings)


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
