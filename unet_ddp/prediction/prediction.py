"""Class ids and probabilities at an image's size, from the scores of its scaled copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import numpy as np
from PIL import Image

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import (
    IGNORE_ID,
    Band,
    Flags,
    Ids,
    Mask,
    Shares,
    Size,
    Sources,
    allocate,
    enlargement,
    find_sources,
)
from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.heads import Head, Scores, find_head

ScoreBand = tuple[int, Scores]
"""The first row of a band of scores, and the band."""

_SMALL = 1 << 22  # pixels of an image up to which all scores are upsampled at once
AT_ONCE = 1 << 18
"""Pixels of a band of a larger image: they fit into a core's cache."""


@dataclass
class PredictedBand:
    """Some rows of a prediction at the image's size."""

    rows: slice
    """Their place in the image."""
    scores: Scores
    threshold: float | None
    """As that of `Prediction`."""
    head: Head

    @cached_property
    def ids(self) -> Ids:
        """Class ids (rows, W)."""
        return self.head.find_ids(self.scores, self.threshold)

    @cached_property
    def probabilities(self) -> Scores:
        """Probabilities (C, rows, W)."""
        return self.head.find_probabilities(self.scores)


@dataclass(eq=False)
class Prediction:
    """The prediction for an image of H x W pixels and C classes; each array is computed when it is used.

    Example:
        prediction = Predictor.from_checkpoint("checkpoints/best.pt")("image.jpg")
        print(prediction.mask.shape, prediction.mask.dtype)  # (H, W) uint8, class ids from 0 to C - 1
        print(prediction.probabilities.shape)  # (C, H, W) float32, from 0 to 1
        print(dict(zip(prediction.labels.class_names, prediction.shares)))
        prediction.to_image().save("mask.png")  # with the training masks' values
    """

    scores: Iterable[ScoreBand]
    """Scores at the network's input size, in bands from the top without a gap; iterated over at each use."""
    labels: Labels
    """The classes; `labels.class_names[k]` is the name of class id k."""
    input_size: Size
    """(height, width) of the scores, in pixels."""
    size: Size
    """(height, width) of the image, in pixels."""
    _: KW_ONLY
    threshold: float | None = None
    """For two classes, predict the second where its probability is at least this, 0 < threshold < 1;
    None for the most probable class."""
    nodata: int = 0
    """Number of pixels that `mark_nodata` found."""

    extent: Shares | None = field(default=None, init=False)
    """Each pixel's probability (H, W) to be of an object, in 255ths, once there is a mask of objects."""

    def bands(self, receivers: Sequence[Callable[[Band], None]] = ()) -> Iterator[PredictedBand]:
        """Yield the prediction in bands from the top; the receivers see each after who iterates, and may change it.

        Of an image in windows, the network runs.
        """
        head = find_head(self.labels)
        for top, scores in upsample(self.scores, self.input_size, self.size):
            band = PredictedBand(slice(top, top + scores.shape[1]), scores, self.threshold, head)
            yield band
            for see in receivers:
                see(band)

    def compute(self, receivers: Sequence[Callable[[Band], None]] = ()) -> None:
        """Make the mask, and show each band to the receivers on the way: one pass for all of them."""
        enlarged = enlargement(self.input_size, self.size)
        self.mask, self.extent = self.labels.decode(
            self.bands(receivers), self.size, enlarged=enlarged
        )
        self.mask.flags.writeable = False  # all that uses it sees the same one

    @cached_property
    def mask(self) -> Mask:
        """Class ids (H, W) uint8, 255 where a map has no data; of objects their numbers, uint16 or int32, or 0.

        It is read-only: to change values, take `mask.copy()`.
        """
        self.compute()
        return self.mask  # not this method again, but what it has set

    @property
    def ids(self) -> Ids:
        """Class ids (H, W) uint8; of objects the class of each, on its border too."""
        return self.labels.ids_of(self.mask)

    @property
    def masks(self) -> Flags:
        """Pixels of each class, (C, H, W) bool; classes that overlap share some."""
        return np.stack([*self.labels.planes(self.ids)])

    def mark_nodata(self, source: Source | None) -> None:
        """Set the mask to IGNORE_ID, or an object's numbers to 0, where the image's file is a map and has no data."""
        if source is None or source.place is None:
            return
        objects = self.labels.objects
        with source.reading() as opened:
            if isinstance(opened, Scene):
                self.mask.flags.writeable = True
                self.nodata = opened.mark_nodata(self.mask, IGNORE_ID if objects is None else 0)
        if self.nodata and objects is not None:
            self.mask = objects.renumber(self.mask)
        self.mask.flags.writeable = False

    @property
    def probabilities(self) -> Scores:
        """Probabilities (C, H, W) float32, 0 to 1, computed at each use; the classes of a pixel add up to 1."""
        probabilities = allocate((self.labels.num_classes, *self.size), np.float32)
        for band in self.bands():
            probabilities[:, band.rows] = band.probabilities
        return probabilities

    @cached_property
    def shares(self) -> list[float]:
        """Share of each class in the pixels with data, 0 to 1; they add up to 1 unless classes overlap."""
        ids = self.ids
        size = max(1, ids.size - self.nodata)
        counts = [int(np.count_nonzero(has)) for has in self.labels.planes(ids)]
        if self.labels.objects is not None:  # pixels without data look like background
            counts[0] -= self.nodata
        return [count / size for count in counts]

    def to_image(self) -> Image.Image:
        """Return the mask in the training masks' own values, or the numbers of objects.

        Raises:
            UserError: objects of several classes, or more than 65,535, need 32 bit.
        """
        if self.mask.dtype.itemsize > 2:
            raise UserError(
                f"values up to {self.mask.max()}; a PNG has at most 65535: write the array "
                "prediction.mask, e.g. by tifffile.imwrite"
            )
        return self.labels.to_image(self.mask)


