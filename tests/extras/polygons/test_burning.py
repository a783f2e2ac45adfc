"""Polygons as masks: the same pixels as rasterio's, whole and by windows, in any format and CRS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.extras.polygons.labelled_maps import (
    KINDS,
    SIDE,
    box,
    corner,
    shapely,
    shapes_on,
    to_degrees,
    write_labels,
    write_scenes,
)
from tests.maps import UTM, at, write_map
from tests.prediction.models import noise
from unet_ddp.config import DataConfig
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.bands import ByWindows
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.errors import UserError

SUFFIXES = (".gpkg", ".geojson", ".shp")


def burnt(folder: Path, labels: Path, *names: str, **flags: Any) -> Pairs:
    config = DataConfig(**{"class_field": "kind", **flags})
    return find_pairs(folder / "imgs", labels, names=names, config=config)


def by_rasterio(shapes: Any, values: Any, transform: Any, side: int = SIDE) -> np.ndarray:
    """Return a mask as rasterio burns shapes that are in the image's CRS."""
    from rasterio.features import rasterize

    pairs = zip(shapes, values, strict=True)
    return rasterize(pairs, (side, side), transform=transform, dtype="uint8")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_polygons_in_degrees_are_burnt_as_rasterio_burns_them_in_the_images_crs(
    tmp_path: Path, suffix: str
) -> None:
    shapes, kinds = shapes_on()
    labels = write_labels(tmp_path / f"l{suffix}", to_degrees(shapes), "EPSG:4326", kind=kinds)
    pairs = burnt(write_scenes(tmp_path), labels)
    assert pairs.class_names == ("building", "road", "water") and len(pairs) == 6
    values = [1 + sorted(KINDS).index(kind) for kind in kinds]
    for k, pair in enumerate(pairs):
        expected = by_rasterio(shapes, values, at(0.5, corner(k)))
        assert np.array_equal(read_mask(pair.mask), expected) and len(np.unique(expected)) > 2


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("turn", [0, 30])
def test_windows_together_are_the_whole_mask(tmp_path: Path, suffix: str, turn: int) -> None:
    shapes, kinds = shapes_on(2)
    write_map(tmp_path / "imgs" / "a.tif", noise(90, 70), at(0.5, turn=turn))
    labels = write_labels(tmp_path / f"l{suffix}", to_degrees(shapes), "EPSG:4326", kind=kinds)
    (pair,) = burnt(tmp_path, labels)
    whole = read_mask(pair.mask)
    parts = np.zeros_like(whole)
    with Source(pair.mask) as source, source.reading() as opened:
        assert isinstance(opened, ByWindows)
        for top in range(0, 90, 32):
            for left in range(0, 70, 17):
                rows, columns = slice(top, min(top + 32, 90)), slice(left, min(left + 17, 70))
                parts[rows, columns] = opened.read_window(rows, columns)[..., 0]
    assert np.array_equal(parts, whole) and len(np.unique(whole)) == 4


