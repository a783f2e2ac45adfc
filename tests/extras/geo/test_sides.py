"""Maps on two sides of a split that lie next to each other."""

from __future__ import annotations

from pathlib import Path

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
