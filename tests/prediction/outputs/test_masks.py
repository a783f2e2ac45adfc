"""Masks, probabilities and overlays, as others read them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.prediction.models import make_predictor, noise
from unet_ddp.data import masks as data_masks
from unet_ddp.data.drawing import draw_mask
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.header import ImageFormat
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.readers.resize import resize_area, resize_nearest
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs import masks as module
from unet_ddp.prediction.outputs.masks import (
    probability_paths,
    write_mask,
    write_overlay,
    writing_probabilities,
)
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.source import open_array

LABELS = [
    Labels((0, 255)),
    Labels((0, 1)),
    Labels((0, 3, 7)),
    Labels((5, 200)),
    Labels((5, 300)),
    Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True),
    Labels((0, 2), palette=((9, 9, 9), (1, 1, 1), (200, 100, 0))),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize("suffix", [".png", ".PNG", ".tif"])
def test_masks_are_read_back_as_they_were(
    tmp_path: Path, rng: np.random.Generator, labels: Labels, suffix: str
) -> None:
    """By ourselves, and by others: Pillow, OpenCV, tifffile."""
    ids = rng.integers(0, labels.num_classes, (1001, 301)).astype(np.uint8)  # several bands
    path = tmp_path / f"m{suffix}"
    write_mask(ids, labels, path)
    expected = labels.to_image(ids)
    assert np.array_equal(np.array(labels.values)[ids], read_mask(path))
    if suffix == ".tif":
        assert np.array_equal(tifffile.imread(path), np.asarray(expected))
    else:
        stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        wanted = np.asarray(expected.convert("RGB") if expected.mode == "P" else expected)
        assert np.array_equal(stored[..., ::-1] if stored.ndim == 3 else stored, wanted)
    with Image.open(path) as image:
        if max(labels.values) <= 255 or labels.rgb:
            assert np.array_equal(image.convert("RGB"), expected.convert("RGB"))
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_tiff_is_in_compressed_tiles(tmp_path: Path) -> None:
    write_mask(np.ones((300, 500), np.uint8), Labels((0, 200)), tmp_path / "a.tiff")
    with tifffile.TiffFile(tmp_path / "a.tiff") as tiff:
        page: Any = tiff.pages[0]
        assert page.tile == (256, 256) and page.compression.name == "ADOBE_DEFLATE"


def write_probabilities(prediction: Prediction, paths: list[Path]) -> None:
    shape = prediction.labels.num_classes, *prediction.size
    with writing_probabilities(paths, shape) as see:
        prediction.compute([see])


def test_what_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "a.png"
    ids = np.zeros((2, 2), np.uint8)
    prediction = make_predictor()(noise(20, 20))
    image = open_array(noise(2, 2), ImageFormat(3), 1.0)
    for write in (
        lambda: write_mask(ids, LABELS[0], path),
        lambda: write_probabilities(prediction, [path.with_suffix(".npy")]),
        lambda: write_probabilities(prediction, [path, path]),
        lambda: write_overlay(ids, LABELS[0], image, path),
    ):
        with pytest.raises(UserError, match=r"file/a\.(png|npy): can't be written"):
            write()


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
        UserError, match=r"a\.npy: .* No space .*; make room, or use another --output"
    ):
        write_probabilities(prediction, [tmp_path / "a.npy"])
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(data_masks, "_IN_MEMORY", 99)
    with pytest.raises(UserError, match=r"tmp: .* No space left on device; .*TMPDIR"):
        data_masks.allocate((2, 30, 40), np.float32)


def test_probabilities_are_named_after_image_and_class() -> None:
    labels, base = Labels((0xFF0000, 0x00FF00), rgb=True), Path("p/a.b")
    assert probability_paths(base, "none", labels) == []
    assert probability_paths(base, "npy", labels) == [Path("p/a.b_probabilities.npy")]
    names = ["ff0000", "00ff00"]
    assert probability_paths(base, "png", labels) == [
        Path(f"p/a.b_probability_{name}.png") for name in names
    ]


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
    found = probability_paths(Path("p/a"), "png", labels)
    assert found == [Path(f"p/a_probability_{name}.png") for name in expected]


@pytest.mark.parametrize("options", [{}, {"tile": 32, "overlap": 0.5}])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_written(tmp_path: Path, options: Any, classes: int) -> None:
    prediction = make_predictor(classes=classes, scale=0.5, **options)(noise(41, 67))
    expected = prediction.probabilities
    npy = probability_paths(tmp_path / "a", "npy", prediction.labels)
    write_probabilities(prediction, npy)
    stored = np.load(npy[0])
    assert stored.dtype == np.float32 and np.array_equal(stored, expected)
    pngs = probability_paths(tmp_path / "a", "png", prediction.labels)
    write_probabilities(prediction, pngs)
    for path, plane in zip(pngs, expected, strict=True):
        picture = np.asarray(Image.open(path))
        assert picture.dtype == np.uint16
        assert np.abs(picture / 65535.0 - plane).max() <= 0.5 / 65535 + 1e-7


@pytest.mark.parametrize("largest", [40, 39])
def test_an_overlay_is_the_drawn_mask_reduced_if_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(module, "_LARGEST_OVERLAY", largest)
    image, ids = noise(30, 40), (noise(30, 40)[..., 0] > 99).astype(np.uint8)
    write_overlay(ids, LABELS[0], open_array(image, ImageFormat(3), 1.0), tmp_path / "a.png")
    found = np.asarray(Image.open(tmp_path / "a.png"))
    size = (30, 40) if largest == 40 else (29, 39)
    drawn = draw_mask(resize_area(image, size), resize_nearest(ids, size), LABELS[0])
    assert np.array_equal(found, drawn.permute(1, 2, 0).numpy())
