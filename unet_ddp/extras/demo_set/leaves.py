"""Drawn scenes of leaves among bars and lines.

Leaves and background share their colours; texture and outline tell them apart.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator, default_rng
from PIL import Image, ImageDraw

from unet_ddp.extras.demo_set.shapes import (
    HEIGHT,
    WIDTH,
    Array,
    Point,
    draw_background,
    draw_outline,
    draw_point,
    mix,
    to_image,
    to_polygon,
)


def draw_leaves(scene: int, view: int) -> tuple[Image.Image, Image.Image]:
    """Draw one view of a scene: an RGB image, and a mask of 0 and 255."""
    look = default_rng([scene, 0xC01])  # the same for all views of a scene
    place = default_rng([scene, view, 0x9E0])
    palette = look.uniform(60, 200, (3, 3))
    canvas = to_image(draw_background(place, palette[:2]))
    _clutter(canvas, place, palette)
    mask = Image.new("L", (WIDTH, HEIGHT), 0)
    for _ in range(look.integers(1, 4)):
        ImageDraw.Draw(mask).polygon(_leaf(place), fill=255)
    leaf = _leaf_texture(place, palette)
    inside = np.asarray(mask)[..., None] > 0
    noise = place.normal(0, 5, (HEIGHT, WIDTH, 3))
    pixels = np.where(inside, leaf, np.asarray(canvas, np.float64))
    return to_image(pixels + noise), mask


def _clutter(canvas: Image.Image, random: Generator, colours: Array) -> None:
    """Draw bars and lines in the leaves' colours."""
    pen = ImageDraw.Draw(canvas)
    for _ in range(random.integers(2, 5)):
        x, y = draw_point(random)
        w, h = random.uniform(6, 30, 2)
        colour = tuple(colours[random.integers(3)].astype(int).tolist())
        if random.random() < 0.5:
            pen.rectangle((x, y, x + w, y + h), fill=colour)
        else:
            pen.line((x, y, x + 2 * w, y - 2 * h), fill=colour, width=3)


def _leaf(random: Generator) -> list[Point]:
    """Return the corners of a leaf somewhere in the image."""
    outline = draw_outline(random, (12, 26), 0.5)
    x, y = random.uniform(15, WIDTH - 15), random.uniform(15, HEIGHT - 15)
    return to_polygon(outline, x, y)


def _leaf_texture(random: Generator, colours: Array) -> Array:
    """Return fine stripes of two colours at a random angle: (H, W, 3)."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    angle = random.uniform(0, np.pi)
    across = columns * np.cos(angle) + rows * np.sin(angle)
    share = 0.5 + 0.5 * np.sin(across * random.uniform(0.8, 1.3))
    return mix(share, colours[2], colours[1] * 0.6)
