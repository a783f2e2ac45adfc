"""Images in two scales are a warning; bright and dark ones in one are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from unet_ddp.checks.scales import warn_of_scales
from unet_ddp.checks.scan import read_image_metadata
from unet_ddp.checks.table import Table
from unet_ddp.data.readers.read import Source

Array = np.ndarray


def warn(folder: Path, images: list[Array], dtype: str, nodata: float | None = None) -> list[str]:
    pairs = []
    for k, image in enumerate(images):
        path = folder / f"{k:02}.npy"
        np.save(path, image.astype(dtype))
        with Source(path) as source:
            found = read_image_metadata(source, nodata)
        pairs.append(scanned(f"{k:02}", suffix=".npy")._replace(image=found))
    return warn_of_scales(Table.from_scan(pairs), dtype)


def photos(count: int, most: float = 255.0) -> list[Array]:
    """Photographs of bright and dark places."""
    random = np.random.default_rng(0)
    tops = np.linspace(0.6, 1, count)
    return [top * most * random.beta(1.5, 3, (32, 32)) for top in tops]


def fields(count: int, *, offset: float, dark: float = 0.4) -> list[Array]:
    """Fluorescence of a camera of 16 bit, in counts: bright cells, and fields without any."""
    random = np.random.default_rng(1)
    images = []
    for k in range(count):
        image = offset + random.normal(0, 5, (32, 32)).clip(-3 * 5)
        image[4, 4] = offset + 140  # a hot pixel
        if k >= dark * count:
            image[8:16, 8:24] += 20_000
        images.append(image.clip(0))
    return images


@pytest.mark.parametrize(
    ("dtype", "images", "expected"),
    [
        ("float32", [*photos(3, 1.0), *photos(4)], "values to {0} in 3 images, e.g. i/00.npy, and to {1} in 4, e.g. i/03.npy: save all in one scale"),
        ("float32", [*photos(4), *photos(1, 1.0)], "values to {0} in 1 image, e.g. i/04.npy, and to {1} in 4, e.g. i/00.npy: save all in one scale"),
        ("float32", [*photos(3, 255), *photos(3, 65_535)], "values to {0} in 3 images, e.g. i/00.npy, and to {1} in 3, e.g. i/03.npy: save all in one scale"),
        ("uint16", [*photos(3, 65_535), *photos(3, 255)], "values to {0} in 3 images, e.g. i/03.npy, and to {1} in 3, e.g. i/00.npy: save all in one scale"),
        ("int16", [*photos(3, 255), *photos(3, 32_767)], "values to {0} in 3 images, e.g. i/00.npy, and to {1} in 3, e.g. i/03.npy: save all in one scale"),
        ("float32", [np.zeros((4, 4)), *photos(8, 1.0), *photos(8), 3 * photos(1, 1.0)[0]], "values to {0} in 8 images, e.g. i/01.npy, and to {1} in 8, e.g. i/09.npy: save all in one scale"),
    ],
)  # fmt: skip
def test_two_scales_are_a_warning(
    tmp_path: Path, dtype: str, images: list[Array], expected: str
) -> None:
    tops = np.array([image.astype(dtype).max() for image in images], float)
    limit = 255 if tops.max() > 256 else 1
    dim, bright = f"{tops[tops <= limit].max():g}", f"{tops.max():g}"
    assert warn(tmp_path, images, dtype) == [expected.format(dim, bright)]


def with_gaps(images: list[Array], value: float) -> list[Array]:
    """Return images of which every second has a corner without data."""
    images = [image.copy() for image in images]
    for image in images[::2]:
        image[:9, :9] = value
    return images


@pytest.mark.parametrize(
    ("name", "dtype", "images", "nodata"),
    [
        ("0 to 1", "float32", photos(9, 1.0), None),
        ("0 to 255", "float32", photos(9), None),
        ("8 bit saved as 16", "uint16", photos(9), None),
        ("16 bit", "uint16", photos(9, 65_535), None),
        ("12 bit", "uint16", [*photos(9, 4095), *photos(3, 255)], None),
        ("blank ones", "float32", [np.zeros((4, 4)), np.ones((4, 4)), *photos(9)], None),
        ("black ones", "uint16", [np.eye(4), 3 * np.eye(4), *photos(9, 65_535)], None),
        ("from night to day", "float32", [top * photos(1, 1.0)[0] for top in np.geomspace(0.5, 255, 12)], None),
        ("empty fields, with the camera's offset", "uint16", fields(20, offset=100), None),
        ("in floats", "float32", fields(20, offset=100), None),
        ("dark fields without an offset", "uint16", [image / 2 for image in fields(20, offset=0)], None),
        ("in floats less than 1", "float32", [image / 1000 for image in fields(20, offset=0)], None),
        ("hot pixels", "float32", [photos(1, 1.0)[0], photos(1, 1.0)[0] + 90 * np.eye(32) * (np.arange(32) == 5)], None),
        ("nan", "float32", with_gaps(photos(9, 1.0), np.nan), np.nan),
        ("no-data values", "float32", with_gaps(photos(9, 1.0), -9999), -9999.0),
        ("no-data values that were not said", "float32", with_gaps(photos(9, 1.0), -9999), None),
        ("all without data", "float32", [np.full((4, 4), np.nan)] * 2, np.nan),
        ("decibels", "float32", [image - 30 for image in photos(9, 25)], None),
        ("Hounsfield units", "int16", [image - 1024 for image in [*photos(9, 1250), *photos(9, 6000)]], None),
        ("8 bit", "uint8", photos(9), None),
    ],
)  # fmt: skip
def test_bright_and_dark_images_are_none(
    tmp_path: Path, name: str, dtype: str, images: list[Array], nodata: Any
) -> None:
    assert warn(tmp_path, images, dtype, nodata) == [], name
