"""Bodies and borders of objects, from masks in which each object has a number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Flags, Ids
from unet_ddp.data.readers.base import Codes

BACKGROUND, BODY, BORDER = range(3)
CLASS_NAMES = ("background", "object", "border")
CLASS_STEP = 1_000_000
"""Of several classes of objects, a mask contains class * CLASS_STEP + number; classes from 1 on."""

_RIM = 0.4  # of the way from an object's edge to its innermost pixel
_WIDEST_RIM = 8  # pixels; so a large object keeps one body where it has a waist
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

    The border of an object is its rim, all around: the pixels whose distance from its outside is less than
    40 % of the largest in this object, and less than 8 pixels. So the bodies of objects that touch are
    apart, also of small ones. Pixels that share an edge with another object are border in any case. At the
    image's own edge there is no rim: the object may go on.
    """
    import cv2

    numbers = number_densely(codes)
    is_object = numbers > 0
    is_edge, touches = _compare_neighbours(numbers)
    inner = (is_object & ~is_edge).view(np.uint8)
    distances = cv2.distanceTransform(inner, cv2.DIST_L2, cv2.DIST_MASK_PRECISE) + 1
    largest = np.zeros(numbers.max(initial=0) + 1, np.float32)
    inside = numbers[is_object]
    depths = distances[is_object]
    np.maximum.at(largest, inside, depths)
    widths = np.minimum(_RIM * largest, _WIDEST_RIM)  # of each object's rim
    is_border = touches[is_object] | (depths < widths[inside])
    ids = is_object.astype(np.uint8)
    ids[is_object] += is_border * np.uint8(BORDER - BODY)
    return ids


def _compare_neighbours(numbers: NDArray[np.int32]) -> tuple[Flags, Flags]:
    """Return two (H, W): next to another number, background too; next to another object, both on objects or not."""
    differs, touches = np.zeros(numbers.shape, bool), np.zeros(numbers.shape, bool)
    beside, below = (np.s_[:, :-1], np.s_[:, 1:]), (np.s_[:-1], np.s_[1:])
    for before, after in (beside, below):
        one, other = numbers[before], numbers[after]
        unequal = one != other
        both = unequal & (one > 0) & (other > 0)
        for side in (before, after):
            differs[side] |= unequal
            touches[side] |= both
    return differs, touches
