"""The grid over scenes: what their masks cover, and where they have data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.extras.windows.scenes import (
    TILED,
    check,
    config_of,
    draw_scene,
    find_windows,
    write_scenes,
)
from tests.maps import CORNER, at, write_map
from unet_ddp.checks.check import check_dataset
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.extras.windows.paths import Window, split_window


def covered(pairs: Pairs, height: int, width: int) -> np.ndarray:
    """How many windows have each pixel of the one scene."""
    counts = np.zeros((height, width), int)
    for pair in pairs:
        _, window = split_window(pair.image)
        counts[window.rows, window.columns] += 1
    return counts


def windows_of(pairs: Pairs) -> list[Window]:
    return [split_window(pair.image)[1] for pair in pairs]


@pytest.mark.parametrize("size", [(64, 64), (95, 200), (96, 33), (129, 500)])
def test_each_pixel_is_in_one_window(tmp_path: Path, size: tuple[int, int]) -> None:
    found, report = find_windows(write_scenes(tmp_path, size), window=64, validation=0)
    assert not report.problems
    assert (covered(found, *size) == 1).all()
    for window in windows_of(found):
        for side, whole in zip(window[2:], size, strict=True):
            assert side == whole or 32 <= side <= 96


def test_windows_without_data_are_left_out(tmp_path: Path) -> None:
    """Of the value of no data, or transparent; one pixel with data is enough."""
    folder = write_scenes(tmp_path, (192, 192), (192, 192))
    for name, options in {"a": {"nodata": 0}, "b": {"photometric": "rgb", "alpha": "yes"}}.items():
        image, _ = draw_scene(1, 192, 192)
        image = np.maximum(image, 1)
        if name == "b":
            image = np.dstack([image, np.full((192, 192), 255, np.uint8)])
        image[64:128, :128] = 0
        image[70, 100] = 200
        write_map(folder / "imgs" / f"{name}.tif", image, **TILED, **options)
    found, report = find_windows(folder, window=64)
    assert len(found) == 16
    assert sorted(w[:2] for w in windows_of(found)).count((64, 0)) == 0
    assert sorted(w[:2] for w in windows_of(found)).count((64, 64)) == 2
    assert "windows: 16 of 64x64 pixels in 2 scenes; 2 without data left out" in report.notes


def test_no_data_of_a_flag_counts_too(tmp_path: Path) -> None:
    for name in "ab":
        image, mask = draw_scene(1, 128, 128)
        image[:64] = 7
        for kind, pixels in (("imgs", image), ("masks", mask)):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / kind / f"{name}.png")
    assert len(find_windows(tmp_path, window=64)[0]) == 8
    assert len(find_windows(tmp_path, window=64, nodata=7.0)[0]) == 4


def test_a_mask_of_another_resolution_and_extent_is_brought_to_its_scene(tmp_path: Path) -> None:
    """Pixels of 1 m over 0.5 m, from 20 m further on: each is the mask's at its centre."""
    image, _ = draw_scene(0, 256, 256)
    write_map(tmp_path / "imgs" / "a.tif", image, at(0.5), **TILED)
    _, mask = draw_scene(5, 150, 130)
    corner = CORNER[0] + 20, CORNER[1] - 20  # row and column 40 of the scene
    write_map(tmp_path / "masks" / "a.tif", mask, at(1.0, corner), **TILED)
    found, report = find_windows(tmp_path, window=64, validation=0)
    counts = covered(found, 256, 256)
    assert (counts[64:, 64:] == 1).all() and counts.sum() == 192 * 192  # it begins at 40
    whole = np.kron(mask, np.ones((2, 2), np.uint8))
    for pair in found:
        window = split_window(pair.image)[1]
        rows, columns = (slice(s.start - 40, s.stop - 40) for s in (window.rows, window.columns))
        np.testing.assert_array_equal(read_mask(pair.mask), whole[rows, columns])
    assert "windows: 9 of 64x64 pixels in 1 scene; 7 beyond their mask left out" in report.notes


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32"])
@pytest.mark.parametrize("nodata", [None, 0, 1])
def test_where_a_mask_ends_does_not_depend_on_its_type_or_value_of_no_data(
    tmp_path: Path, dtype: str, nodata: int | None
) -> None:
    """The left half of the scene has a mask; its values of no data are values."""
    image, mask = draw_scene(0, 128, 256)
    write_map(tmp_path / "imgs" / "a.tif", image, at(0.5), **TILED)
    half = mask[:, :128].astype(dtype)
    write_map(tmp_path / "masks" / "a.tif", half, at(0.5), **TILED, nodata=nodata)
    found, report = find_windows(tmp_path, window=64, validation=0)
    assert not report.problems and [window.left for window in windows_of(found)] == [0, 64] * 2
    for pair in found:
        window = split_window(pair.image)[1]
        np.testing.assert_array_equal(read_mask(pair.mask), mask[window.rows, window.columns])


def test_a_mask_with_alpha_on_another_grid_is_read(tmp_path: Path) -> None:
    image, mask = draw_scene(0, 128, 128)
    write_map(tmp_path / "imgs" / "a.tif", image, at(0.5), **TILED)
    grey = np.stack([mask[::2, ::2], np.full((64, 64), 255, np.uint8)], axis=-1)
    write_map(tmp_path / "masks" / "a.tif", grey, at(1.0), **TILED, alpha="YES")
    found, report = find_windows(tmp_path, window=64, validation=0)
    assert not report.problems and len(found) == 4


