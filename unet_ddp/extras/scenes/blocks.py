"""Class ids of a part of a scene, as the whole scene has them.

A part needs the windows that reach it. So rows and columns may be divided anywhere, and no part has a seam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from unet_ddp.data.masks import Ids, Size, Sources, find_sources
from unet_ddp.data.readers.base import Pixels
from unet_ddp.data.readers.read import Source
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.extras.geo.reader import MapFile, MapRows
from unet_ddp.heads import Scores
from unet_ddp.prediction.prediction import AT_ONCE, ScoreBand, upsample_rows
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import STREAMED, ReadRows, ScaledReader
from unet_ddp.prediction.threads import in_threads
from unet_ddp.prediction.tiling import Window, blend

BLOCK_BYTES = 150_000_000  # of the pixels and scores of a row of windows
_PIXELS, _SCORES = 3, 2  # copies of them, at the same time
_WINDOWS = 8  # seen at once on a GPU


@dataclass(frozen=True)
class SceneImage:
    """An open scene that is read in windows."""

    file: MapFile
    rows: MapRows
    size: Size  # (height, width)
    input_size: Size  # at the network's scale

    def reader_of(self, columns: range) -> ReadRows:
        """Return what reads rows of some columns of the scaled scene; see `ScaledReader`."""
        if self.size == self.input_size:
            size = self.size[0], len(columns)
            return ScaledReader(partial(self.rows.read, columns=columns), size, size).read
        whole = ScaledReader(self.rows.read, self.size, self.input_size).read
        return lambda top, bottom: whole(top, bottom)[:, columns.start : columns.stop]


def open_scene(predictor: Predictor, source: Source) -> SceneImage | None:
    """Return the scene in a file as the network takes it; None if it can't be read in windows."""
    wanted, scale = predictor.format, predictor.preprocessing.scale
    with source.reading() as opened:
        if not isinstance(opened, MapFile) or opened.layout.pixels < STREAMED:
            return None
        scale, wanted = opened.find_scale(wanted, scale), opened.find_format(wanted)
        rows = opened.rows(wanted, STREAMED)
        if rows is None:
            return None
        size = rows.height, rows.width
        return SceneImage(opened, rows, size, scaled_size(*size, scale))


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
    down, across = map(find_sources, (rows, columns), scene.size, scene.input_size)
    heights, widths = map(predictor.tiling.along, scene.input_size)
    tall, wide = _reach(heights, down), _reach(widths, across)
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


def _reach(windows: Iterable[Window], pixels: Sources) -> list[Window]:
    """Return the windows on which pixels depend."""
    first, second, _ = pixels
    return [each for each in windows if each.end > first[0] and each.start <= second[-1]]


def enlarge(
    bands: Iterable[ScoreBand], down: Sources, across: Sources, left: int
) -> Iterator[Scores]:
    """Yield the scores of a rectangle in bands, of bands of scores whose first column is `left`; see `upsample`."""
    first, second, weight = across
    for _, scores in upsample_rows(bands, down, max(1, AT_ONCE // len(first))):
        found = scores.take(first - left, 2)
        if weight.any():
            found += (scores.take(second - left, 2) - found) * weight
        yield found
