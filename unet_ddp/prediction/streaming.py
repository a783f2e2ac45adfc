"""Readers of images that need not fit into memory, at their own size or scaled down."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import numpy as np

from unet_ddp.data.readers.base import Pixels, Rows
from unet_ddp.data.readers.resize import resize_area

_AT_ONCE = 1 << 24  # pixels that are scaled at a time


class ArrayReader:
    """An image (H, W, C) in memory."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom` (exclusive), (rows, W, C)."""
        return self.pixels[top:bottom]


class ScaledReader:
    """`source` reduced to `size` (height, width), equal to reducing it whole.

    Each new pixel is the mean of its area. Where `p` rows become `q`, groups of `p` rows are
    reduced independently; without small groups, rows are weighted here.
    """

    def __init__(self, source: Rows, size: tuple[int, int]) -> None:
        self.source = source
        self.height, self.width = size
        self.ratio = Fraction(source.height, self.height)
        self._kept: tuple[int, Pixels] | None = None

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`; those of the last call are not read again."""
        first = top
        parts: list[Pixels] = []
        if self._kept is not None:
            kept_top, kept = self._kept
            if kept_top <= top < kept_top + len(kept):
                parts.append(kept[top - kept_top : bottom - kept_top])
                first = top + len(parts[0])
        if first < bottom:
            parts.append(self._scaled(first, bottom))
        rows = cast(Pixels, parts[0] if len(parts) == 1 else np.concatenate(parts))
        self._kept = (top, rows)
        return rows

    def _scaled(self, top: int, bottom: int) -> Pixels:
        if (self.source.height, self.source.width) == (self.height, self.width):
            return self.source.read(top, bottom)
        group = self.ratio.denominator
        at_once = max(1, int(_AT_ONCE / self.source.width / self.ratio))
        if group > max(64, at_once):
            reduce, group = self._weighted, 1
        else:
            reduce = self._grouped
        step = max(group, at_once // group * group)
        begin = top // group * group
        parts = [
            reduce(row, min(row + step, -(-bottom // group) * group, self.height))
            for row in range(begin, bottom, step)
        ]
        return cast(Pixels, np.concatenate(parts)[top - begin : bottom - begin])

    def _grouped(self, top: int, bottom: int) -> Pixels:
        """Return rows that are whole groups."""
        above, below = int(top * self.ratio), int(bottom * self.ratio)
        return resize_area(self.source.read(above, below), (bottom - top, self.width))

    def _weighted(self, top: int, bottom: int) -> Pixels:
        """Return any rows; the last bit may differ from reducing the image whole."""
        edges = np.array([float(row * self.ratio) for row in range(top, bottom + 1)])
        above, below = int(edges[0]), min(self.source.height, int(np.ceil(edges[-1])))
        pixels = self.source.read(above, below)
        rows = np.arange(above, below)
        shared = np.minimum(edges[1:, None], rows + 1) - np.maximum(edges[:-1, None], rows)
        weights = (shared.clip(0) / float(self.ratio)).astype(np.float32)  # (new rows, rows)
        narrow = resize_area(cast(Any, pixels.astype(np.float32)), (len(pixels), self.width))
        mean = np.tensordot(weights, narrow, axes=1)  # (new rows, width, C)
        if pixels.dtype.kind != "f":
            mean = np.rint(mean)
        return cast(Pixels, mean.astype(pixels.dtype))
