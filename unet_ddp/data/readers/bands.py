"""Images that are arrays of bands, as files of measurements are."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import DTYPES, ImageFormat, OpenFile, Pixels, storage_dtype
from unet_ddp.data.readers.resize import resize_area, resize_nearest, scaled_size
from unet_ddp.errors import UserError

_MOST = np.iinfo(np.int32).max


class BandsFile(OpenFile):
    """An open file whose pixels are read as they are, all bands at once."""

    @abstractmethod
    def read_bands(self) -> NDArray[Any]:
        """Return the pixels (H, W, C) in the file's own type, upright; alpha, if any, is the last."""

    def read(self, wanted: ImageFormat, scale: float) -> tuple[Pixels, tuple[int, int]]:
        """Return all bands, (H, W, C), and the size that `scale` asks for."""
        pixels = as_pixels(self.read_bands(), self.path)
        return pixels, scaled_size(pixels.shape[0], pixels.shape[1], scale)

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the mean of all bands, (size, size)."""
        grey = as_pixels(self.read_bands(), self.path).mean(axis=2, dtype=np.float32)
        return cast(NDArray[np.float32], resize_area(grey[..., None], (size, size))[..., 0])

    def read_mask(self, scale: float) -> NDArray[np.int32]:
        """Return the values of a mask, (H, W), or its colours, (H, W, C)."""
        bands = self.read_bands()
        if bands.shape[2] in (2, 4) and self.header.has_alpha:
            bands = bands[..., :-1]
        if bands.shape[2] not in (1, 3):
            raise UserError(
                f"{self.path}: {bands.shape[2]} bands; a mask has one, or three of colour; if each "
                "class has a band, save their argmax"
            )
        with np.errstate(invalid="ignore"):  # nan, which the comparison finds
            values = bands.astype(np.int32)
        wrong = bands[values != bands]
        if wrong.size and not float(wrong[0]).is_integer():
            raise UserError(
                f"{self.path}: mask values are not whole numbers; save one number per class"
            )
        if wrong.size:
            raise UserError(f"{self.path}: mask value {wrong[0]}; use numbers of at most {_MOST}")
        if values.shape[2] == 1:
            values = values[..., 0]
        if scale == 1:
            return values
        return resize_nearest(values, scaled_size(values.shape[0], values.shape[1], scale))


def as_pixels(bands: NDArray[Any], source: Path | str) -> Pixels:
    """Return bands (H, W, C) of any type as one of ours; `source` is for messages."""
    dtype = storage_dtype(bands.dtype)
    if dtype not in DTYPES:
        raise UserError(f"{source}: pixels of type {bands.dtype}; save as {', '.join(DTYPES)}")
    return cast(Pixels, bands.astype(dtype, copy=False))


def as_bands(array: NDArray[Any], source: Path | str) -> NDArray[Any]:
    """Return an array (H, W), (H, W, C), or (C, H, W) if the first axis is the shortest, as (H, W, C)."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise UserError(f"{source}: an array of {array.ndim} axes; save (H, W) or (H, W, C)")
    return np.moveaxis(array, 0, -1) if array.shape[0] < min(array.shape[1:]) else array
