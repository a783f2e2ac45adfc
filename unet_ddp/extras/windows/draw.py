"""The windows that training draws: each of the grid once in a pass, moved by a random part of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.masks import Flags, Size
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.data.samplers import Draw
from unet_ddp.extras.windows.pairs import WindowPairs
from unet_ddp.extras.windows.paths import Window, split_window

Corner = NDArray[np.int64]
"""A row and a column."""

_STREAM = 3  # of random numbers: 1 is that of --balance, 2 of --shares


def draw_windows(config: DataConfig, data: PreparedData, seed: int) -> PreparedData:
    """Return the data set with windows as training draws them, and samples of one size."""
    size = config.window
    assert size is not None
    training = DrawnWindows(data.split.training, size)
    sides = [split_window(pair.image)[1][2:] for pair in data.split.validation]
    largest = max((height * width for height, width in sides), default=0)
    return replace(
        data,
        split=replace(data.split, training=training),
        draw=WindowDraw(size, len(training), seed, data.draw),
        crop_size=config.crop_size or find_crop_size(config, data),
        one_size=None,
        most_pixels=max(data.most_pixels, round(largest * config.scale**2)),
    )


def find_crop_size(config: DataConfig, data: PreparedData) -> Size:
    """Return the (height, width) of a window at the network's scale."""
    assert config.window is not None
    if config.ground_resolution is not None and data.crop_size is not None:
        return data.crop_size  # the median of the windows, each at its own scale
    return scaled_size(config.window, config.window, config.scale)


class WindowDraw:
    """Draw of a window, and of where it is moved; a function of (seed, epoch, index).

    Args:
        size: (height and width) of a window.
        count: of the windows.
        seed: of the run.
        inner: a draw by class, whose windows are not moved; or None.
    """

    def __init__(self, size: int, count: int, seed: int, inner: Draw | None) -> None:
        self.size, self.count, self.seed, self.inner = size, count, seed, inner

    def __call__(self, epoch: int, index: int) -> tuple[int, int | None]:
        """Return a number for the window and its move, as `DrawnWindows` reads it, and the class it was drawn for."""
        drawn = None
        if self.inner is not None:
            index, drawn = self.inner(epoch, index)
        if drawn is not None:
            return index, drawn
        generator = np.random.default_rng([self.seed, epoch, index, _STREAM])
        move = int(generator.integers((self.size + 1) ** 2))
        return index + self.count * (1 + move), None


class DrawnWindows(WindowPairs):
    """Windows to train on, each of which may be moved by up to half of its size; as far as others are trained on."""

    def __init__(self, pairs: Iterable[Pair], size: int) -> None:
        super().__init__(pairs)
        self.size = size
        scenes = [split_window(pair.image) for pair in self]
        names = {str(file): k for k, file in enumerate(dict.fromkeys(file for file, _ in scenes))}
        self._scene = np.array([names[str(file)] for file, _ in scenes], np.int64)
        self._windows = np.array([window for _, window in scenes], np.int64).reshape(-1, 4)
        self._areas = [self._find_area(self._scene == k) for k in range(len(names))]

    def _find_area(self, own: Flags) -> tuple[Corner, Corner, Flags]:
        """Return the first pixel of a scene's windows, the one after the last, and which windows of the grid these are."""
        first = self._windows[own, :2].min(axis=0)
        end = (self._windows[own, :2] + self._windows[own, 2:]).max(axis=0)
        cells = (self._windows[own, :2] - first) // self.size
        trained = np.zeros(cells.max(axis=0) + 1, bool)
        trained[tuple(cells.T)] = True
        return first, end, trained

    def to_read(self, row: int) -> Pair:
        """Return the paths of the window that a number of `WindowDraw` stands for, after `share`."""
        move, index = divmod(row, len(self))
        pair = super().to_read(index)
        if not move:
            return pair
        half = self.size // 2
        down, right = (each - half for each in divmod(move - 1, self.size + 1))
        tried = (self._move(index, step) for step in ((down, right), (down, 0), (0, right), (0, 0)))
        window = next(filter(None, tried), None)
        if window is None:
            return pair
        image, mask = (window.of(split_window(path)[0]) for path in (pair.image, pair.mask))
        return replace(pair, image=image, mask=mask)

    def _move(self, index: int, step: tuple[int, int]) -> Window | None:
        """Return a window at its full size, moved; None if it would reach into one that is not trained on."""
        first, end, trained = self._areas[self._scene[index]]
        corner, sides = self._windows[index, :2], self._windows[index, 2:]
        corner = corner + (sides - self.size) // 2 + step
        corner = np.maximum(first, np.minimum(corner, end - self.size))
        last = np.minimum(corner + self.size, end)
        top, left = (corner - first) // self.size
        bottom, right = (last - 1 - first) // self.size
        if not trained[top : bottom + 1, left : right + 1].all():
            return None
        return Window(*corner.tolist(), *(last - corner).tolist())
