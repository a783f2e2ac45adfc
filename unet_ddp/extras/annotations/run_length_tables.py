"""Tables of run lengths, as `predict.py --rle` and Kaggle's challenges write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.masks import Size
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.regions import Patch

_IMAGES = ("img", "image", "imageid", "filename", "file", "imagename", "name", "id")
_RUNS = ("rlemask", "encodedpixels", "rle", "encoding", "annotation", "segmentation", "predicted")
_CLASSES = ("class", "classid", "classname", "label", "category")
_BOTH = ("imageidclassid", "imagelabel", "imageclass")  # a.jpg_1, a.jpg_Fish
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
    has_both: bool  # the image's cell ends in its class


class _Row(NamedTuple):
    """An object of a table, or an image without one."""

    line: int
    image: str
    label: str
    runs: str


def open_run_lengths(path: Path, order: str | None) -> AnnotationSet:
    """Return the annotations in a table; `order` is rows or columns, None for that of its challenge.

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
    found = [_parse_row(path, line, cells, columns) for line, cells in rows]
    labels = dict.fromkeys(sorted({row.label for row in found}, key=_label_order), "")
    note = f"run lengths count pixels along the {order}; if the masks are wrong, use --rle-order"
    return AnnotationSet(labels, partial(_read_table, path, found, order), [note])


def _label_order(label: str) -> tuple[bool, int, str]:
    return not label.isdecimal(), int(label) if label.isdecimal() else 0, label


def _find_columns(heading: list[str]) -> _Columns | None:
    def first(names: tuple[str, ...]) -> int | None:
        return next((heading.index(name) for name in names if name in heading), None)

    image, runs = first((*_BOTH, *_IMAGES)), first(_RUNS)
    if image is None or runs is None or image == runs:
        return None
    return _Columns(image, runs, first(_CLASSES), heading[image] in _BOTH)


def _parse_row(path: Path, line: int, cells: list[str], columns: _Columns) -> _Row:
    if len(cells) <= columns.image:
        raise UserError(f"{path}: line {line} names no image")
    image, runs = cells[columns.image].strip(), ""
    if len(cells) > columns.runs:
        runs = cells[columns.runs].strip()
    label = _ONLY_CLASS
    if columns.has_both:
        image, _, label = image.rpartition("_")
    elif columns.label is not None and columns.label < len(cells):
        label = cells[columns.label].strip()
    if not image or not label:
        raise UserError(f"{path}: line {line} names no image, or no class")
    return _Row(line, image, label, "" if runs.lower() in _NOTHING else runs)


def _read_table(path: Path, rows: list[_Row], order: str) -> Iterator[AnnotatedImage]:
    """Yield the images of a table, each with the objects of all of its rows."""
    images: dict[str, AnnotatedImage] = {}
    for row in rows:
        image = images.setdefault(row.image, AnnotatedImage(row.image, None))
        if row.runs:
            image.add(row.label, _draw_runs, row.runs, order, where=f"line {row.line}")
    yield from images.values()


def _draw_runs(text: str, order: str, size: Size) -> Patch:
    """Return the object of "start length start length …", counted from 1 along the rows or the columns."""
    numbers = _parse_runs(text)
    starts, lengths = numbers[::2] - 1, numbers[1::2]
    height, width = size
    ends = starts + lengths
    if starts.min() < 0 or lengths.min() < 0 or ends.max() > height * width:
        raise UserError(
            f"run lengths from pixel {starts.min() + 1} to {ends.max()}; the image has {width}x{height} pixels, "
            f"1 to {height * width}"
        )
    steps = np.zeros(height * width + 1, np.int32)
    np.add.at(steps, starts, 1)
    np.add.at(steps, ends, -1)
    inside = np.cumsum(steps[:-1]) > 0
    if order == "rows":
        return Patch(inside.reshape(size))
    return Patch(inside.reshape(width, height).T)


def _parse_runs(text: str) -> NDArray[np.int64]:
    words = text.split()
    odd = next((word for word in words if not re.fullmatch(r"\d{1,15}", word)), None)
    if odd is not None:
        raise UserError(f"{shorten(odd)} among the run lengths; expected whole numbers")
    if len(words) % 2:
        raise UserError(f"{len(words)} numbers; expected start and length in turn")
    return np.array(words, np.int64)
