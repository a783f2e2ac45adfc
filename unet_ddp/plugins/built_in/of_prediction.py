"""Parts that predict, and that write what is predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from unet_ddp.plugins.built_in.parts import Parts

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from unet_ddp.data.labels import Labels
    from unet_ddp.data.readers.base import ImageFormat
    from unet_ddp.prediction.backends import LoadedModel
    from unet_ddp.prediction.config import PredictConfig
    from unet_ddp.prediction.outputs.base import Output

    MakeOutput = Callable[[PredictConfig, Labels, ImageFormat], Output]


class OpenBackend(Protocol):
    """A function that opens a trained network; see `open_checkpoint` of prediction/backends.py."""

    def __call__(
        self,
        path: Path,
        device: torch.device,
        *,
        scale: float | None = ...,
        fold: bool = ...,
        bfloat16: bool = ...,
        network: str | None = ...,
        runtime: str | None = ...,
    ) -> LoadedModel:
        """Return the network of a file."""


def _checkpoints() -> OpenBackend:
    from unet_ddp.prediction.backends import open_checkpoint

    return open_checkpoint


def _onnx() -> OpenBackend:
    from unet_ddp.extras.onnx.backend import open_onnx

    return open_onnx


BACKENDS: Parts[OpenBackend] = {
    "pt": _checkpoints,
    "pth": _checkpoints,
    "ckpt": _checkpoints,
    "onnx": _onnx,
}
"""By suffix, when a trained network is loaded."""


def _mask_file() -> MakeOutput:
    from unet_ddp.prediction.outputs.mask import MaskFile

    return MaskFile


def _no_mask() -> MakeOutput:
    from unet_ddp.prediction.outputs.no_mask import NoMask

    return NoMask


def _class_masks() -> MakeOutput:
    from unet_ddp.extras.overlap.output import ClassMasks

    return ClassMasks


def _overlay() -> MakeOutput:
    from unet_ddp.prediction.outputs.overlay import Overlay

    return Overlay


def _probabilities() -> MakeOutput:
    from unet_ddp.extras.outputs.probabilities import Probabilities

    return Probabilities


def _rle() -> MakeOutput:
    from unet_ddp.extras.outputs.rle import RunLengths

    return RunLengths


def _objects() -> MakeOutput:
    from unet_ddp.extras.objects.table import ObjectTable

    return ObjectTable


def _counts() -> MakeOutput:
    from unet_ddp.extras.objects.table import CountTable

    return CountTable


def _polygons() -> MakeOutput:
    from unet_ddp.extras.outputs.polygons import Polygons

    return Polygons


def _rank() -> MakeOutput:
    from unet_ddp.extras.rank.output import Rank

    return Rank


def _annotations() -> MakeOutput:
    from unet_ddp.extras.outputs.annotations import open_annotations

    return open_annotations


def _label_studio() -> MakeOutput:
    from unet_ddp.extras.outputs.label_studio import LabelStudioFile

    return LabelStudioFile


OUTPUTS: Parts[MakeOutput] = {
    "mask": _mask_file,
    "no_mask": _no_mask,
    "class_masks": _class_masks,
    "overlay": _overlay,
    "probabilities": _probabilities,
    "rle": _rle,
    "objects": _objects,
    "counts": _counts,
    "polygons": _polygons,
    "rank": _rank,
    "annotations": _annotations,
    "label_studio": _label_studio,
}
"""When a prediction begins, by the setting or --write."""