def test_a_mask_in_another_crs_is_warped_as_gdal_warps_it(tmp_path: Path) -> None:
    from rasterio import Affine, band
    from rasterio import open as open_raster
    from rasterio.warp import reproject, transform

    image, mask = draw_scene(0, 256, 256)
    path = write_map(tmp_path / "imgs" / "a.tif", image, at(0.5), **TILED)
    (west,), (north,) = transform("EPSG:32633", "OGC:CRS84", [CORNER[0]], [CORNER[1]])
    grid = Affine(5e-6, 0, west - 2e-4, 0, -4e-6, north + 2e-4)  # degrees; larger than the scene
    _, mask = draw_scene(5, 600, 700)
    labels = write_map(tmp_path / "masks" / "a.tif", mask, grid, **{**TILED, "crs": "OGC:CRS84"})
    found, report = find_windows(tmp_path, window=64, validation=0)
    assert not report.problems and (covered(found, 256, 256) == 1).all()
    wanted = np.zeros((256, 256), np.uint8)
    with open_raster(labels) as source, open_raster(path) as target:
        reproject(band(source, 1), wanted, dst_transform=target.transform, dst_crs=target.crs)
    warped = np.zeros_like(wanted)
    for pair in found:
        window = split_window(pair.image)[1]
        warped[window.rows, window.columns] = read_mask(pair.mask)
        with Source(pair.mask) as source:
            assert source.header.size == window[2:]
    assert (
        warped != wanted
    ).mean() < 0.002 and 0.2 < warped.mean() < 0.8  # GDAL's own transformer is approximate
    data, report = check(tmp_path, window=64, validation=0)
    assert not report.problems and data.labels.values == (0, 1)


def test_masks_that_do_not_fit_are_one_line_with_both_sizes(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 128))
    _, mask = draw_scene(0, 100, 128)
    Image.fromarray(mask).save(folder / "masks" / "a.png")
    (folder / "masks" / "a.tif").unlink()
    far = at(0.5, (CORNER[0] + 5000, CORNER[1]))
    write_map(folder / "masks" / "b.tif", mask, far, **TILED)
    _, report = find_windows(folder, window=64)
    (size, place) = report.problems
    assert size.startswith(
        f"{folder}/masks/a.png is 128x100, its image {folder}/imgs/a.tif 128x128; give a mask of its size"
    )
    assert (
        place
        == f"{folder}/masks/b.tif: covers no window of its image {folder}/imgs/b.tif on the map"
    )


def test_a_scene_that_can_not_be_read_is_named_or_skipped(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 128), (128, 128))
    (folder / "imgs" / "b.tif").write_bytes(b"II*\0 and so on")
    _, report = check(folder, window=64)
    (problem,) = report.problems
    assert problem.startswith(f"{folder}/imgs/b.tif")
    report, config = Report(), config_of(folder, window=64)
    data = check_dataset(config, report, seed=1, parts=DATA_PARTS, skip_bad=1)
    assert data is not None and len(data.table.pairs) == 8
    assert "skipped" in report.warnings[0] and "b.tif" in report.warnings[0]


def test_a_window_that_can_not_be_read_is_skipped_alone(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 128), nodata=255)
    path = folder / "imgs" / "b.tif"
    path.write_bytes(path.read_bytes()[:-6000])  # a part of the last tile
    report, config = Report(), config_of(folder, window=64)
    data = check_dataset(config, report, seed=1, parts=DATA_PARTS, skip_bad=2)
    assert data is not None and len(data.table.pairs) == 7
    assert "b.tif (rows 64 to 127, columns " in report.warnings[0]


def test_a_set_that_is_no_files_is_refused(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (64, 64), (64, 64))
    for name in ("car", "tree"):
        (folder / "classes" / name).mkdir(parents=True)
        for scene in "ab":
            _, mask = draw_scene(1, 64, 64)
            Image.fromarray(mask).save(folder / "classes" / name / f"{scene}.png")
    _, report = check(folder, window=64, masks=str(folder / "classes"), overlap=True)
    assert report.problems == [
        f"--window: {folder}/classes/*/a.png is a folder for each class; save the masks of a scene as one file"
    ]


def test_windows_of_scenes_with_polygons_have_their_classes(tmp_path: Path) -> None:
    """One file of polygons in degrees, for all scenes: their windows together are the whole masks."""
    from tests.extras.polygons import labelled_maps as maps

    folder = maps.write_scenes(tmp_path, 4)
    shapes, kinds = maps.shapes_on(4)
    labels = maps.write_labels(
        tmp_path / "labels.gpkg", maps.to_degrees(shapes), "EPSG:4326", kind=kinds
    )
    settings = {"masks": str(labels), "class_field": "kind", "validation": 25}
    whole, _ = check(folder, **settings)
    data, report = check(folder, window=32, **settings)
    assert not report.problems and data.labels == whole.labels
    assert len(data.labels.class_names) == 4
    burnt = {pair.image: read_mask(pair.mask) for pair in whole.table.pairs}
    for pair in data.table.pairs:
        file, window = split_window(pair.image)
        part = burnt[file][window.rows, window.columns]
        np.testing.assert_array_equal(read_mask(pair.mask), part)
    assert data.values.counts == whole.values.counts
