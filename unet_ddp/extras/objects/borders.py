"""Borders between touching objects, from masks in which each object has a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Ids
from unet_ddp.data.readers.base import Codes

BACKGROUND, BODY, BORDER = range(3)
CLASS_NAMES = ("background", "object", "border")
CLASS_STEP = 1_000_000
"""Of several classes of objects, a mask contains class * CLASS_STEP + number; classes from 1 on."""

_SIDES_PER_RADIUS = 16  # a border reaches a sixteenth of an object's side into it
_LARGEST_RADIUS = 8  # pixels
_FEW = 1 << 16  # numbers that are counted in a table as they are


def number_densely(codes: Codes) -> NDArray[np.int32]:
    """Return the numbers of objects (H, W), small ones in place of large ones such as colours."""
    if codes.size and codes.max() >= _FEW:
        classes, numbers = np.divmod(codes, CLASS_STEP)
        codes = classes * (numbers.max() + 1) + numbers  # which is faster, if they are few now
    if not codes.size or codes.max() < _FEW:
        return codes.astype(np.int32, copy=False)
    values, dense = np.unique(codes, return_inverse=True)
    if values[0] > 0:  # no background
        dense += 1
    return dense.reshape(codes.shape).astype(np.int32)


def mark_borders(codes: Codes) -> Ids:
    """Return class ids (H, W) of objects' numbers (H, W), 0 for the background.

    A pixel is border if two objects are in the square window around it, as in the winning solution
    of the Data Science Bowl 2018. The window's radius is a sixteenth of the side of a square as
    large as the pixel's object, at least 1 and at most 8; in the background, that of the largest
    object. So a border is 2 pixels wide or more wherever two objects touch or nearly do.
    """
    import cv2

    numbers = number_densely(codes)
    areas = np.bincount(numbers.ravel())
    areas[0] = areas[1:].max(initial=0)
    sixteenths = np.rint(np.sqrt(areas) / _SIDES_PER_RADIUS)
    radii = sixteenths.clip(1, _LARGEST_RADIUS).astype(np.uint8)
    radius_of = radii[numbers]  # (H, W)
    ids = (numbers > 0).astype(np.uint8)
    high = numbers.astype(np.float32)  # exact: fewer than 2^24 objects
    low = np.where(numbers > 0, -high, np.float32(-np.inf))
    for radius in np.unique(radii).tolist():
        window = np.ones((2 * radius + 1, 2 * radius + 1), np.uint8)
        has_two = cv2.dilate(high, window) > -cv2.dilate(low, window)
        ids[has_two & (radius_of == radius)] = BORDER
    return ids
