"""Objects as polygons, against pixels counted by rays and areas by the shoelace formula."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.prediction.outputs.writing import image_files, make, merge, predicted
from tests.ranks import python
from unet_ddp.data.labels import Labels
from unet_ddp.extras.outputs.polygons import Polygons, polygons

Ring = list[list[int]]
TWO = Labels((0, 255), names=("road", "car"))


def contains(ring: Ring, size: tuple[int, int]) -> np.ndarray:
    """Pixels whose centre lies in a ring: even-odd rule, by rays to the left."""
    y, x = (np.indices(size) + 0.5).astype(float)
    inside = np.zeros(size, bool)
    for (x0, y0), (x1, y1) in pairwise(ring):
        assert (x0 == x1) != (y0 == y1)  # along the edges
        inside ^= (min(y0, y1) < y) & (y < max(y0, y1)) & (x0 < x) & (x0 == x1)
    return inside


def shoelace(ring: Ring) -> float:
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring)) / 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_polygons_contain_their_objects_pixels_and_no_other(
    rng: np.random.Generator, share: float
) -> None:
    """On noise: single pixels, lines, holes, objects in holes, corners that touch."""
    ids = (rng.random((23, 31)) < share).astype(np.uint8)
    covered = np.zeros(ids.shape, int)
    for feature in polygons("a.png", ids, TWO):
        outer, *holes = feature["geometry"]["coordinates"]
        inside = contains(outer, ids.shape)
        for hole in holes:
            assert shoelace(hole) < 0 and hole[0] == hole[-1]
            inside &= ~contains(hole, ids.shape)
        assert shoelace(outer) > 0 and outer[0] == outer[-1] and len(outer) >= 5
        area = int(inside.sum())
        assert feature["properties"] == {"image": "a.png", "class": "car", "area": area}
        assert sum(map(shoelace, [outer, *holes])) == area
        covered += inside
    assert np.array_equal(covered, ids)


def test_a_drawn_shape_has_its_corners_alone() -> None:
    picture = Image.new("L", (20, 12))
    ImageDraw.Draw(picture).rectangle((3, 2, 10, 8), fill=1)
    ImageDraw.Draw(picture).rectangle((5, 4, 6, 5), fill=0)
    (feature,) = polygons("a", np.asarray(picture), Labels((0, 1)))
    assert feature["type"] == "Feature" and feature["geometry"]["type"] == "Polygon"
    outer, hole = feature["geometry"]["coordinates"]
    assert sorted(map(tuple, outer[:-1])) == [(3, 2), (3, 9), (11, 2), (11, 9)]
    assert sorted(map(tuple, hole[:-1])) == [(5, 4), (5, 6), (7, 4), (7, 6)]
    assert feature["properties"]["area"] == 8 * 7 - 4


def test_of_more_than_two_classes_each_has_its_objects() -> None:
    ids = np.array([[0, 0, 1], [2, 2, 1]], np.uint8)
    found = [
        (feature["properties"]["class"], feature["properties"]["area"])
        for feature in polygons("a", ids, Labels((3, 5, 9)))
    ]
    assert found == [("3", 2), ("5", 2), ("9", 2)]


def test_threads_find_what_one_finds(rng: np.random.Generator) -> None:
    masks = [(rng.random((20, 20)) < 0.6).astype(np.uint8) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda ids: list(polygons("a", ids, TWO)), masks))
    assert found == [list(polygons("a", ids, TWO)) for ids in masks]


@pytest.mark.thorough
@pytest.mark.processes
def test_threads_that_trace_polygons_print_no_warning(tmp_path: Path) -> None:
    """In a program, without pytest's filters."""
    program = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from unet_ddp.data.labels import Labels
from unet_ddp.extras.outputs.polygons import polygons
masks = np.random.default_rng(0).integers(0, 2, (200, 20, 20), np.uint8)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda mask: list(polygons("a", mask, Labels((0, 255)))), masks))
"""
    done = python(tmp_path, "-W", "always:Dataset has no", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_file_is_json_of_all_images_objects(tmp_path: Path) -> None:
    output = make(Polygons, TWO, polygons=str(tmp_path / "a.geojson"))
    objects = predicted(np.array([[1, 0, 1]], np.uint8), TWO)
    nothing = predicted(objects.mask * 0, TWO)
    path = merge(output, [("0.png", objects), ("1.png", nothing), ("2.png", objects)])
    loaded = json.loads(path.read_text())
    assert loaded["type"] == "FeatureCollection"
    images = [feature["properties"]["image"] for feature in loaded["features"]]
    assert images == ["0.png", "0.png", "2.png", "2.png"]
    record = output.record(image_files("0.png"), objects)
    assert loaded["features"][:2] == json.loads(f"[{record}]")
    assert output.record(image_files("1.png"), nothing) == ""
