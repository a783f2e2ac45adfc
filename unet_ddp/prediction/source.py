"""Images opened for prediction, at the network's scale: in memory, or read and scaled in bands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from numbers import Real
from os import PathLike
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from unet_ddp.data.masks import Size
from unet_ddp.data.readers import bands
from unet_ddp.data.readers.base import ImageFormat, Pixels, Scene, TooLargeError
from unet_ddp.data.readers.masked import refuse_masked
from unet_ddp.data.readers.pictures import decode_picture
from unet_ddp.data.readers.read import Source, find_reader
from unet_ddp.data.readers.resize import fit_pixels, resize_area, scaled_size
from unet_ddp.errors import UserError, shorten

STREAMED = 1 << 24
"""Pixels from which an image is read in bands where its reader can."""
AT_ONCE = 1 << 24
"""Pixels that are scaled at a time."""

ReadRows = Callable[[int, int], Pixels]
"""Rows (rows, W, C) of an image, between two."""


@dataclass(frozen=True)
class SourceImage:
    """An image at the network's scale."""

    read: ReadRows  # of the scaled image
    input_size: Size  # of that
    size: Size  # of the image itself
    source: Source | None = None  # its file; None for an image that was passed as an array

    def read_reduced(self, longest: int) -> Pixels:
        """Return all of it (H, W, C), its longer side at most `longest` pixels."""
        scale = min(1.0, longest / max(self.input_size))
        size = scaled_size(*self.input_size, scale)
        return ScaledReader(self.read, self.input_size, size).read(0, size[0])


def open_image(source: Source, wanted: ImageFormat, scale: float) -> SourceImage:
    """Open an image, scaled; a large one is read when its rows are asked for, where its reader can.

    On a map, the scale is that for its ground resolution, and its own no-data value counts.
    """
    reader = find_reader(source.path)
    try:
        if issubclass(reader, Scene):
            with source.reading() as opened:
                if isinstance(opened, Scene):
                    scale = opened.find_scale(wanted, scale)
                    wanted = opened.find_format(wanted)
            rows = source.rows(wanted, at_least=STREAMED)
            if rows is not None:
                size = rows.height, rows.width
                scaled = scaled_size(*size, scale)
                return SourceImage(ScaledReader(rows.read, size, scaled).read, scaled, size, source)
        with source.reading() as opened:
            size = opened.header.size
        pixels, _ = source.image(wanted, scale=scale)
    except TooLargeError as error:
        missing = reader.missing() if issubclass(reader, Scene) else ""
        if not missing:
            raise
        raise UserError(f"{error}, or read it in windows: {missing}") from None
    return in_memory(pixels, size, source)


def open_array(
    image: Image.Image | NDArray[np.generic], wanted: ImageFormat, scale: float
) -> SourceImage:
    """Scale a Pillow image, or an array as one in an NPY file; what a file is refused for, they are."""
    if isinstance(image, Image.Image) and image.mode != "F":
        name = f"Pillow image {image.mode}"
        pixels = decode_picture(image, wanted.channels, name)
    else:
        given: Any = image
        if isinstance(given, (list, tuple)):
            raise UserError(f"{len(given)} images at once; use predictor.batch(images)")
        nodata = "which has none" if wanted.nodata is None else f"{wanted.nodata:g}"
        refuse_masked(given, "the image is", f"or with the no-data value of the network, {nodata}")
        values = _as_numbers(image)
        name = f"array {values.shape}"
        if values.ndim == 4:
            name += ", several images, for predictor.batch(images)"
        counts = wanted.channels, wanted.channels + 1  # with alpha
        if values.ndim != 3 or values.shape[2] not in counts or values.shape[0] in counts:
            values = bands.as_bands(values, name)  # else (H, W, channels), however few its rows are
        pixels = bands.as_pixels(values, name)
    if not pixels.size:
        raise UserError(f"{name}: has no pixels")
    size = pixels.shape[0], pixels.shape[1]
    scaled, _ = fit_pixels(pixels, wanted, scaled_size(*size, scale), name)
    return in_memory(scaled, size)


def _as_numbers(given: object) -> NDArray[np.generic]:
    """Return an array, or what becomes one; refuse all else, as open files."""
    with suppress(TypeError, ValueError):
        values = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
        if values.ndim:
            return values
    raise UserError(
        f"{shorten(given)}: is no image; give a path, an array, or what Image.open of Pillow returns"
    )


