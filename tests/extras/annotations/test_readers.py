"""Masks to the files of annotation tools and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.extras.annotations import writers
from unet_ddp.__main__ import main
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.annotations.fields import Fields

Mask = NDArray[np.bool_]

FORMATS: dict[str, Callable[[Path, writers.Objects], Path]] = {
    "coco polygons": lambda folder, objects: writers.coco(folder / "a.json", objects),
    "coco runs": lambda folder, objects: writers.coco(folder / "a.json", objects, "runs"),
    "coco compressed": lambda folder, objects: writers.coco(folder / "a.json", objects, "compressed"),
    "labelme polygons": lambda folder, objects: writers.labelme(folder / "json", objects),
    "labelme masks": lambda folder, objects: writers.labelme(folder / "json", objects, "masks"),
    "label studio polygons": lambda folder, objects: writers.label_studio(folder / "a.json", objects),
    "label studio brush": lambda folder, objects: writers.label_studio(folder / "a.json", objects, "brush"),
    "cvat polygons": lambda folder, objects: writers.cvat(folder / "a.xml", objects),
    "cvat masks": lambda folder, objects: writers.cvat(folder / "a.xml", objects, "masks"),
    "yolo": writers.yolo,
    "qupath": lambda folder, objects: writers.qupath(folder / "objects", objects),
}  # fmt: skip


def blob(rng: np.random.Generator, size: tuple[int, int]) -> Mask:
    """Return an object of any shape: parts, holes, pixels that touch by a corner."""
    noise = rng.normal(size=size).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), float(rng.uniform(0.6, 4)))
    return np.asarray(smooth > np.quantile(smooth, 0.75))


def make_set(folder: Path, rng: np.random.Generator) -> writers.Objects:
    """Write images in sub-folders, one turned by EXIF, and return objects that overlap."""
    objects: dict[str, list[tuple[str, Mask]]] = {}
    for name in ("a.png", "train/b 1.jpg", "train/ü.x.jpg", "val/a.png"):
        height, width = (int(side) for side in rng.integers(20, 60, 2))
        if name == "a.png":  # without objects
            height = width = 1
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (width, height) if name != "train/b 1.jpg" else (height, width))
        exif = picture.getexif()
        exif[0x0112] = 6 if name == "train/b 1.jpg" else 1
        picture.save(path, exif=exif)
        labels = rng.permutation(["tree", "car", "wäll", "car"])
        objects[name] = [(str(label), blob(rng, (height, width))) for label in labels]
    objects["a.png"] = []
    return objects


def expected(each: list[tuple[str, Mask]], size: tuple[int, int]) -> NDArray[np.int64]:
    """Return class ids, the classes by their names; later objects are above."""
    ids = np.zeros(size, np.int64)
    for label, mask in each:
        ids[mask] = ["", "car", "tree", "wäll"].index(label)
    return ids


@pytest.mark.parametrize("kind", FORMATS)
def test_masks_to_a_file_and_back(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Outlines along the edges of pixels, and run lengths, give the same pixels again."""
    objects = make_set(tmp_path, rng)
    file = FORMATS[kind](tmp_path, objects)
    images, out = str(tmp_path / "images"), tmp_path / "out"
    assert main(["import", str(file), "--images", images, "-o", str(out)]) == 0
    for name, each in objects.items():
        mask = read_mask((out / name).with_suffix(".png"))
        size = each[0][1].shape if each else mask.shape
        np.testing.assert_array_equal(mask, expected(list(each), size))
    lines = (out / "palette.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["background", "car", "tree", "wäll"]
    pairs = (out / "pairs.csv").read_text(encoding="utf-8").splitlines()
    assert pairs[0] == "image,mask" and len(pairs) == 5
    assert all((out / line.split(",")[0]).exists() for line in pairs[1:])


@pytest.mark.parametrize("value", [3, 3.0, "3", " 3", "3 "])
def test_an_identifier_is_the_same_however_it_is_written(value: object) -> None:
    assert Fields({"id": value}, "image").key("id") == "3"
