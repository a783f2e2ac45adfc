"""GeoJSON of QuPath, whose objects are in an image's pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.data.readers.read import read_mask

SQUARE = [[1, 1], [5, 1], [5, 5], [1, 5], [1, 1]]
HOLE = [[2, 2], [4, 2], [4, 4], [2, 4], [2, 2]]
FAR = [[8, 6], [10, 6], [10, 8], [8, 8], [8, 6]]


def feature(*rings: Any, label: Any = None, kind: str = "Polygon") -> dict[str, Any]:
    properties = {"objectType": "annotation"} | ({"classification": label} if label else {})
    geometry = {"type": kind, "coordinates": [*rings]}
    return {"type": "Feature", "id": "0b1c", "geometry": geometry, "properties": properties}


def run(here: Path, capsys: pytest.CaptureFixture[str], file: str, *flags: str) -> tuple[int, str]:
    status = main(
        ["import", str(here / file), "--images", str(here / "i"), "-o", str(here / "o"), *flags]
    )
    out, err = capsys.readouterr()
    return status, out + err


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "i").mkdir()
    for name in ("a.png", "b.tif"):
        Image.new("RGB", (12, 9)).save(tmp_path / "i" / name)
    return tmp_path


def write(path: Path, *features: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def pixels(value: int, *boxes: tuple[int, int, int, int]) -> Any:
    """Return a mask with `value` in the first box (top, left, bottom, right), 0 in the others."""
    mask = np.zeros((9, 12), np.uint8)
    for place, (top, left, bottom, right) in enumerate(boxes):
        mask[top:bottom, left:right] = 0 if place else value
    return mask


def test_holes_parts_and_names_of_classes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Objects of one file with holes and parts; later ones are above; a height is no coordinate."""
    high = [[*point, 7.5] for point in FAR]
    write(
        here / "q" / "a.geojson",
        feature(SQUARE, HOLE, label={"name": "Tumor", "color": [200, 0, 0]}),
        feature([high], kind="MultiPolygon", label={"names": ["Tumor", "Positive"], "color": [1, 2, 3]}),
        feature([3, 3], kind="Point", label={"name": "Tumor"}),
    )  # fmt: skip
    write(here / "q" / "b.tif.geojson", feature(SQUARE, label="Stroma"))
    status, text = run(here, capsys, "q")
    assert status == 0 and "1 boxes, ellipses, lines or points have" in text, text
    names = [line.split(",")[0] for line in (here / "o/palette.csv").read_text().splitlines()]
    assert names == ["background", "Stroma", "Tumor", "Tumor: Positive"]
    expected = pixels(2, (1, 1, 5, 5), (2, 2, 4, 4))
    expected[6:8, 8:10] = 3
    np.testing.assert_array_equal(read_mask(here / "o/a.png"), expected)
    np.testing.assert_array_equal(read_mask(here / "o/b.png"), pixels(1, (1, 1, 5, 5)))


def test_objects_without_a_class_count_if_none_has_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else they are the regions in which QuPath looked for objects, and would cover what is below."""
    write(here / "q" / "a.geojson", feature(FAR), feature(SQUARE))
    write(here / "q" / "b.geojson", feature(HOLE))
    assert run(here, capsys, "q")[0] == 0
    assert (here / "o/palette.csv").read_text().splitlines()[1].startswith("object,")
    assert read_mask(here / "o/a.png").sum() == 16 + 4 and read_mask(here / "o/b.png").sum() == 4

    write(here / "p" / "a.geojson", feature(SQUARE), feature(FAR, label={"name": "cell"}))
    write(here / "p" / "b.geojson", feature(HOLE))
    (here / "o").rename(here / "before")
    status, text = run(here, capsys, "p")
    assert status == 0 and "2 objects without a class: left out" in text, text
    assert read_mask(here / "o/a.png").sum() == 4 and not read_mask(here / "o/b.png").any()


def test_a_collection_of_geometries_is_one_object(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its areas may overlap; its lines have no outline. A collection of lines alone is left out."""
    wide = [[3, 2], [7, 2], [7, 4], [3, 4], [3, 2]]
    parts = [
        feature(SQUARE),
        feature([1, 2], [3, 4], kind="LineString"),
        feature([wide], kind="MultiPolygon"),
    ]
    whole, lines = (
        {**feature(label="cell"), "geometry": {"type": "GeometryCollection", "geometries": some}}
        for some in ([part["geometry"] for part in parts], [parts[1]["geometry"]])
    )
    write(here / "a.geojson", whole, lines)
    status, text = run(here, capsys, "a.geojson", "--instances")
    assert status == 0 and "1 mask of 1 object;" in text and "\n1 boxes, ellipses, lines" in text
    expected = pixels(1, (1, 1, 5, 5))
    expected[2:4, 3:7] = 1
    np.testing.assert_array_equal(read_mask(here / "o/a.png"), expected)


@pytest.mark.parametrize("form", ["list", "one", "collection"])
def test_one_file_may_be_a_list_or_one_object(
    here: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    one = feature(SQUARE, label={"name": "cell"})
    content = {
        "list": [one],
        "one": one,
        "collection": {"type": "FeatureCollection", "features": [one]},
    }
    (here / "a.geojson").write_text(json.dumps(content[form]))
    assert run(here, capsys, "a.geojson", "--instances")[0] == 0
    np.testing.assert_array_equal(read_mask(here / "o/a.png"), pixels(1, (1, 1, 5, 5)))


def test_what_is_wrong_is_named_by_its_place(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "a.geojson", feature([[1, 2], [3, 1e300], [5, 6]], label={"name": "cell"}))
    status, text = run(here, capsys, "a.geojson")
    assert status == 2 and text.count("\n") == 1
    assert f"{here}/a.geojson: object 0b1c: an outline's coordinate is no place in an image" in text
    (here / "a.geojson").write_text("{}")
    assert "not COCO, Labelme, QuPath" in run(here, capsys, "a.geojson")[1]
    (here / "f").mkdir()
    (here / "a.geojson").rename(here / "f" / "a.geojson")
    assert "a.geojson: not GeoJSON with features; export it again" in run(here, capsys, "f")[1]
