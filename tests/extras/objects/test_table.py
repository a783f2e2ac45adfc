"""The CSV file of objects, its numbers worked out by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.prediction.outputs.writing import image_files, make, merge, predicted
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.table import CountTable, ObjectTable
from unet_ddp.extras.outputs.annotations import open_annotations
from unet_ddp.extras.outputs.polygons import Polygons
from unet_ddp.prediction.outputs import overlay
from unet_ddp.prediction.outputs.mask import write_mask
from unet_ddp.prediction.outputs.overlay import Overlay
from unet_ddp.prediction.prediction import Prediction

OBJECTS = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5))
NUMBERS = np.array([[0, 1, 1, 2], [0, 1, 1, 2], [0, 0, 0, 2]], np.uint16)


def test_rows_of_all_images(tmp_path: Path) -> None:
    table = make(ObjectTable, OBJECTS, objects=str(tmp_path / "objects.csv"))
    extent = np.array([[9, 255, 255, 51], [9, 51, 51, 51], [9, 9, 9, 102]], np.uint8)
    found = [
        ("=a.png", predicted(NUMBERS, OBJECTS, extent)),
        ("empty.png", predicted(NUMBERS * 0, OBJECTS, extent)),
        ("b.png", predicted(NUMBERS, OBJECTS)),  # written by an earlier job
    ]
    rows = list(csv.DictReader(merge(table, found).read_text().splitlines()))
    assert [row["image"] for row in rows] == ["=a.png", "=a.png", "b.png", "b.png"]
    assert list(rows[0].values())[1:] == [
        "1", "object", "4", "2.00", "1.00", "1", "0", "3", "2", "0.6000",
    ]  # fmt: skip
    assert rows[1]["number"] == "2" and rows[1]["probability"] == f"{204 / 3 / 255:.4f}"
    assert (rows[1]["x"], rows[1]["y"], rows[1]["area"]) == ("3.50", "1.50", "3")
    assert rows[2] == rows[0] | {"image": "b.png", "probability": ""}


def test_every_image_has_a_row_of_counts(tmp_path: Path) -> None:
    """Also one without objects: the mean over the rows is the mean over the images."""
    table = make(CountTable, OBJECTS, counts=str(tmp_path / "counts.csv"))
    found = [("a.png", NUMBERS), ("none.png", NUMBERS * 0), ("b.png", NUMBERS == 2)]
    images = [(name, predicted(mask.astype(np.uint16), OBJECTS)) for name, mask in found]
    assert merge(table, images).read_text().splitlines() == [
        "image,objects,area,mean_area,share",
        f"a.png,2,7,3.50,{7 / 12:.6f}",
        "none.png,0,0,,0.000000",
        "b.png,1,3,3.00,0.250000",
    ]


def test_classes_are_counted_apart(tmp_path: Path) -> None:
    """Numbers may begin anew in each class, and have gaps."""
    labels = ObjectLabels.of(("car", "big tree"))
    values = np.array([[0, 2_000_001, 2_000_001], [2_000_007, 0, 1_000_001]], np.int32)
    table = make(CountTable, labels, counts=str(tmp_path / "counts.csv"))
    images = [(f"{k}.tif", predicted(values * k, labels)) for k in (1, 0)]
    assert merge(table, images).read_text().splitlines() == [
        "image,objects,area,mean_area,share,objects_car,objects_big tree",
        f"1.tif,3,4,1.33,{4 / 6:.6f},1,2",
        "0.tif,0,0,,0.000000,0,0",
    ]


@pytest.mark.parametrize("kind", [ObjectTable, CountTable])
def test_a_network_for_classes_has_no_objects(kind: type[ObjectTable | CountTable]) -> None:
    name = kind.path_setting
    with pytest.raises(UserError, match=rf"--{name} a\.csv: .* not trained with --instances"):
        make(kind, Labels((0, 255)), **{name: "a.csv"}).check({})


def test_polygons_have_one_feature_for_each_object_though_they_touch() -> None:
    record = make(Polygons, OBJECTS, polygons="a").record(
        image_files("a"), predicted(NUMBERS, OBJECTS)
    )
    found = json.loads(f"[{record}]")
    properties = [feature["properties"] for feature in found]
    assert properties == [
        {"image": "a", "class": "object", "number": 1, "area": 4},
        {"image": "a", "class": "object", "number": 2, "area": 3},
    ]
    corners = [[tuple(point) for point in f["geometry"]["coordinates"][0]] for f in found]
    assert set(corners[0]) == {(1, 0), (3, 0), (3, 2), (1, 2)}
    assert set(corners[1]) == {(3, 0), (4, 0), (4, 3), (3, 3)}


def test_outlines_in_a_reduced_overlay_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlay, "LARGEST", 20)
    numbers = np.zeros((100, 100), np.int32)
    numbers[20:80, 20:80] = 1
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    files = image_files(tmp_path / "a.png", tmp_path / "a_mask.png")
    make(Overlay, OBJECTS).write(files, predicted(numbers, OBJECTS))
    drawn = np.asarray(Image.open(tmp_path / "a_overlay.png")).any(axis=2)
    expected = np.zeros((20, 20), bool)
    expected[4:16, 4:16] = True
    expected[5:15, 5:15] = False
    assert np.array_equal(drawn, expected)


def test_numbered_masks_have_16_bit_and_32_where_more(tmp_path: Path) -> None:
    for ending in ("png", "tif"):
        write_mask(NUMBERS, OBJECTS, tmp_path / f"a.{ending}")
        with Image.open(tmp_path / f"a.{ending}") as image:
            assert image.mode == "I;16" and np.array_equal(np.asarray(image), NUMBERS)
    many = NUMBERS.astype(np.int32) * 40_000
    write_mask(many, OBJECTS, tmp_path / "b.tif")
    stored = tifffile.imread(tmp_path / "b.tif")
    assert stored.itemsize == 4 and np.array_equal(stored, many)
    with pytest.raises(
        UserError, match="values up to 80000; a PNG has at most 65535: use --mask-format tif"
    ):
        write_mask(many, OBJECTS, tmp_path / "b.png")


@pytest.mark.parametrize(("last", "dtype"), [(65535, np.uint16), (65536, np.int32)])
def test_numbers_have_16_bit_as_long_as_they_fit(last: int, dtype: type) -> None:
    prediction = Prediction([], OBJECTS, input_size=(1, 2), size=(1, 2))
    prediction.mask = OBJECTS.join_values(*[np.array([[0, last]], np.int32)] * 2)
    assert prediction.mask.dtype == dtype and prediction.mask.tolist() == [[0, last]]
    if dtype == np.uint16:
        assert np.asarray(prediction.to_image()).tolist() == [[0, last]]
    else:  # Pillow would save 65535
        with pytest.raises(UserError, match=r"values up to 65536; .* prediction\.mask"):
            prediction.to_image()


def test_objects_of_several_classes_have_their_names_in_all_lists(tmp_path: Path) -> None:
    """And their values in the mask, which has 32 bit even if it has no object."""
    labels = ObjectLabels.of(("car", "big tree"))
    values = np.array([[0, 2_000_001, 2_000_001], [0, 0, 1_000_002]], np.int32)
    for mask in (values * 0, values):
        write_mask(mask, labels, tmp_path / "a.tif")
        stored = tifffile.imread(tmp_path / "a.tif")
        assert stored.dtype == np.int32 and np.array_equal(stored, mask)
    found = predicted(read_mask(tmp_path / "a.tif"), labels)  # as --skip-existing
    files = image_files("a.png", tmp_path / "a_mask.tif")
    table = make(ObjectTable, labels, objects="a.csv").record(files, found)
    rows = [row.split(",")[1:4] for row in table.splitlines()]
    assert rows == [["1", "big tree", "2"], ["2", "car", "1"]]
    features = make(Polygons, labels, polygons="a").record(files, found)
    about = [f["properties"] for f in json.loads(f"[{features}]")]
    assert [(each["class"], each["number"]) for each in about] == [("big tree", 1), ("car", 2)]
    coco = make(open_annotations, labels, annotations=str(tmp_path / "coco.json"))
    content = json.loads(merge(coco, [("a.png", found)]).read_text())
    assert content["categories"] == [{"id": 1, "name": "car"}, {"id": 2, "name": "big tree"}]
    assert [each["category_id"] for each in content["annotations"]] == [2, 1]
    make(open_annotations, labels, annotations="labelme").write(files, found)
    shapes = json.loads((tmp_path / "a.json").read_text())["shapes"]
    assert [shape["label"] for shape in shapes] == ["big tree", "car"]


def test_outlines_in_an_overlay_have_the_colours_of_classes(tmp_path: Path) -> None:
    labels = ObjectLabels.of(("car", "tree"))
    values = np.zeros((20, 40), np.int32)
    values[4:16, 4:16], values[4:16, 20:32] = 1_000_001, 2_000_002
    Image.new("RGB", (40, 20)).save(tmp_path / "a.png")
    files = image_files(tmp_path / "a.png", tmp_path / "a_mask.tif")
    make(Overlay, labels).write(files, predicted(values, labels))
    drawn = np.asarray(Image.open(tmp_path / "a_overlay.png"))
    assert drawn[4, 10].any() and drawn[4, 25].any() and (drawn[4, 10] != drawn[4, 25]).any()
    assert not drawn[10, 10].any() and not drawn[0].any()
