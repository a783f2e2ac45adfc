"""From an image file of any format to an array, scaled down while it is read.

Images keep their type (uint8, uint16, int16, float32) and come with as many channels as the
data set has; masks come as the values that the file holds. EXIF orientation is applied to
whichever file carries it. Nothing is decided per image that is a property of the set.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats import arrays
from unet_ddp.data.formats import pillow as pictures
from unet_ddp.data.formats.header import SUFFIXES, Codes, Header, ImageFormat, Pixels, bits_of, told
from unet_ddp.errors import UserError

Value = TypeVar("Value", bound=np.generic)

_BANDS = 64  # OpenCV takes no more than 128 at a time

__all__ = [
    "SUFFIXES",
    "Codes",
    "Header",
    "ImageFormat",
    "Pixels",
    "bits_of",
    "read_header",
    "read_image",
    "read_mask",
    "read_small",
    "read_with_nodata_mask",
    "resize_area",
    "resize_nearest",
    "scaled_size",
]


def read_header(path: Path) -> Header:
    """Size and kind of the image at `path`; pixels are not decoded.

    Raises:
        UserError: it can't be read.
    """
    with told(path):
        return arrays.array_header(path) if arrays.is_array(path) else pictures.header(path)


def scaled_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """Height and width at `scale`, at least one pixel each."""
    return max(1, round(height * scale)), max(1, round(width * scale))


def read_image(path: Path, wanted: ImageFormat, *, scale: float = 1.0) -> Pixels:
    """The image, with the data set's channels and type, reduced to `scale` of its size.

    Returns:
        (H, W, C) of `wanted.dtype`.

    Raises:
        UserError: it can't be read, or is of another kind than the data set.
    """
    return read_with_nodata_mask(path, wanted, scale=scale)[0]


def read_with_nodata_mask(
    path: Path, wanted: ImageFormat, *, scale: float = 1.0
) -> tuple[Pixels, NDArray[np.bool_] | None]:
    """The image as `read_image` gives it, and which pixels (H, W) hold nothing, where any do.

    Raises:
        UserError: it can't be read, is of another kind than the data set, or holds nan or
            infinity that no-data value explains.
    """
    with told(path):
        if arrays.is_array(path):
            pixels = arrays.read_array(path)
            height, width = pixels.shape[:2]
        else:
            pixels, (height, width) = pictures.read(path, wanted, scale)
    pixels = _as_wanted(pixels, wanted, path)
    size = scaled_size(height, width, scale)
    nodata_mask = None if wanted.nodata is None else find_nodata(pixels, wanted.nodata)
    if nodata_mask is not None and nodata_mask.any():
        pixels = pixels.copy()
        pixels[nodata_mask] = np.array(wanted.fill or 0, pixels.dtype)
        nodata_mask = resize_area(nodata_mask[..., None].astype(np.float32), size)[..., 0] > 0
    refuse_not_finite(pixels, path)
    return resize_area(pixels, size), nodata_mask


def find_nodata(pixels: Pixels, nodata: float) -> NDArray[np.bool_]:
    """Where a pixel (H, W) has the no-data value: in any channel; of 8 bit, where it is also a
    value like others, in all of them."""
    empty = np.isnan(pixels) if math.isnan(nodata) else np.equal(pixels, nodata)
    is_common = pixels.dtype == np.uint8
    return cast(NDArray[np.bool_], empty.all(axis=2) if is_common else empty.any(axis=2))


def refuse_not_finite(pixels: Pixels, path: Path) -> None:
    """Raises UserError for an image (H, W, C) that holds nan or infinity."""
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        count = int((~np.isfinite(pixels)).any(axis=2).sum())
        raise UserError(
            f"{path}: nan or infinity in {count} pixel(s); mend it, or give --nodata nan to leave "
            "such pixels out"
        )


def read_small(path: Path, size: int) -> NDArray[np.float32]:
    """An 8-bit image in grey, (size, size), decoded whole but as small as its format allows.

    Raises:
        UserError: it can't be read.
    """
    with told(path):
        if not arrays.is_array(path):
            return pictures.thumbnail(path, size)
        grey = arrays.read_array(path).mean(axis=2, dtype=np.float32)
    return cast(NDArray[np.float32], resize_area(grey[..., None], (size, size))[..., 0])


def _as_wanted(pixels: Pixels, wanted: ImageFormat, path: Path) -> Pixels:
    if pixels.dtype != wanted.dtype:
        raise UserError(
            f"{path}: {bits_of(str(pixels.dtype))}, the other images have {bits_of(wanted.dtype)}; "
            "convert it"
        )
    found = pixels.shape[2]
    if found == wanted.channels:
        return pixels
    if found == 1 and wanted.channels == 3:
        return cast(Pixels, np.repeat(pixels, 3, axis=2))
    if found - 1 == wanted.channels and read_header(path).has_alpha:
        return pixels[..., :-1]
    raise UserError(f"{path}: {found} channels, the network takes {wanted.channels}; convert it")


def resize_area(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """`pixels` (H, W, C) reduced to `size` (height, width), each new pixel the mean of its area."""
    if pixels.shape[:2] == size:
        return pixels
    import cv2

    parts = [
        np.atleast_3d(
            cv2.resize(
                np.ascontiguousarray(pixels[..., first : first + _BANDS]),
                (size[1], size[0]),
                interpolation=cv2.INTER_AREA,
            )
        )
        for first in range(0, pixels.shape[2], _BANDS)
    ]
    return cast(Pixels, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2))


def read_mask(path: Path, *, scale: float = 1.0) -> Codes:
    """The mask's values, every one of them a value that the file holds, at `scale`.

    Returns:
        (H, W): grey values or palette indices as they are, of 8 bit as uint8 and else as int32;
        colours as 0xRRGGBB, int32.

    Raises:
        UserError: it can't be read.
    """
    with told(path):
        if arrays.is_array(path):
            values = arrays.read_mask_values(path)
            height, width = values.shape[:2]
            values = (
                values if scale == 1 else resize_nearest(values, scaled_size(height, width, scale))
            )
        else:
            values = pictures.read_mask_values(path, scale)
    if values.ndim == 2:
        return values if values.dtype == np.uint8 else values.astype(np.int32, copy=False)
    if values.shape[2] < 3:
        raise UserError(f"{path}: {values.shape[2]} bands; a mask has one, or three of colour")
    red, green, blue = (values[..., band].astype(np.int32) for band in range(3))
    return red << 16 | green << 8 | blue


def resize_nearest(pixels: NDArray[Value], size: tuple[int, int]) -> NDArray[Value]:
    """`pixels` (H, W, …) at `size` (height, width): what lies at the centre of each new pixel, so
    that no value is new."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.intp)
        for new, old in zip(size, pixels.shape, strict=False)
    )
    return cast(NDArray[Value], pixels[rows].take(columns, axis=1))