def check_images(images: object, channels: int) -> None:
    """Refuse what is no tensor (N, H, W, channels)."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[3] != channels:
        shape = tuple(getattr(images, "shape", ()))
        found = f"a {type(images).__name__} {shape}" if shape else shorten(images)
        raise UserError(f"images: {found}; expected a tensor (N, H, W, {channels})")


def in_memory(pixels: Pixels, size: Size, source: Source | None = None) -> SourceImage:
    """Return an image of a `size` (height, width), of which the scaled pixels (H, W, C) are known."""
    return SourceImage(partial(_rows_of, pixels), (pixels.shape[0], pixels.shape[1]), size, source)


def _rows_of(pixels: Pixels, top: int, bottom: int) -> Pixels:
    return pixels[top:bottom]


class ScaledReader:
    """An image of a `size` (height, width) reduced to `scaled`, equal to reducing it whole.

    Each new pixel is the mean of its area. Where `p` rows become `q`, groups of `p` rows are
    reduced independently; without small groups, rows are weighted here.
    """

    def __init__(self, read: ReadRows, size: Size, scaled: Size) -> None:
        self._read = read
        self._is_scaled = size != scaled
        self._height, self._width = size
        self._new_height, self._new_width = scaled
        self._ratio = Fraction(self._height, self._new_height)
        self._kept_top = 0
        self._kept: Pixels = np.empty((0, 0, 0), np.uint8)

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`; rows of the last call are not read again."""
        rows = self._kept[max(0, top - self._kept_top) : max(0, bottom - self._kept_top)]
        read_to = top + len(rows)
        if top < self._kept_top or not len(rows):
            rows = self._scaled(top, bottom)
        elif read_to < bottom:
            rows = np.concatenate([rows, self._scaled(read_to, bottom)])
        self._kept_top, self._kept = top, rows
        return rows

    def _scaled(self, top: int, bottom: int) -> Pixels:
        if not self._is_scaled:
            return self._read(top, bottom)
        reduce, group = self._grouped, self._ratio.denominator
        at_once = max(1, int(AT_ONCE / self._width / self._ratio))
        if group > max(64, at_once):
            reduce, group = self._weighted, 1
        step = max(group, at_once // group * group)
        begin = top // group * group
        end = min(-(-bottom // group) * group, self._new_height)
        chunks = [reduce(row, min(row + step, end)) for row in range(begin, bottom, step)]
        return np.concatenate(chunks)[top - begin : bottom - begin]

    def _grouped(self, top: int, bottom: int) -> Pixels:
        """Return rows that are whole groups."""
        pixels = self._read(int(top * self._ratio), int(bottom * self._ratio))
        return resize_area(pixels, (bottom - top, self._new_width))

    def _weighted(self, top: int, bottom: int) -> Pixels:
        """Return any rows; the last bit may differ from reducing the image whole."""
        edges = np.array([float(row * self._ratio) for row in range(top, bottom + 1)])
        above = int(edges[0])
        below = min(self._height, int(np.ceil(edges[-1])))
        pixels = self._read(above, below)
        rows = np.arange(above, below)
        shared = np.minimum(edges[1:, None], rows + 1) - np.maximum(edges[:-1, None], rows)
        weights = (shared.clip(0) / float(self._ratio)).astype(np.float32)  # (new rows, rows)
        floats = cast(Any, pixels.astype(np.float32))
        narrow = resize_area(floats, (len(pixels), self._new_width))
        # One row of each at a time: the sums of a matrix product depend on what else is in it.
        first = np.floor(edges[:-1]).astype(int) - above
        mean: Any = np.zeros((len(first), *narrow.shape[1:]), np.float32)  # (new rows, width, C)
        for k in range(math.ceil(self._ratio) + 1):
            row = np.minimum(first + k, len(narrow) - 1)
            share = weights[np.arange(len(row)), row] * np.float32(first + k < len(narrow))
            mean += share[:, None, None] * narrow[row]
        if pixels.dtype.kind != "f":
            mean = np.rint(mean)
        reduced: Pixels = mean.astype(pixels.dtype)
        return reduced


def check_models(sources: Sequence[object], scale: object) -> None:
    """Refuse what names no checkpoint, and a scale that is no number."""
    if not sources:
        raise UserError("no checkpoint was named; give the path of one, or several")
    for source in sources:
        if not isinstance(source, (str, PathLike)):
            raise UserError(
                f"{shorten(source)}: is no path of a checkpoint; several are from_checkpoint('a.pt', 'b.pt')"
            )
    if isinstance(scale, bool) or not isinstance(scale, Real | None):
        raise UserError(f"scale: {shorten(scale)}; expected a number")
