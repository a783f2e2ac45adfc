"""Prediction in overlapping windows, whose scores are blended without a seam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import Pixels
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.errors import UserError
from unet_ddp.heads import Scores
from unet_ddp.prediction.prediction import ScoreBand
from unet_ddp.prediction.source import SourceImage

if TYPE_CHECKING:
    from unet_ddp.prediction.predictor import Predictor

_WINDOWS = 8  # seen at once on a GPU; on a CPU one at a time is fastest
_UNUSED = 7 / 16
"""Share of an overlap at a window's cut edge that has no weight: there the network lacks context.
The rest, up to the same share from the other window's edge, is a smooth ramp."""


@dataclass(frozen=True)
class Tiling:
    """Square windows that start at multiples of the network's stride.

    So a window has the same pooling grids as the whole image, and the same scores wherever the network's
    receptive field does not reach a cut edge.
    """

    side: int  # side of a window, in pixels of the scaled image
    overlap: float  # share of the side that neighbours have in common
    stride: int  # total downsampling factor of the network, a power of two

    @cached_property
    def window(self) -> int:
        """The side, rounded down to a multiple of the stride."""
        return self.side // self.stride * self.stride

    @cached_property
    def step(self) -> int:
        """The distance between windows, a multiple of the stride."""
        return max(1, int(self.window * (1 - self.overlap)) // self.stride) * self.stride

    def along(self, length: int) -> list[Window]:
        """Return the windows along one side of an image; their weights add up to 1 everywhere."""
        last = max(0, -(-(length - self.window) // self.stride) * self.stride)
        weights: dict[int, NDArray[np.float64]] = {}  # of the window that starts there
        total = np.zeros(length, np.float64)
        for start in (*range(0, last, self.step), last):
            end = min(start + self.window, length)
            weights[start] = self._weight(start, end, length)
            total[start:end] += weights[start]
        windows = []
        for start, weight in weights.items():
            end = start + len(weight)
            share = (weight / total[start:end]).astype(np.float32)
            windows.append(Window(start, end, share))
        return windows

    def _weight(self, start: int, end: int, length: int) -> NDArray[np.float64]:
        """Return weights that are 1 inside and fall to 0 towards edges that cut the image."""
        shared = self.window - self.step
        at = np.arange(end - start) + 0.5
        weight = np.ones(end - start)
        for is_cut, distance in ((start > 0, at), (end < length, end - start - at)):
            if is_cut and shared:
                ramp = ((distance / shared - _UNUSED) / (1 - 2 * _UNUSED)).clip(0, 1)
                weight *= (1 - np.cos(np.pi * ramp)) / 2
        return weight


@dataclass(frozen=True)
class Window:
    """The pixels `start` to `end` of one side of an image, and their weights."""

    start: int
    end: int
    weight: NDArray[np.float32]


def blend(
    read: Callable[[int, int], Pixels],
    predict: Callable[[list[Pixels]], Iterable[Scores]],
    rows: Iterable[Window],
    columns: Iterable[Window],
    *,
    at_once: int = 1,
) -> Iterator[ScoreBand]:
    """Yield the scores of an image in bands from the top, with one row of windows in memory.

    `read` gives the image's rows (rows, W, C) between two, and `predict` the scores (classes, rows,
    columns) of each of at most `at_once` windows (rows, columns, C) of one size. `rows` and `columns` are the
    windows along its sides.
    """
    batches: list[list[Window]] = []
    for window in columns:
        batch = batches[-1] if batches else []
        # The last window may be narrower.
        if 0 < len(batch) < at_once and len(batch[0].weight) == len(window.weight):
            batch.append(window)
        else:
            batches.append([window])
    pending: Scores | None = None  # rows that windows further down reach too
    top = 0
    for row in rows:
        pixels = read(row.start, row.end)
        if row.start > top and pending is not None:
            yield top, pending[:, : row.start - top]
            pending = pending[:, row.start - top :]
        top = row.start
        scores = _blend_row(pixels, predict, batches)  # (classes, rows, width)
        scores *= row.weight[:, None]
        if pending is not None:
            scores[:, : pending.shape[1]] += pending
        pending = scores
    assert pending is not None
    yield top, pending


def _blend_row(
    pixels: Pixels, predict: Callable[[list[Pixels]], Iterable[Scores]], batches: list[list[Window]]
) -> Scores:
    """Return the scores (classes, rows, width) of one row of windows."""
    blended: Scores | None = None
    width = batches[-1][-1].end
    for batch in batches:
        found = predict([pixels[:, window.start : window.end] for window in batch])
        for window, scores in zip(batch, found, strict=True):
            if blended is None:
                blended = np.zeros((len(scores), len(pixels), width), np.float32)
            blended[:, :, window.start : window.end] += scores * window.weight
    assert blended is not None
    return blended


@contextmanager
def explain_memory(side: int, image: str = "") -> Iterator[None]:
    """Make it a UserError that a window of `side` pixels is too large for the memory."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = (
            f"out of memory even in windows of {side} pixels; use a smaller --tile, or --device cpu"
        )
        raise UserError(f"{image}: {reason}" if image else reason) from None


class TiledScores:
    """The blended scores of an image in windows, predicted at each iteration; UserError if a window exceeds the memory."""

    def __init__(self, predictor: Predictor, image: SourceImage) -> None:
        self.predictor = predictor
        self._image: SourceImage | None = image
        self._source = image.source

    def __iter__(self) -> Iterator[ScoreBand]:
        predictor, image = self.predictor, self._image
        if self._source is not None:  # the memory is freed at the end; the next time reads again
            self._image = None
            image = image or predictor.open(self._source)
        assert image is not None
        rows, columns = map(predictor.tiling.along, image.input_size)
        side, at_once = predictor.tiling.window, 1
        if predictor.device.type == "cuda":
            at_once = min(_WINDOWS, predictor.most_at_once((side, side)))
        with explain_memory(side):
            yield from blend(image.read, predictor.scores, rows, columns, at_once=at_once)