def test_a_centre_on_an_edge_is_the_same_in_each_window(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Pixels of 0.2 m and outlines in whole decimetres: many edges pass through centres."""
    write_map(tmp_path / "imgs" / "a.tif", noise(90, 70), at(0.2))
    import shapely

    x, y = corner(0)
    corners = (rng.integers(0, [[140, 180]], (40, 3, 2)) / 10 * (1, -1) + (x, y)).round(1)
    shapes = [shapely.Polygon(each) for each in corners]
    labels = write_labels(tmp_path / "l.gpkg", shapes, UTM, kind=["road"] * 40)
    (pair,) = burnt(tmp_path, labels)
    whole = read_mask(pair.mask)
    with Source(pair.mask) as source, source.reading() as opened:
        assert isinstance(opened, ByWindows)
        for top, left in ((0, 0), (1, 1), (13, 7), (32, 17), (37, 41)):
            rows, columns = slice(top, top + 32), slice(left, left + 29)
            part = opened.read_window(rows, columns)[..., 0]
            assert np.array_equal(part, whole[rows, columns])
    assert 0 < (whole > 0).mean() < 1


def test_a_window_of_a_scene_that_is_too_large_to_read_whole(tmp_path: Path) -> None:
    """Pillow refuses 180 million pixels; `--window` reads such scenes."""
    import rasterio

    side, (x, y) = 13_500, corner(0)
    (tmp_path / "imgs").mkdir()
    about = {"count": 1, "dtype": "uint8", "crs": UTM, "transform": rasterio.Affine(*at(0.5)[:6])}
    path = tmp_path / "imgs" / "a.tif"
    with rasterio.open(
        path, "w", driver="GTiff", width=side, height=side, tiled=True, sparse_ok=True, **about
    ):
        pass
    os.truncate(path, side**2 // 20)  # as large as if it had content
    labels = write_labels(tmp_path / "l.gpkg", [shapely.box(x, y - 6001, x + 6001, y)], kind=["a"])
    (pair,) = burnt(tmp_path, labels)
    with Source(pair.mask) as source, source.reading() as opened:
        assert isinstance(opened, ByWindows) and opened.header.size == (side, side)
        part = opened.read_window(slice(12_000, 12_004), slice(11_999, 12_003))[..., 0]
    assert np.argwhere(part).tolist() == [[r, c] for r in (0, 1) for c in (0, 1, 2)]


def test_the_later_of_two_polygons_has_what_they_share_and_holes_stay_holes(tmp_path: Path) -> None:
    ring = shapely.difference(box(10, 10, 30, 30), box(15, 15, 25, 25))
    shapes = [box(0, 0, 20, 48), ring, box(18, 18, 22, 22)]
    kinds = ["field", "fence", "background"]
    for suffix in SUFFIXES:  # an index of GeoPackages finds them in another order
        labels = write_labels(tmp_path / f"l{suffix}", shapes, kind=kinds)
        pairs = burnt(write_scenes(tmp_path, 1), labels)
        mask = read_mask(pairs[0].mask)
        assert pairs.class_names == ("fence", "field")
        assert (mask[12, 12], mask[17, 17], mask[5, 5], mask[17, 23]) == (1, 2, 2, 0)
        assert mask[20, 19] == 0 and (mask == 1).sum() == 300  # the background erases


def test_a_polygon_has_the_pixels_whose_centres_are_in_it(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "l.gpkg", [box(2.4, 3.6, 5.6, 6.4)], kind=["x"])
    mask = read_mask(burnt(write_scenes(tmp_path, 1), labels)[0].mask)
    assert np.argwhere(mask).tolist() == [[r, c] for r in (4, 5) for c in (2, 3, 4, 5)]
    assert mask.dtype == np.uint8 and mask.shape == (SIDE, SIDE)


def test_an_outline_that_crosses_itself_is_filled_by_even_and_odd(tmp_path: Path) -> None:
    (x, y), turns = corner(0), [(4, 4), (44, 4), (4, 40), (44, 40)]
    bow = shapely.Polygon([(x + 0.5 * column, y - 0.5 * row) for column, row in turns])
    assert not shapely.is_valid(bow)
    mask = read_mask(
        burnt(write_scenes(tmp_path, 1), write_labels(tmp_path / "l.gpkg", [bow], kind=["x"]))[
            0
        ].mask
    )
    assert mask[8, 24] == mask[36, 24] == 1 and mask[22, 8] == mask[22, 40] == 0


def test_long_edges_are_bent_as_the_images_crs_bends_them(tmp_path: Path) -> None:
    """An edge of 60 km along a circle of latitude is 60 m off the straight line in UTM."""
    write_map(tmp_path / "imgs" / "a.tif", noise(200, 200), at(2.0))
    area = to_degrees([shapely.box(500_000, 5_000_000 - 400, 500_400, 5_000_000)])[0]
    west, south, east, north = area.bounds
    middle = (south + north) / 2
    large = shapely.box(
        west - 0.4, middle, east + 0.4, north + 1
    )  # its lower edge crosses the image
    labels = write_labels(tmp_path / "l.gpkg", [large], "EPSG:4326", kind=["x"])
    found = read_mask(burnt(tmp_path, labels)[0].mask)
    from rasterio.warp import transform

    def move(points: np.ndarray) -> np.ndarray:
        return np.array(transform("OGC:CRS84", UTM, points[:, 0], points[:, 1])).T

    fine = shapely.transform(shapely.segmentize(large, 1e-4), move)  # 10 m
    coarse = shapely.transform(large, move)
    expected, straight = (by_rasterio([s], [1], at(2.0), 200) for s in (fine, coarse))
    assert (found != expected).mean() < 5e-4 < 0.1 < (straight != expected).mean()


def test_polygons_that_leave_the_images_crs_are_cut_to_its_surroundings(tmp_path: Path) -> None:
    world = shapely.box(-180, -90, 180, 90)
    labels = write_labels(tmp_path / "l.geojson", [world], "EPSG:4326", kind=["x"])
    assert (read_mask(burnt(write_scenes(tmp_path, 1), labels)[0].mask) == 1).all()


def test_longitudes_beyond_180_are_found_east_of_the_date_line(tmp_path: Path) -> None:
    """As of labels drawn on a map that does not end there: the same pixels as from those that do."""
    from rasterio import Affine
    from rasterio.warp import transform

    (x,), (y,) = transform("OGC:CRS84", "EPSG:32601", [-180.0], [10.0])
    for name, left in (("a", x - 240), ("b", x + 300)):
        grid = Affine(10, 0, left, 0, -10, y + 240)
        write_map(tmp_path / "imgs" / f"{name}.tif", noise(SIDE, SIDE), grid, crs="EPSG:32601")
    first, last = (-180.001, -179.999), (-179.9965, -179.9945)
    halves = [(179.999, 180), (-180, -179.999), last]
    whole = [shapely.box(left + 360, 9.999, right + 360, 10.001) for left, right in (first, last)]
    parts = [shapely.box(left, 9.999, right, 10.001) for left, right in halves]
    found = []
    for name, shapes in (("whole", whole), ("parts", parts)):
        labels = write_labels(tmp_path / f"{name}.gpkg", shapes, "EPSG:4326")
        pairs = burnt(tmp_path, labels, class_field=None)
        found.append(np.stack([read_mask(pair.mask) for pair in pairs]))
        for pair, mask in zip(pairs, found[-1], strict=True):
            with Source(pair.mask) as source, source.reading() as opened:
                assert isinstance(opened, ByWindows)
                half = opened.read_window(slice(0, SIDE), slice(SIDE // 2, SIDE))
            assert np.array_equal(half[..., 0], mask[:, SIDE // 2 :])
    assert np.array_equal(*found) and found[0].any(axis=(1, 2)).all()


def test_without_a_field_all_polygons_are_one_class(tmp_path: Path) -> None:
    shapes, kinds = shapes_on(1)
    labels = write_labels(tmp_path / "l.gpkg", shapes, kind=kinds)
    pairs = burnt(write_scenes(tmp_path, 1), labels, class_field=None)
    expected = by_rasterio(shapes, [1] * len(shapes), at(0.5, corner(0)))
    assert np.array_equal(read_mask(pairs[0].mask), expected) and pairs.class_names == ()


@pytest.mark.parametrize("field", ["whole", "real", "truth"])
def test_numbers_are_the_values_of_the_mask(tmp_path: Path, field: str) -> None:
    shapes = [box(0, 0, 10, 10), box(20, 20, 30, 30)]
    values = {"whole": [300, 7], "real": [300.0, 7.0], "truth": [True, False]}[field]
    labels = write_labels(tmp_path / "l.gpkg", shapes, v=values)
    pairs = burnt(write_scenes(tmp_path, 1), labels, class_field="v")
    mask = read_mask(pairs[0].mask)
    assert (mask[5, 5], mask[25, 25], mask[40, 40]) == (*map(int, values), 0)
    assert pairs.class_names == ()


def test_with_overlap_a_pixel_has_a_bit_for_each_class(tmp_path: Path) -> None:
    shapes = [box(0, 0, 20, 20), box(10, 10, 30, 30), box(15, 0, 25, 48), box(40, 40, 48, 48)]
    labels = write_labels(tmp_path / "l.gpkg", shapes, kind=["b", "a", "b", None])
    pairs = burnt(write_scenes(tmp_path, 1), labels, overlap=True, ignore_index=255)
    with Source(pairs[0].mask, planes=True) as source:
        mask = source.mask()
    assert pairs.class_names == ("a", "b") and source.header.channels == 1
    assert [mask[p] for p in ((5, 5), (12, 12), (28, 12), (12, 23), (47, 5))] == [2, 3, 1, 3, 0]
    assert mask[44, 44] == 1 << 15  # ignored


@pytest.mark.parametrize("name", ["a!b.gpkg", "a;b.gpkg"])
def test_a_path_that_gdal_takes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    labels = write_labels(tmp_path / "l.gpkg", [box(0, 0, 20, 20)], kind=["a"])
    labels = labels.rename(tmp_path / name)
    with pytest.raises(UserError, match="GDAL takes a path with ! or ; for that of an archive"):
        burnt(write_scenes(tmp_path, 1), labels)


@pytest.mark.parametrize("value", [255, 300, -1, -100])
def test_any_value_may_be_that_of_ignored_areas(tmp_path: Path, value: int) -> None:
    geometries = [box(0, 0, 20, 20), box(30, 30, 48, 48)]
    labels = write_labels(tmp_path / "l.gpkg", geometries, kind=np.array([1, np.nan]))
    mask = read_mask(burnt(write_scenes(tmp_path, 1), labels, ignore_index=value)[0].mask)
    assert np.unique(mask).tolist() == sorted([0, 1, value])


def test_polygons_without_a_class_are_ignored_if_a_value_is_named(tmp_path: Path) -> None:
    labels = write_labels(
        tmp_path / "l.gpkg", [box(0, 0, 9, 9), box(9, 9, 20, 20)], kind=["a", " "]
    )
    mask = read_mask(burnt(write_scenes(tmp_path, 1), labels, ignore_index=255)[0].mask)
    assert (mask[4, 4], mask[12, 12], mask[30, 30]) == (1, 255, 0)


def test_known_names_keep_their_values(tmp_path: Path) -> None:
    """Labels to evaluate on may lack a class of the network."""
    labels = write_labels(tmp_path / "l.gpkg", [box(0, 0, 9, 9)], kind=["water"])
    pairs = burnt(write_scenes(tmp_path, 1), labels, "background", "building", "road", "water")
    assert read_mask(pairs[0].mask)[4, 4] == 3
    assert pairs.class_names == ("building", "road", "water")


def test_features_without_a_shape_are_skipped(tmp_path: Path) -> None:
    shapes = [None, shapely.Polygon(), box(0, 0, 9, 9)]
    labels = write_labels(tmp_path / "l.gpkg", shapes, kind=["a", "b", "b"])
    assert read_mask(burnt(write_scenes(tmp_path, 1), labels)[0].mask).sum() == 2 * 81
