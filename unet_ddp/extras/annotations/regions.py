"""Pixels of annotated objects, from outlines and run lengths.

Coordinates are pixels, x to the right and y down, from the upper left corner of the upper left
pixel. A pixel is inside an outline if its centre is, by the even-odd rule: a hole may be joined to
its outline by a line there and back. The library pycocotools is not used: it does not clip,
and returns unwritten memory for run lengths that end too early (2.0.11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unet_ddp.data.masks import Flags, Size
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.fields import Fields, show, to_numbers, to_points

_MOST = 2**53  # run length
_FARTHEST = 1e6  # pixels from the image's corner
MOST_CROSSINGS = 1 << 23
"""Of an outline and the rows: 400 MB."""


class Patch(NamedTuple):
    """The pixels of an object in a rectangle of its image."""

    pixels: Flags
    top: int = 0
    left: int = 0
    is_clipped: bool = False  # it reaches more than a pixel beyond the image


def fill(parts: Sequence[ArrayLike], size: Size) -> Patch:
    """Return the union of an object's parts, outlines of (x, y) or of x, y, x, y and so on."""
    outlines = [to_points(part, "an outline") for part in parts]
    points = np.concatenate(outlines)
    if not (np.abs(points) < _FARTHEST).all():  # nan is not
        raise UserError("an outline's coordinate is no place in an image")
    first, last = points.min(axis=0), points.max(axis=0)
    ends = np.array(size[::-1])
    left, top = np.floor(first).clip(0, ends).astype(int).tolist()
    right, bottom = np.ceil(last).clip(0, ends).astype(int).tolist()
    pixels = np.zeros((bottom - top, right - left), bool)
    if pixels.size:
        for outline in outlines:
            pixels |= _find_inside(outline - (left, top), pixels.shape)
    return Patch(pixels, top, left, bool((first < -1).any() or (last > ends + 1).any()))


def fill_odd(outlines: Sequence[NDArray[np.float64]], size: Size) -> Patch:
    """Return the pixels within an odd number of outlines (N, 2): an object of several may have holes and parts."""
    patches = [fill([outline], size) for outline in outlines if len(outline)]
    return _join(patches, size, np.logical_xor)


def fill_each(parts: Sequence[Sequence[NDArray[np.float64]]], size: Size) -> Patch:
    """Return the union of an object's parts, each of which is filled as by `fill_odd`."""
    return _join([fill_odd(outlines, size) for outlines in parts], size, np.logical_or)


def _join(patches: Sequence[Patch], size: Size, combine: np.ufunc) -> Patch:
    if len(patches) == 1:
        return patches[0]
    pixels = np.zeros(size, bool)
    for patch in patches:
        height, width = patch.pixels.shape
        view = pixels[patch.top : patch.top + height, patch.left : patch.left + width]
        combine(view, patch.pixels, out=view)
    return Patch(pixels, is_clipped=any(patch.is_clipped for patch in patches))


def fill_shares(points: ArrayLike, whole: float, size: Size) -> Patch:
    """Return the object of an outline x, y, x, y and so on; `whole` is a side of the image."""
    pixels = to_points(points, "points") * size[::-1] / whole
    return fill([pixels], size)


def _find_inside(points: NDArray[np.float64], size: tuple[int, ...]) -> Flags:
    """Return the pixels whose centres are inside the outline (N, 2), by the even-odd rule."""
    after = np.roll(points, -1, axis=0)
    is_down = points[:, 1] < after[:, 1]
    x, y = np.where(is_down, points.T, after.T)  # each edge from its upper end: one there and back
    end_x, end_y = np.where(is_down, after.T, points.T)  # cancels out
    height, width = size
    first = _find_pixels(y, height)
    rows = _find_pixels(end_y, height) - first  # that the edge crosses
    if rows.sum() > MOST_CROSSINGS:
        raise UserError(f"an outline of {len(points)} corners is too long")
    edge = np.repeat(np.arange(len(points)), rows)
    before = np.cumsum(rows) - rows
    row = np.arange(edge.size) + np.repeat(first - before, rows)
    slope = (end_x - x)[edge] / (end_y - y)[edge]
    at = x[edge] + (row + 0.5 - y[edge]) * slope
    column = _find_pixels(at, width)
    crossed = np.zeros((height, width + 1), bool)
    np.logical_xor.at(crossed, (row, column), True)
    inside: Flags = np.logical_xor.accumulate(crossed, axis=1)[:, :-1]
    return inside


