"""A warning of masks of noise: an image's values are in another scale than the training images'."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from statistics import fmean
from threading import Lock

from unet_ddp.data.readers.read import Source
from unet_ddp.data.value_scales import SCALES, Scale, Values, are_apart
from unet_ddp.files.output import say
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import STREAMED, SourceImage


def watch_scale(predictor: Predictor) -> None:
    """Let a predictor warn of the first file in another scale as it opens it, but for those read in bands."""
    given = predictor.preprocessing
    trained = Values(given.low, given.high, fmean(given.fill))
    if scales := SCALES.get(given.dtype):
        predictor.open = partial(_open, predictor.open, scales, trained, Lock())


def _open(
    open_file: Callable[[Source], SourceImage],
    scales: tuple[Scale, ...],
    trained: Values,
    once: Lock,
    source: Source,
) -> SourceImage:
    """Return the image in a file; the lock is taken by the one that is warned of."""
    image = open_file(source)
    if once.locked() or prod(image.size) >= STREAMED:
        return image
    pixels = image.read(0, image.input_size[0])  # in memory already
    found = Values(float(pixels.min()), float(pixels.max()), float(pixels.mean()))
    dim, bright = sorted([found, trained], key=lambda values: values.high)
    is_apart = any(are_apart(scale, dim, bright) for scale in scales)
    if is_apart and once.acquire(blocking=False):
        line = f"warning: {source.path}: values {found}; the training images' are {trained}: save it in their scale"
        say(line)
    return image
