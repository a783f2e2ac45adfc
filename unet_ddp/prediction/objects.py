"""Objects from probabilities: seeds in their bodies, grown by a watershed to their outlines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.borders import BACKGROUND, BODY

Shares = NDArray[np.uint8]
"""Probabilities in 255ths."""
Mask = NDArray[Any]
"""What a mask's file has: class ids (H, W) uint8, or the numbers of objects, uint16 or int32."""
Numbers = NDArray[np.int32]
"""Numbers of objects (H, W) from 1 on without a gap; 0 in the background."""


def to_shares(probabilities: NDArray[np.float32]) -> tuple[Shares, Shares]:
    """Return the probabilities (H, W) of objects' bodies, and of objects with their borders.

    `probabilities` (3, H, W) are of background, body and border.
    """
    body, background = np.rint(probabilities[[BODY, BACKGROUND]] * 255).astype(np.uint8)
    return body, 255 - background


def separate(body: Shares, extent: Shares, separation: tuple[float, float]) -> Numbers:
    """Return the objects in the result of `to_shares`; `separation` is that of `Labels`.

    An object grows from each connected part of the pixels whose `body` is high enough, as far as
    `extent` is, over falling `body`, until it meets another. Connected are pixels that share edges.
    Each connected part of the extent is separated by itself, and most have one seed, so that large
    images take about 25 bytes for each pixel.
    """
    from scipy import ndimage
    from skimage.segmentation import watershed

    inside = extent >= math.ceil(separation[1] * 255)
    parts, count = ndimage.label(inside, output=np.int32)
    inside &= body >= math.ceil(separation[0] * 255)
    seeds, total = ndimage.label(inside, output=np.int32)
    part_of = np.zeros(total + 1, np.int32)
    part_of[seeds] = parts  # the same for all pixels of a seed
    number_of = np.zeros(count + 1, np.int32)
    number_of[part_of[1:]] = np.arange(1, total + 1)
    numbers: Numbers = number_of[parts]
    windows = ndimage.find_objects(parts)
    for part in np.flatnonzero(np.bincount(part_of[1:]) > 1).tolist():
        window = windows[part - 1]
        own = parts[window] == part
        height = 255 - body[window]
        grown = watershed(height, np.where(own, seeds[window], 0), mask=own)
        numbers[window][own] = grown[own]
    return numbers


def find_outlines(numbers: Mask) -> NDArray[np.uint8]:
    """Return 1 where an object's pixel has a neighbour of another number, 0 elsewhere, (H, W)."""
    from skimage.segmentation import find_boundaries

    outlines: NDArray[np.uint8] = find_boundaries(numbers, mode="inner").view(np.uint8)
    return outlines
