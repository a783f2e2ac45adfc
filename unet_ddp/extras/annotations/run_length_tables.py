"""Tables of run lengths, as `predict.py --rle` and Kaggle's challenges write them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.masks import Size
from unet_ddp.errors import UserError, join_some, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.fields import Fields
from unet_ddp.extras.annotations.masks import NameFinder
from unet_ddp.extras.annotations.regions import Patch

_IMAGES = ("img", "image", "imageid", "filename", "file", "imagename", "name", "id")
_RUNS = ("rlemask", "encodedpixels", "rle", "encoding", "annotation", "segmentation", "predicted")
_CLASSES = ("class", "classid", "classname", "label", "category")
_BOTH = ("imageidclassid", "imagelabel", "imageclass")  # a.jpg_1, a.jpg_Fish
_SIDES = {
    "height": ("height", "imgheight", "imageheight"),
    "width": ("width", "imgwidth", "imagewidth"),
}
_LONGEST = 1 << 28  # characters of one object
_NOTHING = {"", "-1", "nan", "none", "1 0"}
_ONLY_CLASS = "foreground"
_OF_CARVANA = ("img", "rlemask")
"""The columns of Carvana's challenge, which alone counts along the rows."""


class _Columns(NamedTuple):
    """The places of a table's columns."""

    image: int
    runs: int
    label: int | None
    sides: dict[str, int]  # the image's height and width, if they are there
    has_both: bool  # the image's cell ends in its class


class _Row(NamedTuple):
    """An object of a table, or an image without one."""

    line: int
    image: str
    size: Size | None
    label: str
    runs: NDArray[np.int64]  # start, length and so on


def open_run_lengths(path: Path, images: Mapping[str, Path], order: str | None) -> AnnotationSet:
    """Return the annotations in a table; `order` is rows or columns, None for that of its challenge.

    Rows of other images than `images` are not checked: they may be left out.

    Raises:
        UserError: it has no columns of images and run lengths.
    """
    first, *rows = read_rows(path, "FILE", errors="surrogateescape", longest=_LONGEST) or [(0, [])]
    heading = [re.sub(r"[\W_]", "", cell).lower() for cell in first[1]]
    columns = _find_columns(heading)
    if columns is None:
        raise UserError(
            f"{path}: its columns are {shorten(','.join(first[1]))}; a table of run lengths has img,rle_mask "
            "or ImageId,EncodedPixels; pairs of image and mask need no import: train with --list"
        )
    if order is None:
        is_carvana = {heading[columns.image], heading[columns.runs]} == {*_OF_CARVANA}
        order = "rows" if is_carvana else "columns"
    find = cache(NameFinder(images).find)
    found = [_parse_row(path, line, cells, columns, find) for line, cells in rows]
    labels = dict.fromkeys(sorted({row.label for row in found} - {""}, key=_label_order), "")
    notes = [f"run lengths count pixels along the {order}; if the masks are wrong, use --rle-order"]
    overlapping = [row for row in found if _overlap(row.runs)]
    odd = _find_relative(found, overlapping)
    if odd is not None:
        notes.append(
            f"starts count from the end of the run before, as in SIIM-ACR: runs of line {odd} would overlap"
        )
    elif overlapping:
        lines = join_some([str(row.line) for row in overlapping], 3)
        notes.append(f"runs that overlap in one row are drawn as one object: line {lines}")
    return AnnotationSet(labels, partial(_read_table, found, order, odd), notes)


def _label_order(label: str) -> tuple[bool, int, str]:
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label


def _find_columns(heading: list[str]) -> _Columns | None:
    def first(names: tuple[str, ...]) -> int | None:
        return next((heading.index(name) for name in names if name in heading), None)

    image, runs = first((*_BOTH, *_IMAGES)), first(_RUNS)
    if image is None or runs is None or image == runs:
        return None
    places = {side: first(names) for side, names in _SIDES.items()}
    sides = {side: place for side, place in places.items() if place is not None}
    return _Columns(image, runs, first(_CLASSES), sides, heading[image] in _BOTH)


