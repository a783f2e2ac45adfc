"""An image in overlapping windows, whose scores are blended into one whole without a seam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.header import Pixels
from unet_ddp.errors import UserError
from unet_ddp.prediction.prediction import Band, Scores

_UNUSED = 7 / 16
"""Share of an overlap at a window's cut edge that has no weight: there the network lacks its
surroundings. The rest, up to the same share from the other window's edge, is a smooth change."""


@dataclass(frozen=True)
class Tiling:
    """Square windows that start at multiples of the network's stride.

    So a window's pooling grids are those of the whole image, and where the network sees nothing
    of the cut its scores are the whole image's.
    """

    side: int
    """Of a window, in pixels of the scaled image."""
    overlap: float
    """Share of the side that neighbours have in common."""
    stride: int
    """Of the network: how often it halves, as a power of two."""

    def check(self) -> None:
        """Refuse what can't be.

        Raises:
            UserError: naming the flag.
        """
        if self.side < self.stride:
            raise UserError(
                f"--tile {self.side}: smaller than the network's stride of {self.stride} pixels; "
                f"give {self.stride} or more, as 1024"
            )
        if not 0 <= self.overlap < 1:
            raise UserError(f"--overlap {self.overlap:g}: must be 0 or more and below 1")

    @cached_property
    def window(self) -> int:
        """The side, down to a multiple of the stride."""
        return self.side // self.stride * self.stride

    @cached_property
    def step(self) -> int:
        """From one window to the next, a multiple of the stride."""
        return max(1, int(self.window * (1 - self.overlap)) // self.stride) * self.stride

    def along(self, length: int) -> list[Window]:
        """The windows along one side of an image; their weights add up to 1 at every pixel."""
        last = max(0, -(-(length - self.window) // self.stride) * self.stride)
        starts = [*range(0, last, self.step), last]
        ends = [min(start + self.window, length) for start in starts]
        weights = [
            self._weight(start, end, length) for start, end in zip(starts, ends, strict=True)
        ]
        total = np.zeros(length, np.float64)
        for start, end, weight in zip(starts, ends, weights, strict=True):
            total[start:end] += weight
        return [
            Window(start, end, (weight / total[start:end]).astype(np.float32))
            for start, end, weight in zip(starts, ends, weights, strict=True)
        ]

    def _weight(self, start: int, end: int, length: int) -> NDArray[np.float64]:
        """1 inside, falling to 0 towards edges at which the image goes on."""
        shared = self.window - self.step
        at = np.arange(end - start) + 0.5
        weight = np.ones(end - start)
        for cut, distance in ((start > 0, at), (end < length, end - start - at)):
            if cut and shared:
                ramp = ((distance / shared - _UNUSED) / (1 - 2 * _UNUSED)).clip(0, 1)
                weight *= (1 - np.cos(np.pi * ramp)) / 2
        return weight


@dataclass(frozen=True)
class Window:
    """A stretch of one side of an image."""

    start: int
    end: int
    weight: NDArray[np.float32]


def blend(
    read: Callable[[int, int], Pixels],
    predict: Callable[[list[Pixels]], Scores],
    size: tuple[int, int],
    tiling: Tiling,
    *,
    batch_size: int = 1,
) -> Iterator[Band]:
    """The scores of an image, band by band from the top; no more than a row of windows is held.

    Args:
        read: the rows from one to another of the image, (rows, W, C).
        predict: windows of one size to their scores (N, C, rows, columns).
        size: (height, width) of the image.
    """
    across = tiling.along(size[1])
    held: Scores | None = None
    top = 0
    for row in tiling.along(size[0]):
        pixels = read(row.start, row.end)
        if row.start > top and held is not None:  # no window reaches these any more
            yield top, held[:, : row.start - top]
            held = held[:, row.start - top :]
        top = row.start
        scores = _blend_row(pixels, predict, across, batch_size)
        scores *= row.weight[:, None]
        if held is not None:
            scores[:, : held.shape[1]] += held
        held = scores
    assert held is not None
    yield top, held


def _blend_row(
    pixels: Pixels,
    predict: Callable[[list[Pixels]], Scores],
    across: list[Window],
    batch_size: int,
) -> Scores:
    """The scores (C, rows, width) of one row of windows, blended along it."""
    blended: Scores | None = None
    todo = list(across)
    while todo:
        wide = todo[0].end - todo[0].start
        batch = [w for w in todo[:batch_size] if w.end - w.start == wide]
        todo = todo[len(batch) :]
        found = predict([pixels[:, window.start : window.end] for window in batch])
        if blended is None:
            blended = np.zeros((found.shape[1], len(pixels), across[-1].end), np.float32)
        for window, scores in zip(batch, found, strict=True):
            blended[:, :, window.start : window.end] += scores * window.weight
    assert blended is not None
    return blended
