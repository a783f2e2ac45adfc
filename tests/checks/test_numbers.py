"""Numbers of objects are told from classes, as users meet it: by what doctor and train.py print."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.checks.catalogue import Array
from tests.conftest import data_flags
from tests.ranks import call_main

SIDE = 96


def write_set(folder: Path, draw: Callable[[np.random.Generator], Array], count: int = 20) -> None:
    """Write grey images, and the masks that `draw` makes."""
    rng = np.random.default_rng(0)
    for side in ("imgs", "masks"):
        (folder / side).mkdir(parents=True)
    for k in range(count):
        noise = rng.integers(0, 255, (SIDE, SIDE), np.uint8)
        Image.fromarray(noise).save(folder / "imgs" / f"{chr(97 + k)}x.png")
        Image.fromarray(draw(rng)).save(folder / "masks" / f"{chr(97 + k)}x.png")


def draw_cells(rng: np.random.Generator, *, by_size: bool = False, most: int = 81) -> Array:
    """Discs with a number each, of which a fifth were deleted."""
    count = int(rng.integers(most - 20, most))
    radii = rng.uniform(2, 5, count)
    if by_size:
        radii = np.sort(radii)[::-1]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    places = rng.permutation(81)
    for k in np.flatnonzero(rng.random(count) > 0.2).tolist():
        row, column = divmod(int(places[k]), 9)
        centre = (column * 10 + 8, row * 10 + 8)
        cv2.circle(mask, centre, int(radii[k]), k + 1, -1)
    return mask


def draw_organs(rng: np.random.Generator) -> Array:
    """Thirteen classes of one area each, of very different sizes; some are not in each slice."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for k in np.flatnonzero(rng.random(13) < 0.6).tolist():
        size = 2 + 2 * (k * 5 % 13) * rng.uniform(0.8, 1.2)
        top, left = divmod(k, 4)
        mask[top * 24 : top * 24 + int(size), left * 24 : left * 24 + int(size)] = k + 1
    return mask


def draw_scene(rng: np.random.Generator) -> Array:
    """Eight of 150 classes, most of them in several places."""
    chosen = rng.choice(150, 8, replace=False)
    squares = rng.choice(chosen, (8, 8)) + 1
    return np.asarray(squares.repeat(12, 0).repeat(12, 1), np.uint8)


def draw_soft(rng: np.random.Generator) -> Array:
    """Return squares with edges of all grey levels, and few between."""
    return np.asarray(cv2.GaussianBlur((draw_cells(rng, most=30) > 0) * np.uint8(255), (9, 9), 0))


def draw_one_class(rng: np.random.Generator) -> Array:
    """One of 60 classes, in one area."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[20:70, 20 : int(rng.integers(40, 90))] = rng.integers(1, 61)
    return mask


def draw_torn(rng: np.random.Generator) -> Array:
    """Ten cells with numbers of the whole set, of which one is cut in two."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for k, number in enumerate(rng.choice(250, 10, replace=False).tolist()):
        side = int(rng.integers(5, 15))
        top, left = 20 * (k // 5) + 5, 18 * (k % 5) + 3
        mask[top : top + side, left : left + side] = number + 1
    mask[7, mask[7] == mask[7, 4]] = 0
    return mask


class Tracked:
    """Cells of a film, each with one number and one size, in two frames of twenty."""

    def __init__(self) -> None:
        self.frame = 0

    def __call__(self, rng: np.random.Generator) -> Array:
        mask = np.zeros((SIDE, SIDE), np.uint8)
        first = 5 * self.frame
        self.frame += 1
        for k in range(10):
            number = first + k
            side = 4 + number * 7 % 13
            top, left = 20 * (k // 5) + 5, 18 * (k % 5) + 3
            mask[top : top + side, left : left + side] = number + 1
        return mask


def run(folder: Path, program: str, *flags: str) -> tuple[int, str, str]:
    """Return status, output and errors of a program on the set."""
    given = ["--width", "2", "--stop-after", "1", "--workers", "0", "--batch-size", "1"]
    flags = (*flags, *(given if program == "train" else given[-2:]))
    return call_main(f"unet_ddp.commands.{program}", [*data_flags(folder), *flags], str(folder))


@pytest.mark.parametrize("by_size", [False, True])
def test_numbers_with_gaps_ask_for_instances(tmp_path: Path, by_size: bool) -> None:
    write_set(tmp_path, partial(draw_cells, by_size=by_size))
    values = {v for path in (tmp_path / "masks").iterdir() for v in np.unique(Image.open(path))}
    status, out, _ = run(tmp_path, "doctor")
    assert status == 2
    assert out.splitlines()[0] == "numbered objects: add --instances to learn each of them"
    status, out, errors = run(tmp_path, "train")
    assert status == 2 and len(errors.splitlines()) == 1, errors
    advice = ("--instances", f"--classes {len(values)}", "--mask-threshold 0")
    assert all(text in errors for text in advice), errors
    assert not (tmp_path / "checkpoints").exists()
    for flags in advice:
        assert run(tmp_path, "doctor", *flags.split())[0] == 0


def test_the_flag_comes_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the doctor recommends works as it is typed."""
    write_set(tmp_path, partial(draw_cells, by_size=False))
    assert "pip install" not in run(tmp_path, "doctor")[1]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, out, _ = run(tmp_path, "doctor")
    assert status == 2 and re.search(
        r"use --instances \(after .*pip install .*\[objects\]'\) if", out
    ), out


def test_numbers_of_the_whole_set_may_be_in_a_tenth_of_the_masks(tmp_path: Path) -> None:
    write_set(tmp_path, Tracked())
    _, out, _ = run(tmp_path, "doctor")
    assert out.splitlines()[0] == "numbered objects: add --instances to learn each of them"


def test_one_object_of_ten_may_be_in_two_parts(tmp_path: Path) -> None:
    write_set(tmp_path, draw_torn)
    _, out, _ = run(tmp_path, "doctor")
    assert out.splitlines()[0] == "numbered objects: add --instances to learn each of them"


@pytest.mark.parametrize("draw", [draw_organs, draw_scene, draw_soft, draw_one_class])
def test_classes_are_not_taken_for_numbers(
    tmp_path: Path, draw: Callable[[np.random.Generator], Array]
) -> None:
    write_set(tmp_path, draw)
    _, out, _ = run(tmp_path, "doctor")
    assert "objects" not in out.splitlines()[0] and "look like numbers" not in out, out