def _find_pixels(coordinates: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return the first of `count` pixels in a row whose centres are not before the coordinates."""
    return np.ceil(coordinates - 0.5).clip(0, count).astype(np.intp)


def paste(pixels: Flags, left: int, top: int, size: Size) -> Patch:
    """Return a mask at a place of an image, cut at the image's edges."""
    height, width = size
    rows = slice(max(0, -top), max(0, height - top))
    columns = slice(max(0, -left), max(0, width - left))
    inside = pixels[rows, columns]
    return Patch(inside, max(0, top), max(0, left), inside.shape != pixels.shape)


def decode_runs(counts: Any, size: Size) -> Flags:
    """Return the mask (H, W) of run lengths along the rows, the first one of zeros."""
    height, width = size
    total = height * width
    numbers = to_numbers(counts, "run lengths")
    if not (np.abs(numbers) < _MOST).all() or (numbers != np.round(numbers)).any():
        raise UserError("run lengths that are no whole numbers")
    lengths = numbers.astype(np.int64)
    if not lengths.size or lengths.min() < 0 or lengths.max() > total or lengths.sum() != total:
        raise UserError(f"run lengths that are not those of an image of {total} pixels")
    return np.repeat(np.arange(lengths.size) % 2 == 1, lengths).reshape(size)


def draw_runs(runs: Mapping[str, Any], size: Size) -> Patch:
    """Return the object of COCO's run lengths, along the columns."""
    fields = Fields(runs, "run lengths")
    if fields.has("size"):
        found = to_numbers(fields.get("size"), "the size of run lengths")
        if found.tolist() != [*size]:
            raise UserError(f"run lengths of an image of {_show_size(found)}, not {[*size]}")
    counts = fields.get("counts")
    if isinstance(counts, str):
        return Patch(decode_runs(unpack_counts(counts), size[::-1]).T)
    return Patch(decode_runs(counts, size[::-1]).T)


def _show_size(found: NDArray[np.float64]) -> str:
    if found.size > 8:
        return f"{found.size} sides"
    return f"[{', '.join(f'{side:g}' for side in found)}]"


def unpack_counts(text: str) -> list[int]:
    """Return the run lengths in COCO's compressed text; see rleFrString in its maskApi.c."""
    counts: list[int] = []
    value = shift = 0
    if not text.isascii():
        raise UserError(f"counts is {show(text)}; expected COCO's compressed text")
    for code in text.encode("ascii"):
        value |= (code - 48 & 31) << shift
        shift += 5
        if shift > 60:
            raise UserError("a run length of more than 60 bits")
        if not code - 48 & 32:  # the last five bits of this number
            value -= (code - 48 & 16) << shift - 4
            if len(counts) > 2:
                value += counts[-2]
            counts.append(value)
            value = shift = 0
    return counts


def draw_brush(data: bytes, size: Size) -> Patch:
    """Return the object of Label Studio's brush: RGBA, packed by @thi.ng/rle-pack."""
    text = "".join(f"{byte:08b}" for byte in data)
    position = 0

    def read(bits: int) -> int:
        nonlocal position
        start, position = position, position + bits
        if position > len(text):
            raise UserError("a brush's run lengths end too early")
        return int(text[start:position], 2)

    count, bits = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    height, width = size
    if count != 4 * height * width or bits > 8:
        raise UserError(f"a brush of {count} values for {width}x{height} pixels")
    values = np.empty(count, np.uint8)
    at = 0
    while at < count:
        is_run = read(1)
        stop = at + 1 + read(sizes[read(2)])
        if is_run:
            values[at:stop] = read(bits)
        else:
            values[at:stop] = [read(bits) for _ in range(at, stop)]
        at = stop
    return Patch(values[3::4].reshape(size) > 127)  # alpha
