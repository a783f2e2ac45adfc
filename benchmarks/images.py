"""Drawn images for the benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make_images(folder: Path, count: int, size: tuple[int, int] = (240, 160)) -> list[str]:
    """Write `count` images and masks of (width, height); return the flags that name them."""
    random = np.random.default_rng(0)
    for side in ("imgs", "masks"):
        (folder / side).mkdir(parents=True)
    for n in range(count):
        coarse = random.integers(0, 256, (10, 15, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
        image.save(folder / "imgs" / f"n{n}q.png")
        image.convert("L").point(lambda v: 255 * (v > 127)).save(folder / "masks" / f"n{n}q.png")
    return ["--images", str(folder / "imgs"), "--masks", str(folder / "masks")]


def draw(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return (H, W, 3) uint8, smooth with a little noise: a JPEG like Carvana's, about 0.1 MB."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (8, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = random.integers(0, 3, (height, width, 1), dtype=np.uint8)
    return smooth // 2 + noise
