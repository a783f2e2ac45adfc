"""Pixels of a file as a data set wants them: its channels, its size, nothing without data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.header import ImageFormat, Pixels, bits_of
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.errors import UserError


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
        UserError: they have another format than the data set, or hold nan or infinity that is not its
            no-data value.
    """
    pixels = _convert(pixels, wanted, source, has_alpha=has_alpha)
    nodata_mask = None if wanted.nodata is None else find_nodata(pixels, wanted.nodata)
    if nodata_mask is not None and nodata_mask.any():
        pixels = pixels.copy()
        pixels[nodata_mask] = np.array(wanted.fill or 0, pixels.dtype)
        nodata_mask = resize_area(nodata_mask[..., None].astype(np.float32), size)[..., 0] > 0
    elif nodata_mask is not None:
        nodata_mask = np.zeros(size, bool)
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        count = int((~np.isfinite(pixels)).any(axis=2).sum())
        raise UserError(
            f"{source}: nan or infinity in {count} pixel(s); fix it, or train with --nodata nan to ignore "
            "such pixels"
        )
    return resize_area(pixels, size), nodata_mask


def find_nodata(pixels: Pixels, nodata: float) -> NDArray[np.bool_]:
    """Return a mask (H, W) of the pixels that have the no-data value in any channel.

    In 8-bit images, where it is also a usual value, they have it in all channels.
    """
    empty = np.isnan(pixels) if math.isnan(nodata) else np.equal(pixels, nodata)
    in_channels = np.all if pixels.dtype == np.uint8 else np.any
    return cast(NDArray[np.bool_], in_channels(empty, axis=2))


def _convert(pixels: Pixels, wanted: ImageFormat, source: Path | str, *, has_alpha: bool) -> Pixels:
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
    if found - 1 == wanted.channels and has_alpha:
        return pixels[..., :-1]
    raise UserError(f"{source}: {found} channels, the network takes {wanted.channels}; convert it")
