"""Files of probabilities."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.prediction.models import make_predictor, noise
from tests.prediction.outputs.writing import image_files, make
from unet_ddp.data import masks as data_masks
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.outputs.probabilities import Probabilities
from unet_ddp.prediction.prediction import Prediction


def write(prediction: Prediction, folder: Path, kind: str) -> list[Path]:
    output = make(Probabilities, prediction.labels, probabilities=kind)
    files = image_files("a.png", folder / "a_mask.png")
    with output.watch(files, prediction) as see:
        prediction.compute([see])
    return [*output.files(files)]


@pytest.mark.parametrize("kind", ["npy", "png"])
def test_one_that_can_not_be_written_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"file/a_probabilit\w+\.{kind}: can't be written"):
        write(make_predictor()(noise(20, 20)), tmp_path / "file", kind)


def test_a_full_disk_is_one_line_and_not_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file without room would end the process by SIGBUS."""

    def fail(file: int, start: int, size: int) -> None:
        assert size >= 2 * 30 * 40 * 4
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    prediction = make_predictor()(noise(30, 40))
    with pytest.raises(
        UserError, match=r"a_probabilities\.npy: .* No space .*; make room, or use another --output"
    ):
        write(prediction, tmp_path, "npy")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(data_masks, "IN_MEMORY", 99)
    with pytest.raises(UserError, match=r"tmp: .* No space left on device; .*TMPDIR"):
        data_masks.allocate((2, 30, 40), np.float32)


def test_probabilities_are_named_after_image_and_class() -> None:
    labels, files = Labels((0xFF0000, 0x00FF00), rgb=True), image_files("a", "p/a.b_mask.png")
    npy = make(Probabilities, labels, probabilities="npy").files(files)
    assert npy == [Path("p/a.b_probabilities.npy")]
    png = make(Probabilities, labels, probabilities="png").files(files)
    assert png == [Path(f"p/a.b_probability_{name}.png") for name in ("ff0000", "00ff00")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("car/truck", "..\\up"), ["car_truck", ".._up"]),
        (("a\nb", "größe 1"), ["a_b", "größe 1"]),
        (("\udcff", 'a:b"?*<>|'), ["_", "a_b______"]),
        (("a#", "#a"), ["0_a", "1_a"]),  # the same after cleaning
        (("a/b", "A?b"), ["0_a_b", "1_A_b"]),  # the same where case does not count
        (("x" * 300, "x" * 299), ["0_" + "x" * 60, "1_" + "x" * 60]),
        (("", "b"), ["", "b"]),
    ],
)
def test_class_names_become_file_names(names: tuple[str, str], expected: list[str]) -> None:
    labels = Labels((0, 1), names=names)
    found = make(Probabilities, labels, probabilities="png").files(image_files("a", "p/a_mask.tif"))
    assert found == [Path(f"p/a_probability_{name}.png") for name in expected]


@pytest.mark.parametrize("options", [{}, {"tile": 32, "overlap": 50}])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_written(tmp_path: Path, options: Any, classes: int) -> None:
    prediction = make_predictor(classes=classes, scale=0.5, **options)(noise(41, 67))
    expected = prediction.probabilities
    (npy,) = write(prediction, tmp_path, "npy")
    stored = np.load(npy)
    assert stored.dtype == np.float32 and np.array_equal(stored, expected)
    for path, plane in zip(write(prediction, tmp_path, "png"), expected, strict=True):
        picture = np.asarray(Image.open(path))
        assert picture.dtype == np.uint16
        assert np.abs(picture / 65535.0 - plane).max() <= 0.5 / 65535 + 1e-7
