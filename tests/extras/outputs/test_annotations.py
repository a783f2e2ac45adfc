"""Predicted objects in annotation files: read by pycocotools and by our own import."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.extras.annotations.test_readers import blob
from tests.prediction.outputs.writing import image_files, make, merge, predicted
from unet_ddp.__main__ import main as command
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.outputs.annotations import CocoFile, open_annotations

COCO = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed").COCO

LABELS = Labels((0, 7, 9), names=("nothing", "car", "träe"))
Ids = NDArray[np.uint8]


def draw(rng: np.random.Generator) -> Ids:
    ids = np.zeros((90, 70), np.uint8)
    for k in (1, 2, 1):
        ids[blob(rng, (90, 70))] = k
    ids[3, 5] = 2  # a single pixel
    return ids


def is_within_a_pixel(found: Ids, truth: Ids) -> bool:
    """Return whether class ids differ only in pixels that touch an outline, also by a corner."""
    window = np.ones((3, 3), np.uint8)
    padded = np.pad(truth, 1, constant_values=255)
    is_at_outline = (cv2.dilate(padded, window) != cv2.erode(padded, window))[1:-1, 1:-1]
    return not ((found != truth) & ~is_at_outline).any()


def write(folder: Path, kind: str, images: dict[str, Ids]) -> Path:
    """Write what predict.py writes of class ids."""
    found = {name: predicted(ids, LABELS) for name, ids in images.items()}
    if kind == "labelme":
        output = make(open_annotations, LABELS, annotations="labelme")
        for name, prediction in found.items():
            mask = folder / "json" / f"{name}_mask.png"
            output.write(image_files(folder / "images" / f"{name}.png", mask), prediction)
        return folder / "json"
    output = make(open_annotations, LABELS, annotations=str(folder / "coco.json"))
    return merge(output, [(f"{name}.png", prediction) for name, prediction in found.items()])


@pytest.mark.parametrize("kind", ["coco", "labelme"])
def test_class_ids_to_a_file_and_back(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    images = {"a": draw(rng), 'b "1"': draw(rng), "c": np.zeros((5, 4), np.uint8)}
    (tmp_path / "images").mkdir()
    for name, ids in images.items():
        Image.fromarray(ids).save(tmp_path / "images" / f"{name}.png")
    file = write(tmp_path, kind, images)
    argv = ["import", str(file), "--images", str(tmp_path / "images"), "-o", str(tmp_path / "out")]
    assert command(argv) == 0
    for name, ids in images.items():
        mask = read_mask(tmp_path / "out" / f"{name}.png")
        assert is_within_a_pixel(mask.astype(np.uint8), ids)


@pytest.mark.parametrize(
    ("labels", "categories"),
    [
        (Labels((9, 0, 7)), {0: "9", 2: "7"}),  # 0 is the background, wherever it is listed
        (Labels((255, 0)), {1: "0"}),  # of two classes the second is the object
        (ObjectLabels.of(("car", "tree")), {1: "car", 2: "tree"}),  # borders are none
    ],
)
def test_classes_of_objects_are_categories(
    tmp_path: Path, labels: Labels, categories: dict[int, str]
) -> None:
    file = make(CocoFile, labels, annotations=str(tmp_path / "a.json"))
    content = json.loads(merge(file, []).read_text())
    assert {each["id"]: each["name"] for each in content["categories"]} == categories


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pycocotools_opens_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    ids = draw(rng)
    file = write(tmp_path, "coco", {"a": ids, "b": np.zeros((4, 4), np.uint8)})
    with contextlib.redirect_stdout(None):
        coco = COCO(str(file))
    assert [each["name"] for each in coco.loadCats(coco.getCatIds())] == ["car", "träe"]
    assert sorted(coco.getImgIds()) == [1, 2] and coco.loadImgs(1)[0]["file_name"] == "a.png"
    assert coco.getAnnIds(imgIds=[2]) == []
    assert coco.getAnnIds() == list(range(1, len(coco.anns) + 1))
    assert coco.getAnnIds(iscrowd=False) == coco.getAnnIds()
    for k in (1, 2):
        objects = coco.loadAnns(coco.getAnnIds(imgIds=[1], catIds=[k]))
        mask = np.max([coco.annToMask(each) for each in objects], axis=0)
        assert is_within_a_pixel(mask, (ids == k).astype(np.uint8))
        assert sum(each["area"] for each in objects) == (ids == k).sum()


def test_a_disc_is_an_outline_that_a_hand_can_correct(tmp_path: Path) -> None:
    """Steps of a pixel are no corners, and the hole is joined to the outline."""
    ids = np.zeros((100, 100), np.uint8)
    cv2.circle(ids, (50, 50), 40, 1, -1)
    cv2.circle(ids, (50, 50), 10, 0, -1)
    labels = Labels((0, 255))
    files = image_files(tmp_path / "images" / "a.png", tmp_path / "out" / "a_mask.png")
    make(open_annotations, labels, annotations="labelme").write(files, predicted(ids, labels))
    content = json.loads((tmp_path / "out" / "a.json").read_text())
    (shape,) = content.pop("shapes")
    assert content == {
        "version": "5.0.0", "flags": {}, "imagePath": "../images/a.png", "imageData": None,
        "imageHeight": 100, "imageWidth": 100,
    }  # fmt: skip
    assert (shape["label"], shape["shape_type"]) == ("255", "polygon")
    assert 20 < len(shape["points"]) < 80


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"--annotations a\.xml: use labelme, or a name with \.json"
    ):
        make(open_annotations, LABELS, annotations="a.xml").check({})
