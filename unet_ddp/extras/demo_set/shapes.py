"""Outlines and backgrounds of the drawings in the demo set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 128, 96

Array = NDArray[np.float64]


def draw_background(random: np.random.Generator, colours: Array) -> Array:
    """Return two colours (2, C) that run into each other: (H, W, C)."""
    coarse = random.uniform(0, 255, (4, 5)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    share = np.asarray(smooth, np.float64)[..., None] / 255
    blend: Array = colours[0] * share + colours[1] * (1 - share)
    return blend


def draw_outline(random: np.random.Generator, radii: tuple[float, float], waves: float) -> Array:
    """Return a closed outline around 0, (2, 64): a circle with a few waves on it."""
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    radius = np.full_like(angles, random.uniform(*radii))
    for wave in (2, 3, 5):
        turn = random.uniform(0, 2 * np.pi)
        radius *= 1 + random.uniform(0, waves / wave) * np.cos(wave * angles + turn)
    outline: Array = np.stack([radius * np.cos(angles), radius * np.sin(angles)])
    return outline


def to_polygon(outline: Array, x: float, y: float) -> list[tuple[float, float]]:
    """Return the corners of an outline around (x, y), as Pillow draws them."""
    xs, ys = x + outline[0], y + outline[1]
    return list(zip(xs.tolist(), ys.tolist(), strict=True))
