"""albumentations' warp and colour jitter of 8-bit colour, in little more than half of the time.

Only Augmentation imports this, when it is made: albumentations takes a second.
"""

from __future__ import annotations

from typing import Any

import albumentations
import cv2
import numpy as np
from numpy.typing import NDArray

Colours = NDArray[np.uint8]  # (H, W, 3)
_GREY = np.array([0.299, 0.587, 0.114])  # shares of red, green and blue


class Affine(albumentations.Affine):  # type: ignore[misc]
    """Warps three channels as four: the same bits, and OpenCV has a fast path for four."""

    def apply(self, img: Colours, **params: Any) -> Colours:
        """Return the warped image."""
        four = super().apply(cv2.cvtColor(img, cv2.COLOR_RGB2RGBA), **params)
        return np.asarray(cv2.cvtColor(four, cv2.COLOR_RGBA2RGB))


class ColorJitter(albumentations.ColorJitter):  # type: ignore[misc]
    """Draws and does what albumentations' does, to rounding; its hue has 180 steps, this one 256."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.transforms[1:] = [change_contrast, change_saturation, shift_hue]


def change_contrast(image: Colours, factor: float) -> Colours:
    """Return the image with its distance to its mean grey multiplied."""
    mean = _GREY @ cv2.mean(image)[:3]
    offset = (1 - factor) * mean
    matrix = np.insert(factor * np.eye(3), 3, offset, axis=1)  # (3, 4)
    return np.asarray(cv2.transform(image, matrix))


def change_saturation(image: Colours, factor: float) -> Colours:
    """Return the image with each pixel's distance to its grey multiplied."""
    return np.asarray(cv2.transform(image, factor * np.eye(3) + (1 - factor) * _GREY))


def shift_hue(image: Colours, turns: float) -> Colours:
    """Return the image with its hue turned, 1 for once around."""
    steps = round(256 * turns) % 256
    if steps == 0:
        return image
    converted = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    rows = converted.reshape(len(image), -1)
    shift = np.array([steps, 0, 0], np.uint8)
    rows += np.tile(shift, image.shape[1])  # wraps around
    return np.asarray(cv2.cvtColor(converted, cv2.COLOR_HSV2RGB_FULL))
