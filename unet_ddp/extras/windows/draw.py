"""The windows that training draws: each of the grid once in a pass, moved by a random part of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.masks import Flags, Size
from unet_ddp.data.pairs import Pair
from unet_ddp.data.samplers import Draw
from unet_ddp.extras.windows.pairs import WindowPairs
from unet_ddp.extras.windows.paths import Window, split_window

Corner = NDArray[np.int64]
"""A row and a column."""

_SMALLEST = 16  # pixels on a side of a crop
_STREAM = 3  # of random numbers: 1 is that of --balance, 2 of --shares


def draw_windows(config: DataConfig, data: PreparedData, seed: int) -> PreparedData:
    """Return the data set with windows as training draws them, and samples of one size."""
    size = config.window
    assert size is not None
    training = DrawnWindows(data.split.training, size)
    scored = [split_window(pair.image)[1] for pair in data.split.validation]
    most = max((each.height * each.width for each in scored), default=0)
    return replace(
        data,
        split=replace(data.split, training=training),
        draw=partial(draw_window, size=size, count=len(training), seed=seed, inner=data.draw),
        crop_size=config.crop_size or find_crop_size(config, data),
        one_size=None,
        most_pixels=max(data.most_pixels, round(most * config.scale**2)),
    )


def find_crop_size(config: DataConfig, data: PreparedData) -> Size:
    """Return the (height, width) of a window at the network's scale, at least that of a crop."""
    assert config.window is not None
    if config.ground_resolution is not None and data.crop_size is not None:
        return data.crop_size  # the median of the windows, each at its own scale
    side = max(_SMALLEST, round(config.window * config.scale))
    return side, side


def draw_window(
    epoch: int, index: int, *, size: int, count: int, seed: int, inner: Draw | None
) -> tuple[int, int | None]:
    """Return a number for a window and its move, as `DrawnWindows` reads it, and the class it was drawn for.

    It is a function of the seed, the epoch and the index. Windows of `inner`, a draw by class, are not moved.

    Args:
        epoch: passes that are done.
        index: of the sample in its pass.
        size: (height and width) of a window.
        count: of the windows.
        seed: of the run.
        inner: a draw by class, or None.
    """
    drawn = None
    if inner is not None:
        index, drawn = inner(epoch, index)
    if drawn is not None:
        return index, drawn
    move = np.random.default_rng([seed, epoch, index, _STREAM]).integers((size + 1) ** 2)
    return index + count * (1 + int(move)), None


class DrawnWindows(WindowPairs):
    """Windows to train on, each of which may be moved by up to half of its size; as far as others are trained on."""

    def __init__(self, pairs: Iterable[Pair], size: int) -> None:
        super().__init__(pairs)
        self.size = size
        self.share()
        numbers, windows = self.rows[:, 0], self.rows[:, 1:5]
        self._areas = [_find_area(windows[numbers == k], size) for k in range(len(self.scenes))]

    def to_read(self, row: int) -> Pair:
        """Return the paths of the window that a number of `draw_window` stands for."""
        move, index = divmod(row, len(self))
        if move:
            half = self.size // 2
            down, right = (each - half for each in divmod(move - 1, self.size + 1))
            image, mask = self.scenes[self.rows[index, 0]]
            for step in ((down, right), (down, 0), (0, right), (0, 0)):
                if window := self._move(index, step):
                    return Pair("", window.of(image), window.of(mask))
        return super().to_read(index)

    def _move(self, index: int, step: tuple[int, int]) -> Window | None:
        """Return a window at its full size, moved; None if it would reach into one that is not trained on."""
        scene, *window = self.rows[index, :5]
        first, end, trained = self._areas[scene]
        corner = np.array(window[:2]) + (np.array(window[2:]) - self.size) // 2 + step
        corner = np.maximum(first, np.minimum(corner, end - self.size))
        last = np.minimum(corner + self.size, end)
        top, left = (corner - first) // self.size
        bottom, right = (last - 1 - first) // self.size
        if not trained[top : bottom + 1, left : right + 1].all():
            return None
        return Window(*corner.tolist(), *(last - corner).tolist())


def _find_area(windows: NDArray[np.int64], size: int) -> tuple[Corner, Corner, Flags]:
    """Return the first pixel of windows (N, 4), the one after the last, and which windows of the grid they are."""
    first, end = windows[:, :2].min(axis=0), (windows[:, :2] + windows[:, 2:]).max(axis=0)
    cells = (windows[:, :2] - first) // size
    trained = np.zeros(cells.max(axis=0) + 1, bool)
    trained[tuple(cells.T)] = True
    return first, end, trained
