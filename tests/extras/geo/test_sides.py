"""Maps on two sides of a split that lie next to each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.extras.windows.scenes import check, draw_scene
from tests.maps import CORNER, at, write_map

SIDE = 64


def write_tiles(folder: Path, corners: list[tuple[float, float]], **options: object) -> Path:
    for k, (east, south) in enumerate(corners):
        image, mask = draw_scene(k, SIDE, SIDE)
        place = at(1.0, (CORNER[0] + east, CORNER[1] - south))
        for kind, pixels in (("imgs", image), ("masks", mask)):
            write_map(folder / kind / f"{'abcdef'[k]}x.tif", pixels, place, **options)
    return folder


@pytest.mark.parametrize("gap", [-10, 0, 2, 500])
@pytest.mark.parametrize("window", [None, 32])
def test_neighbours_on_two_sides_are_a_warning(
    tmp_path: Path, gap: int, window: int | None
) -> None:
    """Over each other, or touching; of scenes that are read by windows, too."""
    folder = write_tiles(tmp_path, [(k * (SIDE + gap), 0) for k in range(4)])
    _, report = check(folder, validation=25, window=window)
    assert not report.problems
    lines = [line for line in report.warnings if "next to or over training images" in line]
    assert len(lines) == (gap <= 0), report.warnings
    if lines:
        assert lines[0].startswith(
            "1 validation image next to or over training images on the map, e.g. "
        )


def test_blocks_of_one_scene_are_no_warning(tmp_path: Path) -> None:
    folder = write_tiles(tmp_path, [(0, 0)])
    for kind, pixels in zip(("imgs", "masks"), draw_scene(3, 320, 320), strict=True):
        write_map(folder / kind / "ax.tif", pixels)
    _, report = check(folder, window=32, blocks=2)
    assert not report.problems and not report.warnings


def test_maps_of_several_crs_are_compared_in_degrees(tmp_path: Path) -> None:
    from rasterio.warp import transform

    folder = write_tiles(tmp_path, [(0, 0), (300, 0), (600, 0)])
    x, y = transform("EPSG:32633", "EPSG:32632", [CORNER[0] + 660], [CORNER[1]])
    for kind, pixels in zip(("imgs", "masks"), draw_scene(9, SIDE, SIDE), strict=True):
        write_map(folder / kind / "dx.tif", pixels, at(1.0, (x[0], y[0])), crs="EPSG:32632")
    found = set()
    for fold in "1234":
        _, report = check(folder, fold=f"{fold}/4", ground_resolution=1.0)
        assert not report.problems
        found.add(any("next to or over" in line for line in report.warnings))
    assert found == {True, False}
    np.testing.assert_allclose(y[0], CORNER[1], rtol=0.01)
