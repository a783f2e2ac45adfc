"""Images and masks at another size."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.header import Pixels

Value = TypeVar("Value", bound=np.generic)

_BANDS = 64  # OpenCV takes no more than 128 at a time,
_AREA_BANDS = (
    4  # and for means of areas no more than these where a side is no multiple of the new one
)


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

    shrinks = size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]
    at_once = _AREA_BANDS if shrinks else _BANDS
    parts = [
        np.atleast_3d(
            cv2.resize(
                np.ascontiguousarray(pixels[..., first : first + at_once]),
                (size[1], size[0]),
                interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
            )
        )
        for first in range(0, pixels.shape[2], at_once)
    ]
    return cast(Pixels, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2))


def resize_nearest(pixels: NDArray[Value], size: tuple[int, int]) -> NDArray[Value]:
    """Return `pixels` (H, W, …) at `size` (height, width): the value at each new pixel's centre."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.intp)
        for new, old in zip(size, pixels.shape, strict=False)
    )
    return cast(NDArray[Value], pixels[rows].take(columns, axis=1))
