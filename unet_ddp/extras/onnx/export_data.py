"""The images that an export is scored on, and those that int8 is calibrated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.readers.base import Pixels
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, count_of
from unet_ddp.evaluation.validation_split import advising, find_given, rebuild, resizes_masks
from unet_ddp.extras.onnx.quantisation import CALIBRATION
from unet_ddp.prediction.backends import LoadedModel
from unet_ddp.prediction.paths import find_images
from unet_ddp.prediction.predictor import TILE
from unet_ddp.prediction.source import open_image


@dataclass(frozen=True)
class Scored:
    """The pairs to score on."""

    pairs: SegmentationDataset
    described: str
    """How many they are, and which."""


def find_scored(
    images: str | None,
    masks: str | None,
    saved: SavedModel,
    source: Path,
    model: LoadedModel,
) -> Scored:
    """Return the pairs of two folders, or the validation pairs of the checkpoint's run.

    Raises:
        UserError: they are not on this machine, or the checkpoint does not say which they are.
    """
    if images is not None and masks is not None:
        metres = model.preprocessing.ground_resolution
        pairs = find_given(images, masks, saved.run, model.labels, metres)
        place = f"in {images}"
    else:
        pairs = rebuild(saved.run, source, model.labels).split.validation
        place = "of its run's validation set"
    data = SegmentationDataset(
        pairs,
        model.labels,
        model.preprocessing.format,
        scale=model.preprocessing.scale,
        resize_masks=resizes_masks(saved.run),
    )
    return Scored(data, f"{count_of(len(pairs), 'image')} {place}")


def read_calibration(
    folder: str | None, saved: SavedModel, source: Path, model: LoadedModel
) -> list[Pixels]:
    """Return images at the network's scale, spread over a folder, or over the training images of the run."""
    if folder is not None:
        paths = find_images([folder])
        step = -(-len(paths) // CALIBRATION)
        return [_read(path, model) for path in paths[::step]]
    try:
        pairs = rebuild(saved.run, source, model.labels).split.training
    except UserError as error:
        raise UserError(f"{error}; int8 needs --calibration, too") from None
    images = []
    step = -(-len(pairs) // CALIBRATION)
    for pair in pairs[::step]:
        with pairs.local(pair.image) as path:
            images.append(_read(path, model))
    return images


def _read(path: Path, model: LoadedModel) -> Pixels:
    """Return an image, of a large one a part."""
    with advising("--calibration"), Source(path) as source:
        image = open_image(source, model.preprocessing.format, model.preprocessing.scale)
        return image.read(0, min(TILE, image.input_size[0]))[:, :TILE]
