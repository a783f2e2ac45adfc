"""The function for CVAT, by the types and the driver of cvat-sdk, and back by our own import."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.extras.annotations.test_readers import blob
from tests.prediction.outputs.writing import predicted
from unet_ddp.__main__ import main as command
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.prediction import Prediction

pytest.importorskip("cvat_sdk", reason="cvat-sdk (Python 3.11 or newer) is not installed")

from cvat_sdk import auto_annotation as cvat
from cvat_sdk import models
from cvat_sdk.auto_annotation import driver
from cvat_sdk.masks import decode_mask

from unet_ddp.extras.cvat.function import Function, find_objects

LABELS = Labels((0, 7, 9), names=("background", "car", "träe"))
Ids = NDArray[np.uint8]


class Painted:
    """A predictor whose networks see class ids as grey values."""

    def __init__(self, labels: Labels = LABELS) -> None:
        self.labels = labels

    def __call__(self, image: Image.Image) -> Prediction:
        return predicted(np.asarray(image.convert("L")), self.labels)


@pytest.fixture
def images(rng: np.random.Generator) -> dict[str, Ids]:
    drawn = {}
    for name, size in (("a.png", (90, 70)), ("sub/b.png", (31, 57)), ("c.png", (5, 4))):
        drawn[name] = np.zeros(size, np.uint8)
        for k in (1, 2) if name != "c.png" else ():
            drawn[name][blob(rng, size)] = k
    return drawn


def annotate(
    images: dict[str, Ids], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> list[models.LabeledShapeRequest]:
    """Return the shapes that the driver uploads to the task, whose server is left out."""
    labels = [
        models.Label(name=name, id=70 + k, type="any", attributes=[], sublabels=[])
        for k, name in enumerate(LABELS.class_names)
    ]
    samples = [
        SimpleNamespace(frame_name=name, frame_index=number, media=SimpleNamespace(load_image=lambda ids=ids: Image.fromarray(ids)))
        for number, (name, ids) in enumerate(images.items())
    ]  # fmt: skip
    task = SimpleNamespace(labels=labels, samples=samples)
    monkeypatch.setattr(driver, "TaskDataset", lambda *_, **__: task)
    uploaded: list[Any] = []
    api = SimpleNamespace(
        partial_update_annotations=lambda *_, patched_labeled_data_request: uploaded.append(
            patched_labeled_data_request
        )
    )
    client: Any = SimpleNamespace(
        logger=logging.getLogger(__name__), tasks=SimpleNamespace(api=api)
    )
    cvat.annotate_task(client, 1, Function(Painted()), **settings)  # type: ignore[arg-type]
    (data,) = uploaded
    return list(data.shapes)


def export(images: dict[str, Ids], shapes: list[Any]) -> Iterator[str]:
    """Yield the lines of the task in the format "CVAT for images 1.1"."""
    names = dict(enumerate(LABELS.class_names, start=70))
    labels = "".join(f"<label><name>{name}</name></label>" for name in LABELS.class_names)
    yield f"<annotations><version>1.1</version><meta><job><labels>{labels}</labels></job></meta>"
    for number, (name, ids) in enumerate(images.items()):
        height, width = ids.shape
        yield f'<image id="{number}" name={quoteattr(name)} width="{width}" height="{height}">'
        for shape in shapes:
            if shape.frame == number:
                *runs, left, top, right, bottom = map(int, shape.points)
                place = f'left="{left}" top="{top}" width="{right - left + 1}" height="{bottom - top + 1}"'
                runs_text = ", ".join(map(str, runs))
                yield f'<mask label="{names[shape.label_id]}" source="auto" z_order="0" rle="{runs_text}" {place}/>'
        yield "</image>"
    yield "</annotations>"


def test_class_ids_to_a_task_and_back(
    images: dict[str, Ids], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = annotate(images, monkeypatch, allow_unmatched_labels=True)
    assert {shape.type.value for shape in shapes} == {"mask"}
    (tmp_path / "a.xml").write_text("".join(export(images, shapes)), encoding="utf-8")
    for name, ids in images.items():
        path = tmp_path / "images" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(ids).save(path)
    argv = [
        str(tmp_path / "a.xml"),
        "--images",
        str(tmp_path / "images"),
        "-o",
        str(tmp_path / "o"),
    ]
    assert command(["import", *argv]) == 0
    for name, ids in images.items():
        assert np.array_equal(read_mask(tmp_path / "o" / name), ids)


def test_each_connected_object_is_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.zeros((4, 6), np.uint8)
    ids[0, :2], ids[1, 2], ids[3, 5] = 1, 1, 2  # the second touches the first by a corner
    shapes = annotate({"a.png": ids}, monkeypatch)
    drawn = [decode_mask(shape.points, image_width=6, image_height=4) for shape in shapes]
    assert [
        (shape.label_id, int(pixels.sum())) for shape, pixels in zip(shapes, drawn, strict=True)
    ] == [
        (71, 2),
        (71, 1),
        (72, 1),
    ]


def test_polygons_where_cvat_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.zeros((30, 40), np.uint8)
    ids[10:20, 5:25] = 1
    (shape,) = annotate({"a.png": ids}, monkeypatch, conv_mask_to_poly=True)
    assert (shape.type.value, shape.label_id) == ("polygon", 71)
    points = np.reshape(shape.points, (-1, 2))
    assert np.abs(points.min(axis=0) - (5, 10)).max() <= 1
    assert np.abs(points.max(axis=0) - (25, 20)).max() <= 1


class _Context:
    frame_name, conv_mask_to_poly = "a.png", False

    def __init__(self, conf_threshold: float) -> None:
        self.conf_threshold = conf_threshold


@pytest.mark.parametrize(("threshold", "sizes"), [(0.5, [4, 2]), (0.8, [4]), (0.99, [])])
def test_a_confidence_is_the_mean_probability(threshold: float, sizes: list[int]) -> None:
    scores = np.full((1, 4, 6), -4, np.float32)
    scores[0, :2, :2] = 4  # 0.98
    scores[0, 3, 3:5] = 1  # 0.73
    labels = Labels((0, 255))
    seen = SimpleNamespace(labels=labels)
    function = Function(seen)  # type: ignore[arg-type]
    prediction = Prediction([(0, scores)], labels, (4, 6), (4, 6))
    function.predictor = lambda image: prediction  # type: ignore[assignment, misc]
    found = function.detect(_Context(threshold), Image.new("L", (6, 4)))  # type: ignore[arg-type]
    pixels = [decode_mask(each.points, image_width=6, image_height=4).sum() for each in found]
    assert pixels == sizes


def test_numbered_objects_that_touch_are_two() -> None:
    labels = ObjectLabels.of(("car",))
    mask = np.zeros((4, 6), np.uint16)
    mask[0, :2], mask[0, 2:4] = 3, 9
    found = list(find_objects(predicted(mask, labels)))
    assert [(each.class_id, each.window[1].start, int(each.pixels.sum())) for each in found] == [
        (1, 0, 2),
        (1, 2, 2),
    ]
    assert [(label.name, label.id) for label in Function(Painted(labels)).spec.labels] == [
        ("car", 1)
    ]  # type: ignore[arg-type]
