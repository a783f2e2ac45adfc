"""Pixels of outlines and run lengths, against pycocotools and by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from unet_ddp.extras.annotations import regions
from unet_ddp.extras.annotations.regions import fill

coco_mask = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")


def draw(points: object, size: tuple[int, int] = (6, 8)) -> str:
    patch = fill([points], size)
    mask = np.zeros(size, bool)
    height, width = patch.pixels.shape
    mask[patch.top : patch.top + height, patch.left : patch.left + width] = patch.pixels
    return "".join(".#"[int(pixel)] for pixel in mask.ravel())


@pytest.mark.parametrize(
    ("points", "rows"),
    [
        ([0, 0, 8, 0, 8, 6, 0, 6], ["########"] * 6),
        ([0.4, 0.6, 2.6, 0.6, 2.6, 2, 0.4, 2], ["........", "###.....", *["........"] * 4]),
        ([0.6, 0, 2.4, 0, 2.4, 2, 0.6, 2], [".#......"] * 2 + ["........"] * 4),
        ([0, 0, 6, 6, 0, 6], ["........", "#.......", "##......", "###.....", "####....", "#####..."]),
        ([-9, -9, 99, -9, 99, 99, -9, 99], ["########"] * 6),
        ([0, 0, 8, 6, 8, 0, 0, 6], ["#......#", "##....##", "###..###", "###..###", "##....##", "#......#"]),
        ([0, 0, 4, 0, 4, 4, 0, 4, 0, 0, 1, 1, 1, 3, 3, 3, 3, 1, 1, 1], ["####....", "#..#....", "#..#....", "####....", *["........"] * 2]),
        ([20, 20, 30, 20, 30, 30], ["........"] * 6),
        ([3, 3], ["........"] * 6),
    ],
)  # fmt: skip
def test_pixels_whose_centre_is_inside(points: list[float], rows: list[str]) -> None:
    assert draw(points) == "".join(rows)
    around = np.reshape(points, (-1, 2))[::-1].ravel()
    if len(points) != 6:  # of the triangle, centres lie on its edge
        assert draw(around) == "".join(rows)


def test_outlines_that_leave_the_image() -> None:
    square = [1, 1, 5, 1, 5, 5, 1, 5]
    assert not fill(
        [square * 2], (6, 8)
    ).pixels.any()  # twice around: nothing, by the even-odd rule
    assert not fill([[-0.9, 0, 8.9, 0, 4, 6.9]], (6, 8)).is_clipped
    assert fill([[-1.1, 0, 8, 0, 4, 6]], (6, 8)).is_clipped
    assert fill([square, [2, 2, 9.2, 2, 3, 3]], (6, 8)).is_clipped


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_polygon_of_any_corners_is_within_a_pixel_of_pycocotools(
    rng: np.random.Generator,
) -> None:
    for _ in range(20):
        angles = np.sort(rng.uniform(0, 2 * np.pi, 12))
        radii = rng.uniform(8, 28, 12)
        points = np.stack([32 + radii * np.cos(angles), 30 + radii * np.sin(angles)], axis=1)
        ours = np.array(list(draw(points, (60, 64)))).reshape(60, 64) == "#"
        theirs = coco_mask.decode(coco_mask.frPyObjects([points.ravel().tolist()], 60, 64))[..., 0]
        differ = ours != theirs.astype(bool)
        edges = np.concatenate([points, points[:1]])
        y, x = np.argwhere(differ).T + 0.5
        for px, py in zip(x, y, strict=True):
            a, b = edges[:-1], edges[1:] - edges[:-1]
            share = (((px, py) - a) * b).sum(1) / (b * b).sum(1)
            nearest = a + b * share.clip(0, 1)[:, None]
            assert np.hypot(*(nearest - (px, py)).T).min() < 1


def test_compressed_run_lengths_are_those_of_pycocotools(rng: np.random.Generator) -> None:
    for share in (0.001, 0.1, 0.5, 1.0):
        mask = np.asfortranarray((rng.random((70, 90)) < share).astype(np.uint8))
        counts = regions.unpack_counts(coco_mask.encode(mask)["counts"].decode())
        np.testing.assert_array_equal(regions.decode_runs(counts, (90, 70)).T, mask)


def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often an outline goes up and down a large image."""
    monkeypatch.setattr(regions, "MOST_CROSSINGS", 100)
    with pytest.raises(ValueError, match="an outline of 40 corners is too long"):
        fill([[0, 0, 1, 6] * 20], (6, 8))


def test_a_mask_that_stands_out_is_cut() -> None:
    pixels = np.arange(12).reshape(3, 4) % 2 == 1
    patch = regions.paste(pixels, -1, 2, (4, 8))
    assert (patch.top, patch.left, patch.is_clipped) == (2, 0, True)
    np.testing.assert_array_equal(patch.pixels, pixels[:2, 1:])
    assert not regions.paste(pixels, 1, 1, (4, 8)).is_clipped
    for left, top in product(range(-5, 10), range(-4, 6)):  # over each edge and corner
        patch = regions.paste(pixels, left, top, (4, 8))
        whole = np.zeros((20, 24), bool)
        whole[8 + top : 11 + top, 8 + left : 12 + left] = pixels
        found = np.zeros((4, 8), bool)
        if patch.pixels.size:
            height, width = patch.pixels.shape
            found[patch.top : patch.top + height, patch.left : patch.left + width] = patch.pixels
        np.testing.assert_array_equal(found, whole[8:12, 8:16], err_msg=f"{left}, {top}")
    assert regions.paste(pixels, 90, 90, (4, 8)).pixels.size == 0
