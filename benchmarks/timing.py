"""What the benchmarks share: works that take turns, and images to work on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def take_turns(works: Sequence[Callable[[], object]], times: int) -> list[list[float]]:
    """Seconds of each work, turn by turn: a noisy machine disturbs all of them alike."""
    took: list[list[float]] = [[] for _ in works]
    for turn in range(times):
        order = list(zip(works, took, strict=True))
        for work, seconds in order if turn % 2 == 0 else reversed(order):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
    return took


def ratios(one: Sequence[float], other: Sequence[float]) -> str:
    """`one` over `other`, turn by turn: the median, and from where to where."""
    found = sorted(a / b for a, b in zip(one, other, strict=True))
    return f"{statistics.median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f} in {len(found)})"


def machine() -> str:
    """A line about where this runs."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {name}; "
        "ratios turn by turn: the median (lowest to highest)\n"
    )


def make_images(folder: Path, count: int) -> list[str]:
    """`count` images of 240x160 and masks; the flags that point to them."""
    numbers = np.random.default_rng(0)
    for side in ("imgs", "masks"):
        (folder / side).mkdir(parents=True)
    for n in range(count):
        small = numbers.integers(0, 256, (10, 15, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((240, 160), Image.Resampling.BICUBIC)
        image.save(folder / "imgs" / f"n{n}q.png")
        image.convert("L").point(lambda v: 255 * (v > 127)).save(folder / "masks" / f"n{n}q.png")
    return ["--images", str(folder / "imgs"), "--masks", str(folder / "masks")]


def draw(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Colours that change slowly, with a little noise: as JPEG, about a Carvana photograph's 0.1 MB."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (8, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = random.integers(0, 3, (height, width, 1), dtype=np.uint8)
    return smooth // 2 + noise
