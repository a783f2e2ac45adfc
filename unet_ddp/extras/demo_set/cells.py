"""Drawn nuclei under a microscope: bright discs, many of which touch, on an uneven background.

Each mask numbers its nuclei from 1. Some nuclei are out of focus: they are faint, and not in the mask.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, default_rng
from PIL import Image, ImageDraw, ImageFilter

from unet_ddp.extras.demo_set.shapes import (
    HEIGHT,
    WIDTH,
    Array,
    Point,
    draw_background,
    draw_outline,
    draw_point,
    to_image,
    to_polygon,
)

_RADII = (5.0, 9.0)  # pixels
_TOUCHING = 0.5  # of the nuclei are placed next to an earlier one
_VISIBLE = 0.8  # of a nucleus, at least


def draw_nuclei(index: int) -> tuple[Image.Image, Image.Image]:
    """Draw a grey image, and its mask of 16 bit with the numbers of the nuclei."""
    random = default_rng([index, 0xCE11])
    pixels = draw_background(random, random.uniform(20, 50, (2, 1)))[..., 0]
    for _ in range(random.integers(2, 5)):  # out of focus
        x, y = draw_point(random)
        pixels += 25 * _fade(x, y, random.uniform(6, 12))
    numbers = np.zeros((HEIGHT, WIDTH), np.uint16)
    centres: list[Point] = []
    for _ in range(random.integers(10, 26)):
        x, y = _place(random, centres)
        shape = Image.new("1", (WIDTH, HEIGHT))
        ImageDraw.Draw(shape).polygon(to_polygon(draw_outline(random, _RADII, 0.2), x, y), fill=1)
        inside = np.asarray(shape)
        free = inside & (numbers == 0)
        if free.sum() < max(_VISIBLE * inside.sum(), _RADII[0] ** 2):
            continue
        centres.append((x, y))
        numbers[free] = len(centres)
        grain = random.normal(0, 0.06, (HEIGHT, WIDTH))
        body = 0.55 + 0.45 * _fade(x, y, _RADII[1]) + grain
        pixels[free] += (random.uniform(90, 180) * body)[free]
    sharp = to_image(pixels)
    blurred = np.asarray(sharp.filter(ImageFilter.GaussianBlur(0.6)), np.float64)
    return to_image(blurred + random.normal(0, 4, blurred.shape)), Image.fromarray(numbers)


def _place(random: Generator, centres: list[Point]) -> Point:
    """Return the centre of the next nucleus: anywhere, or next to one of `centres`."""
    if centres and random.random() < _TOUCHING:
        x, y = centres[random.integers(len(centres))]
        angle = random.uniform(0, 2 * np.pi)
        distance = random.uniform(1.6, 2) * np.mean(_RADII)
        return float(x + distance * np.cos(angle)), float(y + distance * np.sin(angle))
    return draw_point(random)


def _fade(x: float, y: float, radius: float) -> Array:
    """Return how near to (x, y) a pixel is, from 1 to 0: (H, W)."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    squares = (columns - x) ** 2 + (rows - y) ** 2
    near: Array = np.exp(-squares / radius**2)
    return near
