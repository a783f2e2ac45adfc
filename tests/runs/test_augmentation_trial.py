"""An augmentation of the user's own whose samples depend on more than their generator is refused at the start."""

from __future__ import annotations

import sys
import time
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
N, COUNTS, LOG, RING, LAST, SIDE = 0, {"calls": 0, "rows": [0, 0]}, [], [0.0] * 8, None, 0


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


def seeded_by_half(image, mask, generator):
    np.random.seed(generator.integers(100))
    return flip(image, mask, np.random.rand() < 0.5 and random.random() < 0.1)


def third(image, mask, generator):
    CALLS[0] += 1
    return flip(image, mask, CALLS[0] % 3 == 0)


def after_many(image, mask, generator):
    global N
    N += 1
    return flip(image, mask, N > 5000)


class Stronger:
    def __init__(self):
        self.n = 0

    def __call__(self, image, mask, generator):
        self.n += 1
        return flip(image, mask, generator.random() < self.n // 1000)


stronger = Stronger()


def previous(image, mask, generator):
    global LAST
    LAST, used = image, image if LAST is None else LAST
    return used, mask


def encoded(image, mask, generator):
    LOG.append(image.tobytes())
    return image, mask


def count_global(image, mask, generator):
    global N
    N += 1
    return flip(image, mask, generator.random() < 0.5)


def count_attribute(image, mask, generator):
    count_attribute.calls = getattr(count_attribute, "calls", 0) + 1
    return flip(image, mask, generator.random() < 0.5)


def count_rows(image, mask, generator):
    does = generator.random() < 0.5
    COUNTS["calls"] += 1
    COUNTS["rows"][int(does)] += 1
    COUNTS["last"] = np.float32(COUNTS["calls"])
    COUNTS["mean"] = torch.tensor(0.5) + COUNTS.get("mean", 0)
    return flip(image, mask, does)


def log(image, mask, generator):
    global N
    RING[N] = random.SystemRandom().random()
    N = (N + 1) % len(RING)
    LOG.append(("changed", RING[N]))
    return image, mask


class Counter:
    def __init__(self):
        self.n, self.side, self.last = 0, None, []

    def __call__(self, image, mask, generator):
        self.n += 1
        self.side = self.side or image.shape[1] // 2
        self.last.append(self.n)
        image[:, : self.side] //= 2
        return image, mask


counter = Counter()


def first_side(image, mask, generator):
    global SIDE
    SIDE = SIDE or image.shape[1] // 2
    image[:, :SIDE] //= 2
    return image, mask


def drawing(image, mask, generator):
    CALLS[0] += 1
    torch.nn.Linear(2, 2)
    return image, mask


def seeds_all(image, mask, generator):
    CALLS[0] += 1
    seed = int(generator.integers(2**31))
    for function in (random.seed, np.random.seed, torch.manual_seed):
        function(seed)
    return flip(image, mask, random.random() + np.random.rand() + float(torch.rand(())) < 1.5)


plain = albumentations.Compose([albumentations.HorizontalFlip(), albumentations.RandomBrightnessContrast()])
"""
TWO, KEPT = "gives two results for one generator", "is kept from sample to sample"
REFUSED = {
    "by_numpy": TWO, "by_python": TWO, "by_torch": TWO, "seldom": TWO, "by_own": TWO, "inside": TWO,
    "mix": f"its bank {KEPT}", "mixed": f"trial_parts.BANK {KEPT}",
    "encoded": f"trial_parts.LOG {KEPT}", "seeded_by_half": TWO, "third": TWO, "after_many": TWO, "stronger": TWO, "previous": TWO,
}  # fmt: skip
TAKEN = [
    "seeded", "brush", "plain",
    "count_global", "count_attribute", "count_rows", "log", "counter", "first_side", "seeds_all",
]  # fmt: skip
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


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_the_same_for_each_generator_is_taken(folder: Path, name: str) -> None:
    """Also if it seeds what others share by the generator, keeps what is the same again, or counts and logs its calls."""
    status, _, err = train(folder, name, 0)
    assert status == 0, err


@pytest.mark.parametrize(
    ("name", "seconds", "least", "most"),
    [("seeds_all", 0, 20, 40), ("drawing", 0, 100, 200), ("drawing", 2, 20, 40)],
)
def test_many_samples_are_made_only_of_one_that_draws_from_shared_generators(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, seconds: int, least: int, most: int
) -> None:
    """Not of one that seeds them by its own, nor of one whose calls take long; here with those of a run's five samples."""
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds * read_calls())
    status, _, err = train(folder, name, 0)
    assert status == 0, err
    assert least <= read_calls() <= most


def read_calls() -> int:
    parts = sys.modules.get("trial_parts")
    return int(getattr(parts, "CALLS", [0])[0])
