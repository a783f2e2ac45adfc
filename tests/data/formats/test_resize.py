"""Sizes, area means and nearest values, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unet_ddp.data.formats.resize import resize_area, resize_nearest, scaled_size


@pytest.mark.parametrize(
    ("size", "scale", "expected"),
    [((10, 21), 1.0, (10, 21)), ((10, 21), 0.5, (5, 10)), ((11, 23), 0.5, (6, 12)),
     ((3, 100), 0.1, (1, 10)), ((100, 3), 0.01, (1, 1))],
)  # fmt: skip
def test_sides_are_rounded_and_at_least_one(
    size: tuple[int, int], scale: float, expected: tuple[int, int]
) -> None:
    assert scaled_size(*size, scale) == expected


@pytest.mark.parametrize("bands", [1, 3, 64, 65, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
def test_a_new_pixel_is_the_mean_of_its_area(
    bands: int, dtype: type, rng: np.random.Generator
) -> None:
    pixels = rng.integers(0, 255, (12, 20, bands)).astype(dtype)
    found = resize_area(pixels, (6, 5))
    assert found.shape == (6, 5, bands) and found.dtype == dtype
    means = pixels.reshape(6, 2, 5, 4, bands).mean((1, 3))
    assert np.abs(found - means).max() <= 0.5 + 1e-3


def test_a_share_of_a_pixel_counts_as_such() -> None:
    row = np.array([[30, 60, 90]], np.float32)[..., None]
    assert resize_area(row, (1, 2))[0, :, 0].tolist() == pytest.approx([40, 80], abs=1e-4)


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
