"""Objects from probabilities: seeds in their bodies, grown by a watershed to their outlines."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Shares
from unet_ddp.extras.objects.borders import BACKGROUND

Numbers = NDArray[np.int32]
"""Numbers of objects (H, W) from 1 on without a gap, or their values of several classes; 0 for none."""


def to_shares(probabilities: NDArray[np.float32]) -> Shares:
    """Return the probabilities (N, H, W) of objects' bodies, and of objects with their borders.

    `probabilities` (C, H, W) are of background, bodies and border; the bodies of several classes
    follow, each by itself.
    """
    bodies = probabilities[1:-1]
    parts = [bodies.sum(axis=0), probabilities[BACKGROUND]]
    if len(bodies) > 1:
        parts += [*bodies]
    scaled = np.stack(parts) * 255
    shares: Shares = np.rint(scaled).astype(np.uint8)
    shares[1] = 255 - shares[1]
    return shares


def separate(
    body: Shares, extent: Shares, separation: tuple[float, float], *, smoothing: float = 0.0
) -> Numbers:
    """Return the objects in the result of `to_shares`, with the settings of `ObjectLabels`.

    An object grows from each connected part of the pixels whose `body` is high enough, as far as
    `extent` is, over falling `body`, until it meets another. Connected are pixels that share edges.
    Each connected part of the extent is separated by itself, and most have one seed, so that large
    images take about 25 bytes for each pixel.
    """
    import cv2
    from scipy import ndimage
    from skimage.segmentation import watershed

    if smoothing:  # a noisy body has seeds of a few pixels, and each would be an object
        body = cv2.GaussianBlur(body, (0, 0), smoothing)
        extent = cv2.GaussianBlur(extent, (0, 0), smoothing)
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
    counts = np.bincount(part_of[1:])  # of seeds
    for part in np.flatnonzero(counts > 1).tolist():
        window = windows[part - 1]
        inside = parts[window] == part
        grown = watershed(255 - body[window], seeds[window], mask=inside)
        numbers[window][inside] = grown[inside]
    return numbers