def upsample(bands: Iterable[ScoreBand], input_size: Size, size: Size) -> Iterator[ScoreBand]:
    """Yield scores of `input_size` upsampled bilinearly to `size`, both (height, width).

    As torch's interpolate with align_corners=False, but in bands.
    """
    if input_size == size:
        yield from bands
        return
    height, width = size
    if isinstance(bands, Sequence) and len(bands) == 1 and height * width <= _SMALL:
        yield 0, _resize(bands[0][1], size)  # half the time of what follows
        return
    rows = find_sources(range(height), height, input_size[0])
    for top, scores in upsample_rows(bands, rows, max(1, AT_ONCE // width)):
        yield top, _resize(scores, (scores.shape[1], width))


def upsample_rows(bands: Iterable[ScoreBand], rows: Sources, at_once: int) -> Iterator[ScoreBand]:
    """Yield the scores (C, rows, width of the scores) of `rows`, some at once: each depends on two rows of scores."""
    above, below, weight = rows
    done, kept = 0, np.zeros((0, 0, 0), np.float32)
    for top, scores in bands:
        kept = scores if kept.size == 0 else np.concatenate([kept, scores], axis=1)
        end = top + scores.shape[1]
        start = end - kept.shape[1]
        ready = int(np.searchsorted(below, end))  # rows that need no later band
        while done < ready:
            part = slice(done, min(ready, done + at_once))
            found = kept[:, above[part] - start]
            if weight[part].any():
                found += (kept[:, below[part] - start] - found) * weight[part, None]
            yield done, found
            done = part.stop
        if done < len(above):
            kept = kept[:, above[done] - start :]


def _resize(scores: Scores, size: tuple[int, int]) -> Scores:
    """Return scores (C, rows, width) resized bilinearly to `size` (rows, width)."""
    import cv2

    resized = np.empty((len(scores), *size), np.float32)
    for plane, target in zip(scores, resized, strict=True):
        cv2.resize(plane, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    return resized
