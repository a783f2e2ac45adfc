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
from tests.maps import CORNER, at, rasterio, write_map
from unet_ddp.checks.check import check_dataset
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import read_mask
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


def test_windows_outside_the_mask_in_a_file_are_left_out(tmp_path: Path) -> None:
    """As GDAL makes of a mosaic with alpha in JPEG: colours there are a little off black."""
    folder = write_scenes(tmp_path, (128, 128), (128, 128))
    options = {**TILED, "compress": "jpeg", "photometric": "ycbcr"}
    image, _ = draw_scene(0, 128, 128)
    path = write_map(folder / "imgs" / "a.tif", image, **options)
    shown = np.full((128, 128), 255, np.uint8)
    shown[:64] = 0
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as dataset:
        dataset.write_mask(shown)
    found, report = find_windows(folder, window=64)
    assert len(found) == 6 and all(top >= 64 for top, *_ in windows_of(found)[:2])
    assert "windows: 6 of 64x64 pixels in 2 scenes; 2 without data left out" in report.notes


def test_no_data_of_a_flag_counts_too(tmp_path: Path) -> None:
    for name in "ab":
        image, mask = draw_scene(1, 128, 128)
        image[:64] = 7
        for kind, pixels in (("imgs", image), ("masks", mask)):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / kind / f"{name}.png")
    assert len(find_windows(tmp_path, window=64)[0]) == 8
    assert len(find_windows(tmp_path, window=64, nodata=7.0)[0]) == 4


def test_a_mask_on_another_grid_is_refused_with_the_command_that_warps_it(tmp_path: Path) -> None:
    """In degrees, of other pixels and larger; by the command, each pixel takes the nearest value, as GDAL has it."""
    from click.testing import CliRunner
    from rasterio import Affine, band
    from rasterio import open as open_raster
    from rasterio.rio.main import main_group
    from rasterio.warp import reproject, transform

    image, _ = draw_scene(0, 256, 256)
    path = write_map(tmp_path / "imgs" / "a.tif", image, at(0.5), **TILED)
    (west,), (north,) = transform("EPSG:32633", "OGC:CRS84", [CORNER[0]], [CORNER[1]])
    grid = Affine(5e-6, 0, west - 2e-4, 0, -4e-6, north + 2e-4)
    _, mask = draw_scene(5, 600, 700)
    labels = write_map(tmp_path / "masks" / "a.tif", mask, grid, **{**TILED, "crs": "OGC:CRS84"})
    _, report = find_windows(tmp_path, window=64, validation=0)
    (problem,) = report.problems
    fault, _, command = problem.partition("; use ")
    assert fault == f"{labels} is 700x600, its image {path} 256x256"
    assert command == f"rio warp {labels} NEW.tif --like {path}"
    wanted = np.zeros((256, 256), np.uint8)
    with open_raster(labels) as source, open_raster(path) as target:
        reproject(band(source, 1), wanted, dst_transform=target.transform, dst_crs=target.crs)
    warped = tmp_path / "warped" / "a.tif"
    warped.parent.mkdir()
    _, *words = command.replace("NEW.tif", str(warped)).split()
    done = CliRunner().invoke(main_group, words)
    assert done.exit_code == 0, done.output
    settings = {"masks": str(warped.parent), "window": 64, "validation": 0}
    data, report = check(tmp_path, **settings)
    assert not report.problems and data.labels.values == (0, 1)
    found = np.zeros_like(wanted)
    for pair in data.table.pairs:
        window = split_window(pair.image)[1]
        found[window.rows, window.columns] = read_mask(pair.mask)
    assert (found != wanted).mean() < 0.002 and 0.2 < found.mean() < 0.8


def test_masks_that_do_not_fit_are_one_line_with_both_sizes_or_how_far(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path, (128, 128), (128, 128))
    _, mask = draw_scene(0, 128, 128)
    Image.fromarray(mask[:100]).save(folder / "masks" / "a.png")
    (folder / "masks" / "a.tif").unlink()
    far = at(0.5, (CORNER[0] + 5000, CORNER[1]))
    write_map(folder / "masks" / "b.tif", mask, far, **TILED)
    _, report = find_windows(folder, window=64)
    image, other = f"{folder}/imgs/b.tif", f"{folder}/masks/b.tif"
    assert report.problems == [
        f"{folder}/masks/a.png is 128x100, its image {folder}/imgs/a.tif 128x128; give a mask of its size",
        f"{other} lies 1e+04 pixels off its image {image} on the map; use rio warp {other} NEW.tif --like {image}",
    ]


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
