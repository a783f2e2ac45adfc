"""Read an image file of any format as an array, reduced while it is read.

Images keep their type (uint8, uint16, int16, float32) and come with the data set's number of
channels; masks come as the values that the file holds. The orientation that a file notes is
applied. What is a property of the data set is never decided per image. What can't be read is a
UserError.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats import arrays, maps, pillow
from unet_ddp.data.formats.header import Codes, Header, ImageFormat, Pixels, as_user_error, bits_of
from unet_ddp.data.formats.resize import resize_area, resize_nearest, scaled_size
from unet_ddp.errors import UserError

READERS = 7
"""Version of the readers, and of what the scan keeps: caches of another one are not used."""


def read_header(path: Path) -> Header:
    """Return size and format of the image at `path`; pixels are not decoded."""
    with as_user_error(path):
        read = arrays.read_header if arrays.is_array(path) else pillow.read_header
        header = read(path)
    place = maps.read_place(path)
    return header if place is None else replace(header, ground_resolution=place.resolution)


def read_image(path: Path, wanted: ImageFormat, *, scale: float = 1.0) -> Pixels:
    """Return the image (H, W, C) as `wanted`, the data set's format, at `scale` of its size."""
    return read_with_nodata_mask(path, wanted, scale=scale)[0]


def read_with_nodata_mask(
    path: Path, wanted: ImageFormat, *, scale: float = 1.0
) -> tuple[Pixels, NDArray[np.bool_] | None]:
    """Return the image as `read_image` does, and a mask (H, W) of its pixels without data.

    The mask is None if the data set has no no-data value. Pixels without data are filled.

    Raises:
        UserError: it has another format than the data set, or holds nan or infinity that is not its
            no-data value.
    """
    with as_user_error(path):
        if arrays.is_array(path):
            pixels = arrays.read_image(path)
            size = scaled_size(pixels.shape[0], pixels.shape[1], scale)
        else:
            pixels, size = pillow.read_image(path, wanted, scale)
    return fit_pixels(pixels, wanted, size, path)


def fit_pixels(
    pixels: Pixels, wanted: ImageFormat, size: tuple[int, int], source: Path | str
) -> tuple[Pixels, NDArray[np.bool_] | None]:
    """Return the pixels (H, W, C) of a file, or of another `source`, as `read_with_nodata_mask` does."""
    pixels = _convert(pixels, wanted, source)
    nodata_mask = None if wanted.nodata is None else find_nodata(pixels, wanted.nodata)
    if nodata_mask is not None and nodata_mask.any():
        pixels = pixels.copy()
        pixels[nodata_mask] = np.array(wanted.fill or 0, pixels.dtype)
        nodata_mask = resize_area(nodata_mask[..., None].astype(np.float32), size)[..., 0] > 0
    elif nodata_mask is not None:
        nodata_mask = np.zeros(size, bool)
    refuse_not_finite(pixels, source)
    return resize_area(pixels, size), nodata_mask


def read_thumbnail(path: Path, size: int) -> NDArray[np.float32]:
    """Return an 8-bit image in grey, (size, size), decoded as small as its format allows."""
    with as_user_error(path):
        if not arrays.is_array(path):
            return pillow.read_thumbnail(path, size)
        grey = arrays.read_image(path).mean(axis=2, dtype=np.float32)
    return cast(NDArray[np.float32], resize_area(grey[..., None], (size, size))[..., 0])


def read_mask(path: Path, *, scale: float = 1.0) -> Codes:
    """Return the mask's values (H, W) at `scale`, every one of them a value that the file holds.

    Grey values and palette indices of 8 bit are uint8, others int32; colours are 0xRRGGBB, int32.
    """
    with as_user_error(path):
        if arrays.is_array(path):
            values: NDArray[Any] = arrays.read_mask(path)
            if scale != 1:
                size = scaled_size(values.shape[0], values.shape[1], scale)
                values = resize_nearest(values, size)
        else:
            values = pillow.read_mask(path, scale)
    if values.ndim == 2:
        return values if values.dtype == np.uint8 else values.astype(np.int32, copy=False)
    if values.min() < 0 or values.max() > 255:
        raise UserError(f"{path}: colours beyond 0 to 255; save the mask with 8 bit, or in grey")
    packed = values[..., 0].astype(np.int32)
    for band in (1, 2):  # in place: such a mask may be large
        packed <<= 8
        packed |= values[..., band]
    return packed


def find_nodata(pixels: Pixels, nodata: float) -> NDArray[np.bool_]:
    """Return a mask (H, W) of the pixels that have the no-data value in any channel.

    In 8-bit images, where it is also a usual value, they have it in all channels.
    """
    empty = np.isnan(pixels) if math.isnan(nodata) else np.equal(pixels, nodata)
    in_channels = np.all if pixels.dtype == np.uint8 else np.any
    return cast(NDArray[np.bool_], in_channels(empty, axis=2))


def refuse_not_finite(pixels: Pixels, source: Path | str) -> None:
    """Raise a UserError if an image (H, W, C) holds nan or infinity."""
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        count = int((~np.isfinite(pixels)).any(axis=2).sum())
        raise UserError(
            f"{source}: nan or infinity in {count} pixel(s); fix it, or train with --nodata nan to ignore "
            "such pixels"
        )


def _convert(pixels: Pixels, wanted: ImageFormat, source: Path | str) -> Pixels:
    """Return `pixels` with the channels of the data set: grey as colour, or without alpha."""
    if pixels.dtype != wanted.dtype:
        raise UserError(
            f"{source}: {bits_of(str(pixels.dtype))}, the other images have {bits_of(wanted.dtype)}; "
            "convert it"
        )
    found = pixels.shape[2]
    if found == wanted.channels:
        return pixels
    if found == 1 and wanted.channels == 3:
        return cast(Pixels, np.repeat(pixels, 3, axis=2))
    if found - 1 == wanted.channels and isinstance(source, Path) and read_header(source).has_alpha:
        return pixels[..., :-1]
    raise UserError(f"{source}: {found} channels, the network takes {wanted.channels}; convert it")
