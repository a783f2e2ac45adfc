"""A class of few images or pixels: best.pt is never much worse than last.pt, on all images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unet_ddp
from unet_ddp.metrics.scores import ratio

SIZE = (24, 32)
FLAGS = {
    "width": 4, "epochs": 8, "batch_size": 4, "workers": 0, "device": "cpu", "precision": "float32",
    "augmentation": "none", "learning_rate": 0.01,
}  # fmt: skip


def draw(folder: Path, seed: int, *, having: int, side: int) -> list[str]:
    """Write 12 images, the first `having` with a bright square of `side` pixels; return their names."""
    rng = np.random.default_rng(seed)
    names = [f"{letter}x" for letter in "abcdefghijkl"]
    for k, name in enumerate(names):
        mask = np.zeros(SIZE, np.uint8)
        top, left = rng.integers(0, 24 - side), rng.integers(0, 32 - side)
        if k < having:
            mask[top : top + side, left : left + side] = 255
        noise = rng.integers(0, 80, (*SIZE, 3))
        for kind, pixels in (("imgs", mask[..., None] // 2 + noise), ("masks", mask)):
            (folder / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{name}.png")
    return names


def dice_of_all(path: Path, names: list[str]) -> float:
    """Return the Dice that predictions have over all images."""
    predictor = unet_ddp.Predictor.from_checkpoint(path, device="cpu")
    hits = pixels = 0
    for name in names:
        truth = np.asarray(Image.open(f"masks/{name}.png")) > 0
        found = predictor(f"imgs/{name}.png").mask > 0
        hits += int((truth & found).sum())
        pixels += int(truth.sum() + found.sum())
    return ratio(2 * hits, pixels)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "seed", [pytest.param(k, marks=[pytest.mark.release] * (k >= 5)) for k in range(20)]
)
def test_the_best_network_is_not_worse_than_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = seed % 5  # the class in 1, 2, 3 images; in none of validation; in 0.1 % of the pixels
    having = (1, 2, 3, 10, 3)[kind]
    names = draw(tmp_path, seed, having=having, side=3 if kind == 4 else 10)
    data: dict[str, object] = {"images": "imgs", "masks": "masks", "validation": 25}
    if kind == 3:
        sides = ["validation" if name in names[-2:] else "training" for name in names]
        rows = [f"imgs/{n}.png,masks/{n}.png,{side}" for n, side in zip(names, sides, strict=True)]
        Path("list.csv").write_text("\n".join(["image,mask,split", *rows]) + "\n")
        data = {"list": "list.csv"}
    run = unet_ddp.train(**data, **FLAGS, seed=seed)
    best, last = (dice_of_all(run.path / f"{name}.pt", names) for name in ("best", "last"))
    assert best >= last - 0.05, (os.fspath(run.path), best, last)
