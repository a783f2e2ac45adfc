"""The built-in demo set: drawn scenes of leaves among bars and lines.

Drawn from a seed alone, so that the first command works anywhere. Leaves and background share
their colours; texture and outline tell them apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from unet_ddp.files import write_errors

WIDTH, HEIGHT = 128, 96
SCENES, VIEWS, UNSEEN = 40, 4, 4

Array = NDArray[np.float64]


def write_demo(folder: Path) -> Path:
    """Write ``imgs``, ``masks`` and ``unseen`` below `folder` unless they exist; return `folder`.

    160 pairs: 4 views of each of 40 scenes, named like ``scene07_2``; and 4 images of other
    scenes, without masks.
    """
    done = folder / "README.txt"
    if done.exists():
        return folder
    with write_errors(folder, "the demo set goes there"):
        for name in ("imgs", "masks", "unseen"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for scene in range(SCENES):
            for view in range(VIEWS):
                image, mask = draw(scene, view)
                image.save(folder / "imgs" / f"scene{scene:02d}_{view}.jpg", quality=92)
                mask.save(folder / "masks" / f"scene{scene:02d}_{view}.png")
        for scene in range(SCENES, SCENES + UNSEEN):
            draw(scene, 0)[0].save(folder / "unseen" / f"scene{scene:02d}_0.jpg", quality=92)
        done.write_text("Drawn by unet_ddp; may be deleted, and is drawn again when needed.\n")
    return folder


def draw(scene: int, view: int) -> tuple[Image.Image, Image.Image]:
    """Draw one view of a scene: an RGB image, and a mask of 0 and 255."""
    look = np.random.default_rng([scene, 0xC01])  # the same for all views of a scene
    place = np.random.default_rng([scene, view, 0x9E0])
    palette = look.uniform(60, 200, (3, 3))
    canvas = Image.fromarray(_background(place, palette[:2]).astype(np.uint8))
    _clutter(canvas, place, palette)
    mask = Image.new("L", (WIDTH, HEIGHT), 0)
    for _ in range(int(look.integers(1, 4))):
        outline = _leaf(place)
        ImageDraw.Draw(mask).polygon(outline, fill=255)
    leaf = _leaf_texture(place, palette)
    inside = (np.asarray(mask) > 0)[..., None]
    noise = place.normal(0, 5, (HEIGHT, WIDTH, 3))
    pixels = np.where(inside, leaf, np.asarray(canvas, np.float64)) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), mask


def _background(random: np.random.Generator, colours: Array) -> Array:
    """Return two colours that run into each other: (H, W, 3)."""
    coarse = random.uniform(0, 255, (4, 5)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    share = np.asarray(smooth, np.float64)[..., None] / 255
    blend: Array = colours[0] * share + colours[1] * (1 - share)
    return blend


def _clutter(canvas: Image.Image, random: np.random.Generator, colours: Array) -> None:
    """Draw bars and lines in the leaves' colours."""
    pen = ImageDraw.Draw(canvas)
    for _ in range(int(random.integers(2, 5))):
        x, y = random.uniform(0, WIDTH), random.uniform(0, HEIGHT)
        w, h = random.uniform(6, 30, 2)
        red, green, blue = (int(value) for value in colours[int(random.integers(3))])
        if random.random() < 0.5:
            pen.rectangle((x, y, x + w, y + h), fill=(red, green, blue))
        else:
            pen.line((x, y, x + 2 * w, y - 2 * h), fill=(red, green, blue), width=3)


def _leaf(random: np.random.Generator) -> list[tuple[float, float]]:
    """Return a closed outline: a circle with a few waves on it."""
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    radius = np.full_like(angles, random.uniform(12, 26))
    for wave in (2, 3, 5):
        turn = random.uniform(0, 2 * np.pi)
        radius *= 1 + random.uniform(0, 0.5 / wave) * np.cos(wave * angles + turn)
    x, y = random.uniform(15, WIDTH - 15), random.uniform(15, HEIGHT - 15)
    xs, ys = x + radius * np.cos(angles), y + radius * np.sin(angles)
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _leaf_texture(random: np.random.Generator, colours: Array) -> Array:
    """Return fine stripes of two colours at a random angle: (H, W, 3)."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    angle = random.uniform(0, np.pi)
    phase = (columns * np.cos(angle) + rows * np.sin(angle)) * random.uniform(0.8, 1.3)
    share = (0.5 + 0.5 * np.sin(phase))[..., None]
    blend: Array = colours[2] * share + colours[1] * 0.6 * (1 - share)
    return blend
