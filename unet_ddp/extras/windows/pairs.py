"""Windows as pairs: the path of each names its part of a scene."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.pairs import Pair, Pairs, collect
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError, count_of
from unet_ddp.extras.geo.checks import ground_scale
from unet_ddp.extras.windows.paths import Window, split_window
from unet_ddp.extras.windows.reader import open_scene
from unet_ddp.files import is_address
from unet_ddp.storage import Storage, storage_of

if TYPE_CHECKING:
    from unet_ddp.config import DataConfig

_MARGIN = 96  # pixels of the network's input around a window that is scored
_STRIDE = 32  # of the network: windows at its multiples have the scene's pooling grid


class WindowPairs(Pairs):
    """Windows of scenes, of this machine or in storage."""

    group_rule = "of windows"

    def find_scenes(self) -> tuple[list[tuple[Path, Path]], NDArray[np.int64]]:
        """Return image and mask of each scene, and of each pair its scene's number, and the windows of both, (N, 9)."""
        scenes: dict[tuple[Path, Path], int] = {}
        rows = []
        for pair in self:
            image, window = split_window(pair.image)
            mask, inner = split_window(pair.mask)
            rows.append((scenes.setdefault((image, mask), len(scenes)), *window, *inner))
        return [*scenes], np.array(rows, np.int64).reshape(-1, 9)

    @property
    def storage(self) -> Storage | None:
        """The storage of the first address."""
        files = (file for pair in self for file in (pair.image, pair.mask))
        return next(map(storage_of, filter(is_address, files)), None)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the masks of the scenes."""
        return collect(Pair("", mask, mask) for _, mask in self.find_scenes()[0]).class_names

    def share(self) -> None:
        """Prepare for processes that share this one's memory; see `Pairs.share`."""
        self.scenes, self.rows = self.find_scenes()

    def to_read(self, row: int) -> Pair:
        """Return the paths of a pair, after `share`."""
        scene, *sides = self.rows[row].tolist()
        window, inner = Window(*sides[:4]), Window(*sides[4:])
        inside = None if window == inner else (inner.top - window.top, inner.left - window.left)
        image, mask = self.scenes[scene]
        return Pair("", window.of(image), inner.of(mask), inside=inside)

    def local(self, path: Path, ignore: int | None = None) -> AbstractContextManager[Path]:
        """Return a context of the path itself: its reader finds the scene, wherever that is."""
        return nullcontext(path)

    def files_of(self, path: Path) -> Sequence[Path]:
        """Return nothing: the size of a scene tells whether it changes, its content is too large to read."""
        return []

    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Do nothing: a part of an object is read when it is asked for."""

    def settle(self, split: Split, config: DataConfig) -> Split:
        """Return the split with a gap around blocks that validate, and with context around each of their windows.

        Raises:
            UserError: all scenes to train on are smaller than a window, or no window is left.
        """
        how, training = split.how, split.training
        _check_size(training, config.window or 0)
        if config.blocks is not None and config.window is not None:
            near = find_neighbours(split.validation, config.window)
            kept = [where(pair) not in near for pair in training]
            training = training.select(np.array(kept, bool))
            if not training:
                raise UserError(
                    f"--blocks {config.blocks}: all windows are next to blocks that validate, so that none is left to "
                    "train on; use a larger number, or a smaller --validation"
                )
            how += f"; {count_of(len(kept) - len(training), 'window')} next to those that validate left out"
        validation = WindowPairs(with_context(pair, config) for pair in split.validation)
        return replace(split, training=training, validation=validation, how=how)


def _check_size(training: Pairs, size: int) -> None:
    windows = (split_window(pair.image) for pair in training)
    file, (*_, height, width) = max(
        windows, key=lambda each: min(each[1][2:]), default=("", (size, size))
    )
    if max(height, width) < size:
        raise UserError(
            f"--window {size}: larger than every scene; the largest, {file}, is {width}x{height}; "
            f"use --window {max(32, min(height, width) // 32 * 32)}"
        )


def where(pair: Pair) -> tuple[Path, int, int]:
    """Return a pair's scene, and its first row and column there."""
    file, window = split_window(pair.mask)  # the image of one that validates has more around it
    return file, window.top, window.left


def find_neighbours(pairs: Iterable[Pair], size: int) -> set[tuple[Path, int, int]]:
    """Return the places of windows of a size, and of all windows next to them; see `where`."""
    steps = (-size, 0, size)
    return {
        (file, top + down, left + right)
        for file, top, left in map(where, pairs)
        for down in steps
        for right in steps
    }


def with_context(pair: Pair, config: DataConfig) -> Pair:
    """Return a pair with more of the scene around its image: at its cut edges the network would lack context."""
    file, (top, left, height, width) = split_window(pair.image)
    try:
        header = open_scene(file).header
    except UserError:  # as the scan has said
        return pair
    scale, metres = config.scale, config.ground_resolution
    if metres is not None:
        scale = ground_scale(file, header.ground_resolution, scale, metres)
    unit = find_unit(scale)
    margin = math.ceil(_MARGIN / scale / unit) * unit
    first, before = max(0, top - margin), max(0, left - margin)
    rows = min(header.height, top + height + margin) - first
    columns = min(header.width, left + width + margin) - before
    larger = Window(first, before, rows, columns).of(file)
    return replace(pair, image=larger, inside=(top - first, left - before))


def find_unit(scale: float) -> int:
    """Return the pixels of a scene that are a whole number of the network's strides at `scale`; 1 if few are not."""
    unit = (_STRIDE / Fraction(scale).limit_denominator(10_000)).numerator
    return unit if unit < 16 * _STRIDE else 1
