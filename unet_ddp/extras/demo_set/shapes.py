"""Outlines and backgrounds of the drawings in the demo set."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 128, 96

Array = NDArray[np.float64]
Point = tuple[float, float]


def to_image(pixels: Array) -> Image.Image:
    """Return pixels (H, W) or (H, W, 3) as an image, cut to 0 … 255."""
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_point(random: Generator) -> Point:
    """Return a point of the image, x and y."""
    return random.uniform(0, WIDTH), random.uniform(0, HEIGHT)


def draw_background(random: Generator, colours: Array) -> Array:
    """Return two colours (2, C) that run into each other: (H, W, C)."""
    coarse = random.uniform(0, 255, (4, 5)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    return mix(np.asarray(smooth, np.float64) / 255, colours[0], colours[1])


def mix(share: Array, colour: Array, other: Array) -> Array:
    """Return a share (H, W) of one colour (C), and the rest of another: (H, W, C)."""
    share = share[..., None]
    blend: Array = colour * share + other * (1 - share)
    return blend


def draw_outline(random: Generator, radii: tuple[float, float], waves: float) -> Array:
    """Return a closed outline around 0, (2, 64): a circle with a few waves on it."""
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    radius = np.full_like(angles, random.uniform(*radii))
    for wave in (2, 3, 5):
        turn = random.uniform(0, 2 * np.pi)
        height = random.uniform(0, waves / wave)
        radius *= 1 + height * np.cos(wave * angles + turn)
    return np.stack([radius * np.cos(angles), radius * np.sin(angles)])


def to_polygon(outline: Array, x: float, y: float) -> list[Point]:
    """Return the corners of an outline around (x, y), as Pillow draws them."""
    return [(x + dx, y + dy) for dx, dy in outline.T.tolist()]
