"""Sizes, area means and nearest values, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unet_ddp.data.readers.resize import resize_area, resize_nearest, scaled_size


@pytest.mark.parametrize(
    ("size", "scale", "expected"),
    [((10, 21), 1.0, (10, 21)), ((10, 21), 0.5, (5, 10)), ((11, 23), 0.5, (6, 12)),
     ((3, 100), 0.1, (1, 10)), ((100, 3), 0.01, (1, 1))],
)  # fmt: skip
def test_sides_are_rounded_and_at_least_one(
    size: tuple[int, int], scale: float, expected: tuple[int, int]
) -> None:
    assert scaled_size(*size, scale) == expected


def weights(old: int, new: int, is_area: bool) -> np.ndarray:
    """The share (new, old) of each old pixel in each new one: of its area, or linear in between."""
    if is_area:
        ends = np.arange(new + 1) * old / new
        starts = np.arange(old)
        share = np.minimum(ends[1:, None], starts + 1) - np.maximum(ends[:-1, None], starts)
        return share.clip(0) * new / old
    centres = ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
    return (1 - np.abs(centres[:, None] - np.arange(old))).clip(0)


@pytest.mark.parametrize("size", [(6, 5), (5, 13), (12, 7), (7, 31), (19, 13), (25, 40)])
@pytest.mark.parametrize("bands", [1, 3, 5, 65, 130])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
def test_a_new_pixel_is_the_mean_of_its_area(
    size: tuple[int, int], bands: int, dtype: type, rng: np.random.Generator
) -> None:
    """Whole factors and others; where a side grows, it lies between the nearest pixels."""
    pixels = rng.integers(0, 255, (12, 20, bands)).astype(dtype)
    found = resize_area(pixels, size)
    assert found.shape == (*size, bands) and found.dtype == dtype
    shrinks = size[0] <= 12 and size[1] <= 20
    rows, columns = (weights(o, n, shrinks) for o, n in zip((12, 20), size, strict=True))
    expected = np.einsum("ij,jkc,lk->ilc", rows, pixels.astype(np.float64), columns)
    assert np.abs(found - expected).max() <= (0.01 if dtype == np.float32 else 1.1)


def test_the_same_size_costs_nothing() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    assert resize_area(pixels, (4, 6)) is pixels
    assert resize_area(pixels, (6, 4)).shape == (6, 4, 3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(4, 2, [1, 3]), (5, 2, [1, 3]), (5, 3, [0, 2, 4]), (3, 1, [1]), (3, 3, [0, 1, 2]),
     (2, 5, [0, 0, 1, 1, 1])],
)  # fmt: skip
def test_the_nearest_pixel_is_that_at_the_centre(old: int, new: int, expected: list[int]) -> None:
    """Pixel k of `new` has its centre at (k + 0.5) * old / new."""
    values = np.arange(old, dtype=np.int32)
    across = np.stack([values, values + 10])  # (2, old)
    assert resize_nearest(across, (2, new)).tolist() == [expected, [v + 10 for v in expected]]
    assert resize_nearest(across.T, (new, 2)).T.tolist() == [expected, [v + 10 for v in expected]]
    colours = np.repeat(across[..., None], 3, axis=2)
    found = resize_nearest(colours, (2, new))
    assert found.dtype == np.int32 and found[0, :, 2].tolist() == expected
