"""Lists of images: small ones of one size run through the network together, and have the masks of one by one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import IOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, shorten
from unet_ddp.files import as_path
from unet_ddp.heads import Head, Scores
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import SourceImage, in_memory, open_array

_AT_ONCE = 1 << 17
"""Pixels in a batch: on a CPU, more are no faster than one by one."""
_SAFETY = 16
"""Factor: what rounding changes in one image of a batch, times this, is the most that it may in the others."""
_FINEST, _COARSEST = 1e-7, 1e-3
"""Of the largest score: rounding of float32, and what leaves too many pixels open, as bfloat16's."""


def predict_list(
    predictor: Predictor, images: Iterable[str | Path | Image.Image | NDArray[np.generic]]
) -> list[Prediction]:
    """Return the prediction of each image; see `Predictor.batch`."""
    _refuse_one(predictor, images)
    found: dict[int, Prediction] = {}
    waiting: dict[Size, list[tuple[int, SourceImage]]] = {}
    maps: dict[int, Source] = {}  # of those that wait, closed
    count = 0
    for count, image in enumerate(images, 1):
        with _naming(count - 1):
            opened = _open(predictor, image)
        if isinstance(opened, Prediction):
            found[count - 1] = opened
            continue
        if opened.source is not None:
            maps[count - 1] = opened.source
            opened = replace(opened, source=None)
        batch = waiting.setdefault(opened.input_size, [])
        batch.append((count - 1, opened))
        height, width = opened.input_size
        most = min(_AT_ONCE // (height * width), predictor.most_at_once(opened.input_size))
        if len(batch) >= most:
            found.update(_predict(predictor, waiting.pop(opened.input_size)))
    for batch in waiting.values():
        found.update(_predict(predictor, batch))
    for place, source in maps.items():
        with _naming(place), source:
            found[place].mark_nodata(source)
    return [found[place] for place in range(count)]


@contextmanager
def _naming(place: int) -> Iterator[None]:
    """Name an image by its place in the list, in an error of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"images[{place}]: {error}") from None


def _refuse_one(predictor: Predictor, images: object) -> None:
    """Raise a UserError if a list of images is one image, whose rows would be predicted, or no list."""
    shape: tuple[int, ...] = getattr(images, "shape", ())
    channels = predictor.format.channels
    if isinstance(images, (str, Path)):
        name = str(images)
        if os.path.isdir(images):
            raise UserError(f"images: {name} is a folder; give a list of its images")
    elif isinstance(images, Image.Image):
        name = f"Pillow image {images.mode}"
    elif len(shape) == 3 and shape[2] in (channels, channels + 1):  # as `open_array`
        name = f"array {tuple(shape)}"
    elif isinstance(images, (Mapping, bytes, IOBase)) or not (
        hasattr(images, "__iter__") or hasattr(images, "__getitem__")
    ):
        raise UserError(f"images: {shorten(images)}; give a list of images")
    else:
        return
    raise UserError(f"images: {name} is one image; give a list, or call the predictor")


def _open(
    predictor: Predictor, image: str | Path | Image.Image | NDArray[np.generic]
) -> SourceImage | Prediction:
    """Return an image in memory, to wait for others of its size, with its file if it is a map; or its prediction."""
    if isinstance(image, (str, Path)):
        with Source(as_path(str(image))) as source:
            return _begin(predictor, predictor.open(source))
    return _begin(predictor, open_array(image, predictor.format, predictor.preprocessing.scale))


def _begin(predictor: Predictor, image: SourceImage) -> SourceImage | Prediction:
    if not predictor.fits(image.input_size) or predictor.labels.kind != "classes":
        return predictor.predict(image)
    is_map = image.source is not None and image.source.place is not None
    pixels = image.read(0, image.input_size[0])  # while its file is open
    return in_memory(pixels, image.size, image.source if is_map else None)


def _predict(
    predictor: Predictor, batch: list[tuple[int, SourceImage]]
) -> Iterator[tuple[int, Prediction]]:
    """Yield the prediction of each image of a batch, by its place in the list."""
    if len(batch) == 1:
        place, image = batch[0]
        yield place, predictor.predict(image)
        return
    pixels = [image.read(0, image.input_size[0]) for _, image in batch]
    together = predictor.predict_batch(pixels, [image.size for _, image in batch])
    alone = predictor.predict(batch[0][1])
    step = _find_rounding(alone, together[0])
    yield batch[0][0], alone
    for (place, image), prediction in zip(batch[1:], together[1:], strict=True):
        is_clear = step is not None and _is_clear(predictor, prediction, step)
        yield place, prediction if is_clear else predictor.predict(image)


def _find_rounding(alone: Prediction, in_batch: Prediction) -> float | None:
    """Return by how much a score may change in a batch; None for more than leaves most pixels clear.

    A convolution may add up in another order for a batch than for one image.
    """
    (_, expected), (_, found) = next(iter(alone.scores)), next(iter(in_batch.scores))
    largest = float(np.abs(expected).max())
    step = _SAFETY * max(float(np.abs(found - expected).max()), _FINEST * largest)
    return step if step < _COARSEST * largest else None


def _is_clear(predictor: Predictor, prediction: Prediction, step: float) -> bool:
    """Return whether no pixel is so near another class that rounding decides."""
    threshold = prediction.threshold
    return all(_stays(predictor.head, band.scores, threshold, step) for band in prediction.bands())


def _stays(head: Head, scores: Scores, threshold: float | None, step: float) -> bool:
    """Return whether class ids stay the same if each score changes by up to `step`."""
    if len(scores) == 1:
        below, above = (head.find_ids(scores + change, threshold) for change in (-step, step))
        return bool(np.array_equal(below, above))
    highest = np.partition(scores, -2, axis=0)[-2:]
    return bool((highest[1] - highest[0]).min() > 2 * step)
