"""Masks with a band or page for each class, read as codes where classes may overlap."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from unet_ddp.data.readers.bands import join_planes
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError

Write = Callable[[Path, np.ndarray], object]


def as_npy(folder: Path, planes: np.ndarray) -> Path:
    np.save(folder / "x.npy", planes)
    return folder / "x.npy"


def as_last(folder: Path, planes: np.ndarray) -> Path:
    return as_npy(folder, np.moveaxis(planes, 0, -1))


def as_pages(folder: Path, planes: np.ndarray) -> Path:
    with tifffile.TiffWriter(folder / "x.tif") as file:
        for plane in planes:
            file.write(plane, photometric="minisblack", metadata=None)
    return folder / "x.tif"


def as_bands(folder: Path, planes: np.ndarray) -> Path:
    stack = np.moveaxis(planes, 0, -1)
    tifffile.imwrite(folder / "x.tif", stack, photometric="minisblack", planarconfig="contig")
    return folder / "x.tif"


WRITERS = [as_npy, as_last, as_pages, as_bands]


def some_planes(count: int, dtype: Any = np.uint8) -> np.ndarray:
    return (np.random.default_rng(count).random((count, 17, 19)) > 0.5).astype(dtype) * 200


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("count", [2, 4, 8, 15])
def test_bit_k_is_plane_k(tmp_path: Path, write: Callable[..., Path], count: int) -> None:
    planes = some_planes(count, np.uint16 if count == 8 else np.uint8)
    source = pickle.loads(pickle.dumps(Source(write(tmp_path, planes), planes=True)))
    with source:
        codes = source.mask()
        header = source.header
        half = source.mask(scale=0.5)
    expected = sum((planes[k] > 0) * (1 << k) for k in range(count))
    np.testing.assert_array_equal(codes, expected)
    assert codes.dtype == (np.uint8 if count <= 8 else np.int32)
    assert (header.size, header.has_colour_values) == ((17, 19), False)
    assert set(np.unique(half)) <= set(np.unique(codes))
    assert half.shape == (8, 10)


@pytest.mark.parametrize("write", WRITERS)
def test_three_are_colours_and_sixteen_too_many(tmp_path: Path, write: Callable[..., Path]) -> None:
    red, green, blue = planes = some_planes(3, np.int32)
    with Source(write(tmp_path, planes.astype(np.uint8)), planes=True) as source:
        codes = source.mask()
        assert source.header.has_colour_values
    np.testing.assert_array_equal(codes, red * 65536 + green * 256 + blue)
    with (
        pytest.raises(UserError, match=r"x\....: 16 bands; .* at most 15"),
        Source(write(tmp_path, some_planes(16)), planes=True) as source,
    ):
        source.mask()


def test_other_masks_are_refused_as_ever(tmp_path: Path) -> None:
    pages = as_pages(tmp_path, some_planes(4))
    for ask in (Source.mask, lambda s: s.header, lambda s: s.image(ImageFormat(4))):
        with (
            pytest.raises(UserError, match="holds several frames or pages"),
            Source(pages) as source,
        ):
            ask(source)
    bands = as_npy(tmp_path, some_planes(4))
    with pytest.raises(UserError, match=r"4 bands; .* save their argmax"), Source(bands) as source:
        source.mask()
    soft = as_npy(tmp_path, some_planes(4) * np.float32(0.3))
    with (
        pytest.raises(UserError, match="mask values are not whole numbers"),
        Source(soft, planes=True) as source,
    ):
        source.mask()


def test_pages_of_several_sizes(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "x.tif") as file:
        for size in ((17, 19), (17, 18)):
            file.write(np.zeros(size, np.uint8), photometric="minisblack", metadata=None)
    with (
        pytest.raises(
            UserError, match=r"x\.tif: has pages of 19x17 with 1 band of 8 bit and of 18x17"
        ),
        Source(tmp_path / "x.tif", planes=True) as source,
    ):
        source.mask()


def test_codes_of_no_plane_and_of_all() -> None:
    flags = np.ones((2, 3), bool)
    assert join_planes([flags] * 16).tolist() == [[65535] * 3] * 2
    assert join_planes([~flags] * 16).dtype == np.uint8
