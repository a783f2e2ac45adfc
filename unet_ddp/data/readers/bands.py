"""Images that are arrays of bands, as files of measurements are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import (
    DTYPES,
    Codes,
    Header,
    ImageFormat,
    OpenFile,
    Pixels,
    storage_dtype,
)
from unet_ddp.data.readers.own_reader import check_pixels
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.errors import UserError

MOST_PLANES = 15
"""Classes that the value of a mask can have a bit for, with another one for ignored pixels."""
IGNORED_CODE = 1 << MOST_PLANES
"""Value of a pixel that does not count, in masks of such values."""

_MOST = np.iinfo(np.int32).max


@runtime_checkable
class ByWindows(Protocol):
    """An image of which a part is read without the rest."""

    @property
    def header(self) -> Header:
        """Properties of the whole."""

    def read_window(self, rows: slice, columns: slice) -> Pixels:
        """Return the bands (h, w, C) of a part in the file's own type; alpha, if any, is the last."""


class BandsFile(OpenFile):
    """An open file whose pixels are read as they are, all bands at once."""

    @abstractmethod
    def read_bands(self) -> NDArray[Any]:
        """Return the pixels (H, W, C) in the file's own type, upright; alpha, if any, is the last."""

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all bands, (H, W, C)."""
        return as_pixels(self._read_checked(), self.path)

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the mean of all bands, (size, size)."""
        pixels = as_pixels(self._read_checked(), self.path)
        grey = pixels.mean(axis=2, dtype=np.float32, keepdims=True)
        return resize_area(grey, (size, size))[..., 0]

    def read_mask(self) -> Codes:
        """Return the values of a mask, (H, W), or its colours, (H, W, 3); of `planes`, their codes."""
        bands = self._read_checked(is_mask=True)
        if bands.shape[2] in (2, 4) and self.header.has_alpha:
            if self.planes:  # it may be a class: tifffile and GDAL mark the fourth band by default
                raise UserError(
                    f"{self.path}: the last of {bands.shape[2]} bands is marked as alpha; save them as pages or NPY"
                )
            bands = bands[..., :-1]
        self._check_count(bands.shape[2])
        is_small = storage_dtype(bands.dtype) == "uint8"  # which become colours beside such masks
        with np.errstate(invalid="ignore"):  # nan, which the comparison finds
            values: Codes = bands.astype(np.uint8 if is_small else np.int32)
        wrong = bands[values != bands]
        if wrong.size:
            advice = f"mask value {wrong[0]}; use numbers of at most {_MOST}"
            if not float(wrong[0]).is_integer():
                advice = "mask values are not whole numbers; save one number per class"
            raise UserError(f"{self.path}: {advice}")
        if values.shape[2] == 1:
            values = values[..., 0]
        elif values.shape[2] != 3:
            values = join_planes(np.moveaxis(values != 0, 2, 0))
        return values

    def _read_checked(self, *, is_mask: bool = False) -> Pixels:
        bands = self.read_bands()
        check_pixels(self, bands, "read_bands", is_mask=is_mask)
        return bands

    def _check_count(self, count: int) -> None:
        """Raise a UserError if a mask can't have so many bands."""
        if self.planes and count > MOST_PLANES:
            raise UserError(
                f"{self.path}: {count} bands; of classes that overlap each has one, and they are at "
                f"most {MOST_PLANES}"
            )
        if not self.planes and count not in (1, 3):
            raise UserError(
                f"{self.path}: {count} bands; a mask has one, or three of colour; if each class has a "
                "band, save their argmax"
            )


def join_planes(planes: Iterable[NDArray[np.bool_]]) -> Codes:
    """Return the codes (H, W) of planes (H, W), at most 16: the first is bit 0, and so on."""
    codes: NDArray[np.int32] = np.zeros(1, np.int32)
    for bit, plane in enumerate(planes):
        codes = codes | plane.astype(np.int32) << bit
    if codes.max(initial=0) < 256:
        return codes.astype(np.uint8)
    return codes


def as_pixels(bands: NDArray[Any], source: Path | str) -> Pixels:
    """Return bands (H, W, C) of any type as one of ours; `source` is for messages."""
    dtype = storage_dtype(bands.dtype)
    if dtype not in DTYPES:
        raise UserError(f"{source}: pixels of type {bands.dtype}; save as {', '.join(DTYPES)}")
    pixels: Pixels = bands.astype(dtype, copy=False)
    return pixels * np.uint8(255) if bands.dtype == bool else pixels  # black and white


def as_bands(array: NDArray[Any], source: Path | str) -> NDArray[Any]:
    """Return an array (H, W), (H, W, C), or (C, H, W) if the first axis is the shortest, as (H, W, C)."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise UserError(f"{source}: an array of {array.ndim} axes; save (H, W) or (H, W, C)")
    if array.shape[0] < min(array.shape[1:]):
        return np.moveaxis(array, 0, -1)
    return array
