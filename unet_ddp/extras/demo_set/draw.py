"""The built-in demo set: drawn scenes of leaves among bars and lines, or nuclei.

Drawn from a seed alone, so that the first command works anywhere. Leaves and background share
their colours; texture and outline tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.random import Generator, default_rng
from PIL import Image, ImageDraw

from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set.cells import draw_nuclei
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
from unet_ddp.files import write_errors

SCENES, VIEWS, UNSEEN = 40, 4, 4
CELLS = 60

Files = Iterator[tuple[str, Image.Image]]


def write_demo(folder: Path, kind: str = "leaves") -> Path:
    """Write ``imgs``, ``masks`` and ``unseen`` below `folder` unless they exist; return `folder`.

    Leaves: 160 pairs, 4 views of each of 40 scenes, named like ``scene07_2``; and 4 images of other
    scenes, without masks. Cells: 60 pairs, and 4 images without masks.
    """
    done = folder / "README.txt"
    files, drawn_by = draw_leaves(), "unet_ddp"
    if kind == "cells":
        files, drawn_by = draw_cells(), "unet_ddp (cells)"
    with write_errors(folder, "the demo set goes there"):
        if done.exists():
            text = done.read_text(errors="replace")
            if not text.startswith("Drawn by unet_ddp"):
                raise UserError(f"{done}: not of the demo set; use another folder")
            if ("(cells)" in text) != (kind == "cells"):
                raise UserError(
                    f"{folder}: contains another demo set, not {kind}; use another folder"
                )
            return folder
        for name in ("imgs", "masks", "unseen"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, picture in files:
            picture.save(folder / name, quality=92)
        done.write_text(f"Drawn by {drawn_by}; may be deleted, and is drawn again when needed.\n")
    return folder


def draw_leaves() -> Files:
    """Yield the name and the picture of each file of leaves."""
    for scene in range(SCENES):
        for view in range(VIEWS):
            image, mask = draw(scene, view)
            yield f"imgs/scene{scene:02d}_{view}.jpg", image
            yield f"masks/scene{scene:02d}_{view}.png", mask
    for scene in range(SCENES, SCENES + UNSEEN):
        image, _ = draw(scene, 0)
        yield f"unseen/scene{scene:02d}_0.jpg", image


def draw_cells() -> Files:
    """Yield the name and the picture of each file of cells."""
    for number in range(CELLS + UNSEEN):
        image, mask = draw_nuclei(number)
        name = f"cells{number:02d}.png"
        if number < CELLS:
            yield f"imgs/{name}", image
            yield f"masks/{name}", mask
        else:
            yield f"unseen/{name}", image


def draw(scene: int, view: int) -> tuple[Image.Image, Image.Image]:
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
