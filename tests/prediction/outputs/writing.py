"""Outputs of predictions that no network made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask, Shares
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.distributed.world import World
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.outputs.records import Records
from unet_ddp.prediction.prediction import Prediction

Kind = TypeVar("Kind", bound=Output)


def make(kind: Callable[..., Kind], labels: Labels, **settings: Any) -> Kind:
    return kind(PredictConfig((), **settings), labels, ImageFormat(3))


def image_files(image: str | Path, mask: str | Path = "a_mask.png", index: int = 0) -> ImageFiles:
    path = Path(image)
    return ImageFiles(index, path, Source(path), Path(mask), path.name)


def predicted(mask: Mask, labels: Labels, extent: Shares | None = None) -> Prediction:
    size = mask.shape[0], mask.shape[1]
    prediction = Prediction((), labels, size, size)
    prediction.mask, prediction.extent = mask, extent
    return prediction


def merge(output: Output, images: Sequence[tuple[str | Path, Prediction]]) -> Path:
    """Write the file of all images, and return its path."""
    with closing(Records(output)) as records:
        for index, (name, prediction) in enumerate(images):
            records.add(image_files(name, index=index), prediction)
        records.merge(World())
    assert output.path is not None
    return output.path
