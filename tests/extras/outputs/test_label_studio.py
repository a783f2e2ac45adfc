"""Predictions as tasks of Label Studio, and back by our own import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.extras.annotations.test_readers import blob
from tests.prediction.outputs.writing import image_files, make, merge, predicted
from unet_ddp.__main__ import main as command
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.regions import draw_brush
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.outputs import label_studio
from unet_ddp.extras.outputs.label_studio import LabelStudioFile, locate, pack_brush
from unet_ddp.extras.overlap.labels import OverlapLabels

LABELS = Labels((0, 7, 9), names=("nothing", "car", "träe"))


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (300, 200), (129, 131)])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_a_brush_has_the_pixels_of_its_region(
    size: tuple[int, int], share: float, rng: np.random.Generator
) -> None:
    pixels = rng.random(size) < share
    patch = draw_brush(bytes(pack_brush(pixels)), size)
    assert np.array_equal(patch.pixels, pixels)


@pytest.mark.parametrize("corner", [(0, 0), (3, 0), (0, 4), (2, 1)])
@pytest.mark.parametrize("share", [0.5, 1])
def test_a_window_is_packed_as_the_whole_image(
    corner: tuple[int, int], share: float, rng: np.random.Generator
) -> None:
    top, left = corner
    pixels = np.zeros((9, 7), bool)
    pixels[top : top + 6, left : 7 if left == 4 else left + 6] = True
    window = pixels[top : top + 6, left : left + 6]
    window &= rng.random(window.shape) < share
    assert pack_brush(window, (9, 7), corner) == pack_brush(pixels)


def test_the_cost_of_an_object_is_its_own_window_s(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.zeros((160, 320), np.uint16)
    for n in range(200):
        top, left = 16 * (n // 20), 16 * (n % 20)
        numbers[top : top + 9, left : left + 5] = n + 1
    shapes = []

    def spy(pixels: Any, *where: Any) -> list[int]:
        shapes.append(pixels.shape)
        return pack_brush(pixels, *where)

    monkeypatch.setattr(label_studio, "pack_brush", spy)
    labels = ObjectLabels.of(("cell",))
    output = make(LabelStudioFile, labels, label_studio="tasks.json")
    output.record(image_files("x.png"), predicted(numbers, labels))
    assert shapes == [(9, 5)] * 200


def test_bytes_of_a_brush() -> None:
    # 8 values, 8 bits each, runs of 3, 4, 8 or 16 bits; four values of 0, then four of 255
    bits = f"{8:032b}" + "00111" + "0010001101111111"
    bits += "10001100000000" + "10001111111111"
    bits += "0" * (-len(bits) % 8)
    assert bytes(pack_brush(np.array([[False, True]]))) == int(bits, 2).to_bytes(
        len(bits) // 8, "big"
    )


def accept(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Label Studio's export of tasks whose predictions a person has accepted."""
    return [
        {"data": task["data"], "annotations": [{"was_cancelled": False, "result": each["result"]}]}
        for task in tasks
        for each in task["predictions"]
    ]


def test_class_ids_to_tasks_and_back(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    images = {}
    for name, size in (("a", (90, 70)), ("b #1+2 %41", (31, 57)), ("c", (5, 4))):
        ids = np.zeros(size, np.uint8)
        for k in (1, 2) if name != "c" else ():
            ids[blob(rng, size)] = k
        Image.fromarray(ids).save(folder / f"{name}.png")
        images[name] = ids
    output = make(LabelStudioFile, LABELS, label_studio=str(tmp_path / "tasks.json"))
    found = [(folder / f"{name}.png", predicted(ids, LABELS)) for name, ids in images.items()]
    tasks = json.loads(merge(output, found).read_text())
    (tmp_path / "export.json").write_text(json.dumps(accept(tasks)))
    argv = [str(tmp_path / "export.json"), "--images", str(folder), "-o", str(tmp_path / "out")]
    assert command(["import", *argv]) == 0
    for name, ids in images.items():
        assert np.array_equal(read_mask(tmp_path / "out" / f"{name}.png"), ids)


def test_a_numbered_object_is_a_region() -> None:
    labels = ObjectLabels.of(("car",))
    mask = np.zeros((4, 6), np.uint16)
    mask[0, :2], mask[0, 2:4], mask[3, 1] = 3, 9, 9
    output = make(LabelStudioFile, labels, label_studio="tasks.json")
    task = json.loads(output.record(image_files("x.png"), predicted(mask, labels)))
    results = task["predictions"][0]["result"]
    brushes = [draw_brush(bytes(each["value"]["rle"]), (4, 6)).pixels for each in results]
    assert [brush.sum() for brush in brushes] == [2, 3]
    assert [each["value"]["brushlabels"] for each in results] == [["car"], ["car"]]
    assert len({each["id"] for each in results}) == 2


def test_overlapping_classes_are_overlapping_regions() -> None:
    labels = OverlapLabels((1, 2), names=("cell", "nucleus"))
    output = make(LabelStudioFile, labels, label_studio="tasks.json")
    fields = np.array([[0, 1, 3], [0, 1, 2]], np.uint8)
    task = json.loads(output.record(image_files("x.png"), predicted(fields, labels)))
    found = {
        each["value"]["brushlabels"][0]: draw_brush(bytes(each["value"]["rle"]), (2, 3)).pixels
        for each in task["predictions"][0]["result"]
    }
    assert found["cell"].tolist() == [[False, True, True], [False, True, False]]
    assert found["nucleus"].tolist() == [[False, False, True], [False, False, True]]


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("new/ä b.jpg", "/data/local-files/?d=new/%C3%A4%20b.jpg"),
        ("/srv/a&b.jpg", "/data/local-files/?d=srv/a%26b.jpg"),
        ("s3://bucket/a b.jpg", "s3://bucket/a b.jpg"),
    ],
)
def test_images_are_local_files_or_at_their_addresses(path: str, url: str) -> None:
    assert locate(image_files(path).image if "://" not in path else path) == url  # type: ignore[arg-type]


def test_a_file_that_label_studio_would_not_take() -> None:
    with pytest.raises(UserError, match=r"--label-studio tasks\.txt: the name must end in \.json"):
        make(LabelStudioFile, LABELS, label_studio="tasks.txt").check({})
