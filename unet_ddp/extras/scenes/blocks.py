"""Class ids of a part of a scene, as the whole scene has them.

A part needs the windows that reach it. So rows and columns may be divided anywhere, and no part has a seam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Ids, Size
from unet_ddp.data.readers.base import Pixels, Rows
from unet_ddp.data.readers.read import Source
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.extras.geo.reader import MapFile, MapRows
from unet_ddp.heads import Scores
from unet_ddp.prediction.pipeline import in_threads
from unet_ddp.prediction.prediction import AT_ONCE, ScoreBand
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import STREAMED, ReadRows, ScaledReader
from unet_ddp.prediction.tiling import Window, blend

BLOCK_BYTES = 150_000_000  # of the pixels and scores of a row of windows
_PIXELS, _SCORES = 3, 2  # copies of them, at the same time
_WINDOWS = 8  # seen at once on a GPU


@dataclass(frozen=True)
class SceneImage:
    """An open scene that is read in windows."""

    rows: Rows
    size: Size  # (height, width)
    input_size: Size  # at the network's scale

    def reader_of(self, columns: range) -> ReadRows:
        """Return what reads rows of some columns of the scaled scene; see `ScaledReader`."""
        if self.size == self.input_size and isinstance(self.rows, MapRows):
            size = self.size[0], len(columns)
            return ScaledReader(partial(self.rows.read, columns=columns), size, size).read
        whole = ScaledReader(self.rows.read, self.size, self.input_size).read
        return lambda top, bottom: whole(top, bottom)[:, columns.start : columns.stop]


def open_scene(predictor: Predictor, source: Source) -> SceneImage | None:
    """Return the scene in a file as the network takes it; None if it can't be read in windows."""
    wanted, scale = predictor.format, predictor.preprocessing.scale
    with source.reading() as opened:
        if not isinstance(opened, MapFile):
            return None
        scale, wanted = opened.find_scale(wanted, scale), opened.find_format(wanted)
    rows = source.rows(wanted, at_least=STREAMED)
    if rows is None:
        return None
    size = rows.height, rows.width
    return SceneImage(rows, size, scaled_size(*size, scale))


def count_blocks(predictor: Predictor, scene: SceneImage) -> int:
    """Return into how many blocks the columns are divided, so that a row of windows fits into the memory."""
    wanted, labels, side = predictor.format, predictor.labels, predictor.tiling.window
    scores = 1 if labels.is_binary else labels.num_classes  # see `Head.reduce`
    pixel_bytes = wanted.channels * np.dtype(wanted.dtype).itemsize
    widest = BLOCK_BYTES // (side * (_PIXELS * pixel_bytes + _SCORES * scores * 4))
    # Of narrower blocks most windows would be predicted twice.
    return -(-scene.input_size[1] // max(widest, 3 * side))


def predict_part(
    predictor: Predictor, scene: SceneImage, rows: range, columns: range, *, threads: int
) -> Iterator[Ids]:
    """Yield the class ids (rows, columns) of a rectangle of the scene in bands from its top.

    Raises:
        UserError: the scene can't be read.
    """
    down, across = (
        Between.of(pixels, large, small)
        for pixels, large, small in zip((rows, columns), scene.size, scene.input_size, strict=True)
    )
    tall, wide = (
        [window for window in predictor.tiling.along(side) if each.reaches(window)]
        for side, each in zip(scene.input_size, (down, across), strict=True)
    )
    left, right = wide[0].start, wide[-1].end
    wide = [Window(each.start - left, each.end - left, each.weight) for each in wide]
    predict: Callable[[list[Pixels]], Iterable[Scores]] = predictor.scores
    if predictor.device.type == "cuda":
        side = predictor.tiling.window
        at_once = min(_WINDOWS, predictor.most_at_once((side, side)))
    else:  # a core for each window, so that the scores do not depend on the number of cores

        def predict(windows: list[Pixels]) -> Iterable[Scores]:
            return in_threads(lambda pixels: predictor.scores([pixels])[0], windows, threads)

        at_once = len(wide)
    bands = blend(scene.reader_of(range(left, right)), predict, tall, wide, at_once=at_once)
    for scores in enlarge(bands, down, across, left):
        yield predictor.head.find_ids(scores, predictor.threshold)


@dataclass(frozen=True)
class Between:
    """Pixels along a side, each between two scores."""

    first: NDArray[np.intp]
    second: NDArray[np.intp]
    weight: NDArray[np.float32]  # of the second

    @classmethod
    def of(cls, pixels: range, large: int, small: int) -> Between:
        """Return pixels of a side of `large` ones that has `small` scores; as torch's align_corners=False."""
        at = (np.arange(pixels.start, pixels.stop) + 0.5) * small / large - 0.5
        first = np.floor(at).clip(0, small - 1).astype(np.intp)
        weight = (at - first).clip(0, 1).astype(np.float32)
        second = np.where(weight > 0, first + 1, first).clip(max=small - 1)
        return cls(first, second, weight)

    def reaches(self, window: Window) -> bool:
        """Return whether pixels depend on a window."""
        return window.end > int(self.first[0]) and window.start <= int(self.second[-1])

    def take(self, scores: Scores, axis: int, start: int, pixels: slice = slice(None)) -> Scores:
        """Return the scores (C, rows, columns) of some pixels; along the axis, `scores` begin at `start`."""
        first, second = self.first[pixels] - start, self.second[pixels] - start
        if not self.weight[pixels].any():  # at scale 1
            found: Scores = scores.take(first, axis)
            return found
        weight = self.weight[pixels].reshape((-1, 1)[: 3 - axis])
        one = scores.take(first, axis)
        return one + (scores.take(second, axis) - one) * weight


def enlarge(
    bands: Iterable[ScoreBand], down: Between, across: Between, left: int
) -> Iterator[Scores]:
    """Yield the scores of pixels in bands, of bands of scores whose first column is `left`."""
    done, start = 0, 0
    kept = np.zeros((0, 0, 0), np.float32)
    for top, band in bands:
        step = max(1, AT_ONCE // band.shape[2])
        for begin in range(0, band.shape[1], step):
            piece = band[:, begin : begin + step]
            if not kept.size:
                start, kept = top + begin, piece
            else:
                kept = np.concatenate([kept, piece], axis=1)
            ready = int(np.searchsorted(down.second, start + kept.shape[1]))
            if ready > done:
                scores = down.take(kept, 1, start, slice(done, ready))
                yield across.take(scores, 2, left)
                done = ready
            if done == len(down.second):
                return
            first = max(start, int(down.first[done]))
            kept, start = kept[:, first - start :], first
