"""An augmentation of the user's own whose samples depend on more than their generator is refused at the start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import call_train

SOURCE = """
import random

import albumentations
import numpy as np
import torch

BANK, BRUSHES, RNG, CALLS = [], {}, np.random.default_rng(0), [0]


def flip(image, mask, does):
    return (image[:, ::-1].copy(), mask[:, ::-1].copy()) if does else (image, mask)


def by_numpy(image, mask, generator):
    return flip(image, mask, np.random.rand() < 0.5)


def by_python(image, mask, generator):
    return flip(image, mask, random.random() < 0.5)


def by_torch(image, mask, generator):
    return flip(image, mask, torch.rand(()) < 0.5)


def seldom(image, mask, generator):
    return flip(image, mask, np.random.rand() < 0.1)


def by_own(image, mask, generator):
    return flip(image, mask, RNG.random() < 0.5)


def darken(image, **_):
    return image * np.uint8(np.random.rand() < 0.5)


inside = albumentations.Compose([albumentations.Lambda(image=darken, mask=None, p=0.5)])


class Mix:
    def __init__(self):
        self.bank = []

    def __call__(self, image, mask, generator):
        if len(self.bank) > 30:
            image = self.bank[generator.integers(30)]
        self.bank.append(image)
        return image, mask


mix = Mix()


def mixed(image, mask, generator):
    BANK.append(image)
    return BANK[-4 % len(BANK)], mask


def seeded(image, mask, generator):
    np.random.seed(generator.integers(100))
    return flip(image, mask, np.random.rand() < 0.5)


def brush(image, mask, generator):
    size = int(generator.integers(100))
    BRUSHES.setdefault(size, np.full((size, size), 1, np.uint8))
    return flip(image, mask, size < 50)


plain = albumentations.Compose([albumentations.HorizontalFlip(), albumentations.RandomBrightnessContrast()])
"""
TWO, KEPT = "gives two results for one generator", "is kept from sample to sample"
REFUSED = {
    "by_numpy": TWO, "by_python": TWO, "by_torch": TWO, "seldom": TWO, "by_own": TWO, "inside": TWO,
    "mix": f"its bank {KEPT}", "mixed": f"trial_parts.BANK {KEPT}",
}  # fmt: skip
FLAGS = ["--width", "2", "--epochs", "1", "--validation", "20", "--workers", "0", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trial_parts.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trial_parts", raising=False)
    return make_set(tmp_path, 6)


def train(folder: Path, name: str, seed: int) -> tuple[int, str, str]:
    argv = [*data_flags(folder), *FLAGS, "--augmentation", f"trial_parts:{name}"]
    return call_train([*argv, "--seed", str(seed)], str(folder))


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_more_than_the_generator_is_a_line(folder: Path, name: str) -> None:
    """Whatever the seed, and before the run has its folder."""
    for seed in range(3):
        sys.modules.pop("trial_parts", None)
        status, _, err = train(folder, name, seed)
        said = f"error: --augmentation trial_parts:{name}: {REFUSED[name]}"
        assert status == 2 and said in err and "Traceback" not in err, err
        assert not (folder / "checkpoints" / "last.pt").exists()


@pytest.mark.parametrize("name", ["seeded", "brush", "plain"])
def test_what_is_the_same_for_each_generator_is_taken(folder: Path, name: str) -> None:
    """Also if it seeds what others share by the generator, or keeps what is the same again."""
    status, _, err = train(folder, name, 0)
    assert status == 0, err
