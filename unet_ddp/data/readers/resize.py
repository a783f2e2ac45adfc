"""Images and masks at another size, and pixels of a file as a data set wants them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import ImageFormat, Pixels, bits_of
from unet_ddp.errors import UserError, count_of

_BANDS = 64  # at a time: OpenCV takes no more than 128,
_AREA_BANDS = 4  # and for means of areas no more than 4 where a side is no multiple of the new one


def scaled_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """Return height and width at `scale`, at least one pixel each."""
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize_area(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Return `pixels` (H, W, C) at `size` (height, width): each new pixel is the mean of its area.

    Of a size that is larger in a direction, it lies between the nearest pixels (bilinear).
    """
    if pixels.shape[:2] == size:
        return pixels
    import cv2

    method = cv2.INTER_LINEAR
    at_once = _BANDS
    if size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]:
        method = cv2.INTER_AREA
        at_once = _AREA_BANDS
    chunks = []
    for first in range(0, pixels.shape[2], at_once):
        bands = np.ascontiguousarray(pixels[..., first : first + at_once])
        chunks.append(np.atleast_3d(cv2.resize(bands, size[::-1], interpolation=method)))
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=2)


def resize_nearest(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Return `pixels` (H, W, …) at `size` (height, width): the value at each new pixel's centre."""
    height, width = size
    rows = (np.arange(height) + 0.5) * pixels.shape[0] / height
    columns = (np.arange(width) + 0.5) * pixels.shape[1] / width
    nearest: Pixels = pixels[rows.astype(np.intp)].take(columns.astype(np.intp), axis=1)
    return nearest


def fit_pixels(
    pixels: Pixels,
    wanted: ImageFormat,
    size: tuple[int, int],
    source: Path | str,
    *,
    has_alpha: bool = False,
) -> tuple[Pixels, NDArray[np.bool_] | None]:
    """Return pixels (H, W, C) as `wanted` at `size`, and a mask of those without data, which are filled.

    The mask (height, width) is None if the data set has no no-data value. `source` is for messages.

    Raises:
        UserError: they have another format than the data set, or hold infinity, or nan without a
            no-data value.
    """
    pixels = _convert(pixels, wanted, source, has_alpha=has_alpha)
    nodata_mask = None
    if wanted.nodata is not None:
        is_empty = find_nodata(pixels, wanted.nodata)
        nodata_mask = np.zeros(size, bool)
        if is_empty.any():
            pixels = pixels.copy()
            pixels[is_empty] = np.array(wanted.fill or 0, pixels.dtype)
            empty_share = resize_area(is_empty[..., None].astype(np.float32), size)
            nodata_mask = empty_share[..., 0] > 0
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        count = int((~np.isfinite(pixels).all(axis=2)).sum())
        raise UserError(
            f"{source}: nan or infinity in {count_of(count, 'pixel')}; fix it, or train with --nodata nan to ignore "
            "such pixels"
        )
    return resize_area(pixels, size), nodata_mask


def find_nodata(pixels: Pixels, nodata: float) -> NDArray[np.bool_]:
    """Return a mask (H, W) of the pixels that have the no-data value, or nan, in any channel.

    In 8-bit images, where it is also a usual value, they have it in all channels.
    """
    with np.errstate(over="ignore"):  # the value may be one that no pixel of this type has
        is_nodata = pixels == nodata
    if pixels.dtype == np.float32:
        is_nodata |= np.isnan(pixels)
    in_channels = np.all if pixels.dtype == np.uint8 else np.any
    found: NDArray[np.bool_] = in_channels(is_nodata, axis=2)
    return found


def _convert(pixels: Pixels, wanted: ImageFormat, source: Path | str, *, has_alpha: bool) -> Pixels:
    """Return `pixels` with the channels of the data set: grey as colour, or without alpha."""
    if pixels.dtype != wanted.dtype:
        raise UserError(
            f"{source}: {bits_of(str(pixels.dtype))}, the network was trained on "
            f"{bits_of(wanted.dtype)} images; convert it"
        )
    found = pixels.shape[2]
    if found == wanted.channels:
        return pixels
    if found == 1 and wanted.channels == 3:
        return np.repeat(pixels, 3, axis=2)
    if found - 1 == wanted.channels and has_alpha:
        return pixels[..., :-1]
    raise UserError(
        f"{source}: {count_of(found, 'channel')}, the network takes {wanted.channels}; convert it"
    )