def _parse_row(
    path: Path,
    line: int,
    cells: list[str],
    columns: _Columns,
    find: Callable[[str], str | None],
) -> _Row:
    """Return a row; nothing but its names if `find` finds no image."""

    def read(place: int) -> str:
        return cells[place].strip() if place < len(cells) else ""

    def read_value(place: int) -> str:
        return "" if read(place).lower() in _NOTHING else read(place)

    image, runs, label = read(columns.image), read_value(columns.runs), _ONLY_CLASS
    if columns.has_both:
        image, _, label = image.rpartition("_")
    elif columns.label is not None:
        label = read(columns.label) if runs else read_value(columns.label)
    if image and find(image) is None:
        return _Row(line, image, None, label, _parse_runs("", ""))
    if not image or (runs and not label):
        raise UserError(f"{path}: line {line} names no image, or no class")
    sides = {side: read_value(place) or None for side, place in columns.sides.items()}
    size = Fields(sides, f"line {line}").size("height", "width")
    numbers = _parse_runs(runs, f"image {shorten(image)}: line {line}")
    return _Row(line, image, size, label, numbers)


def _overlap(runs: NDArray[np.int64]) -> bool:
    """Return whether any two runs overlap, if their starts are places in the image."""
    starts, lengths = runs[::2], runs[1::2]
    order = np.argsort(starts, kind="stable")
    return bool(((starts + lengths)[order][:-1] > starts[order][1:]).any())


def _find_relative(rows: list[_Row], overlapping: list[_Row]) -> int | None:
    """Return a line that shows that starts count from the end of the run before; None if they are places.

    Such starts are small numbers: nearly each run would begin before the end of the one before. If a few runs
    are there twice, most rows, or most of the runs in a row, still rise. Two runs show nothing.
    """
    odd = [row for row in overlapping if row.runs.size > 4]
    if 2 * len(odd) <= sum(row.runs.size > 4 for row in rows):
        return None
    if any(row.size is not None and row.runs.sum() > math.prod(row.size) for row in rows):
        return None
    falls = [row.runs[2::2] < (row.runs[::2] + row.runs[1::2])[:-1] for row in odd]
    return odd[0].line if np.concatenate(falls).mean() > 0.5 else None


def _read_table(rows: list[_Row], order: str, odd: int | None) -> Iterator[AnnotatedImage]:
    """Yield the images of a table, each with the objects of all of its rows.

    If runs overlap in line `odd`, starts count from the end of the run before, and the first one from 0.
    """
    images: dict[str, AnnotatedImage] = {}
    for row in rows:
        image = images.setdefault(row.image, AnnotatedImage(row.image, row.size))
        where, starts, advice = f"line {row.line}", row.runs[::2] - 1, ""
        if odd is not None:
            where += f", each start counted from the run before as runs of line {odd} overlap"
            starts = np.cumsum(row.runs)[::2]
            advice = "; use images of the table's size, or remove runs that are there twice"
        if row.runs.size:
            image.add(row.label, _draw_runs, starts, row.runs[1::2], order, advice, where=where)
    yield from images.values()


def _draw_runs(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], order: str, advice: str, size: Size
) -> Patch:
    """Return the object of runs that start at pixels, from 0 along the rows or the columns."""
    height, width = size
    ends = starts + lengths
    if starts.min() < 0 or lengths.min() < 0 or ends.max() > height * width:
        raise UserError(
            f"run lengths from pixel {starts.min() + 1} to {ends.max()}; the image has {width}x{height} pixels, "
            f"1 to {height * width}{advice}"
        )
    steps = np.zeros(height * width + 1, np.int32)
    np.add.at(steps, starts, 1)
    np.add.at(steps, ends, -1)
    inside = np.cumsum(steps[:-1]) > 0
    if order == "rows":
        return Patch(inside.reshape(size))
    return Patch(inside.reshape(width, height).T)


def _parse_runs(text: str, where: str) -> NDArray[np.int64]:
    """Return the numbers of "start length start length …"."""
    words = text.split()
    odd = next((word for word in words if not re.fullmatch(r"\d{1,15}", word)), None)
    if odd is not None:
        raise UserError(f"{where}: {shorten(odd)} among the run lengths; expected whole numbers")
    if len(words) % 2:
        raise UserError(f"{where}: {len(words)} numbers; expected start and length in turn")
    return np.array(words, np.int64)
