"""Images opened at the network's scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.object_store import MemoryBucket
from tests.prediction.models import noise
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.formats.resize import resize_area
from unet_ddp.errors import UserError
from unet_ddp.prediction import source as module
from unet_ddp.prediction.source import open_array, open_image
from unet_ddp.prediction.streaming import ArrayReader, ScaledReader
from unet_ddp.storage import Url, copies, put

COLOUR, GREY, DEEP = ImageFormat(3), ImageFormat(1), ImageFormat(1, "uint16")


def test_an_image_is_scaled_and_knows_its_own_size(tmp_path: Path) -> None:
    image = noise(40, 60)
    Image.fromarray(image).save(tmp_path / "a.png")
    found = open_image(tmp_path / "a.png", COLOUR, 0.5)
    assert (found.size, found.input_size, found.path) == ((40, 60), (20, 30), tmp_path / "a.png")
    assert np.array_equal(found.read(), resize_area(image, (20, 30)))


@pytest.mark.parametrize("pixels", [2400, 2401])
def test_tiffs_are_streamed_from_a_size_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    monkeypatch.setattr(module, "_STREAMED", pixels)
    image = noise(40, 60)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    found = open_image(tmp_path / "a.tif", COLOUR, 0.5)
    assert isinstance(found.reader, ScaledReader if pixels == 2400 else ArrayReader)
    assert (found.size, found.input_size, found.path) == ((40, 60), (20, 30), tmp_path / "a.tif")
    assert np.array_equal(found.read(), resize_area(image, (20, 30)))
    found.reader.close()


@pytest.mark.parametrize(
    ("image", "wanted", "expected"),
    [
        (noise(4, 6), COLOUR, noise(4, 6)),
        (Image.fromarray(noise(4, 6)), COLOUR, noise(4, 6)),
        (noise(4, 6)[..., 0], GREY, noise(4, 6)[..., :1]),
        (noise(4, 6)[..., :1], COLOUR, noise(4, 6)[..., :1].repeat(3, 2)),
        (Image.fromarray(noise(4, 6)[..., 0]), COLOUR, noise(4, 6)[..., :1].repeat(3, 2)),
        (
            Image.fromarray(noise(4, 6)),
            GREY,
            np.asarray(Image.fromarray(noise(4, 6)).convert("L"))[..., None],
        ),
        (
            Image.fromarray(noise(4, 6)[..., 0].astype(np.uint16) * 257),
            DEEP,
            noise(4, 6)[..., :1].astype(np.uint16) * 257,
        ),
        (
            Image.fromarray(noise(4, 6)[..., 0].astype(np.int32) * 257),
            DEEP,
            noise(4, 6)[..., :1].astype(np.uint16) * 257,
        ),
    ],
)
def test_arrays_and_pillow_images_are_taken(image: Any, wanted: ImageFormat, expected: Any) -> None:
    found = open_array(image, wanted, 1.0)
    assert (found.size, found.path) == ((4, 6), None)
    assert found.read().dtype == wanted.dtype and np.array_equal(found.read(), expected)
    assert np.array_equal(open_array(image, wanted, 0.5).read(), resize_area(expected, (2, 3)))


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (noise(4, 6), GREY),
        (noise(4, 6).astype(np.uint16), COLOUR),
        (noise(4, 6)[..., :2], COLOUR),
        (noise(4, 6)[None], COLOUR),
        (Image.fromarray(noise(4, 6)), ImageFormat(3, "uint16")),  # 8 bit are no part of 16
    ],
)
def test_arrays_of_another_kind_are_an_error(image: Any, wanted: ImageFormat) -> None:
    with pytest.raises(UserError, match=rf"takes \(H, W, {wanted.channels}\) of {wanted.dtype}"):
        open_array(image, wanted, 1.0)


def test_a_large_tiff_in_storage_is_read_in_bands(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STREAMED", 100)
    pixels = noise(40, 30)
    tifffile.imwrite(
        tmp_path / "a.tif", pixels, tile=(16, 16), compression="zlib", photometric="rgb"
    )
    url = Url("s3://bucket/source/a.tif")
    put(url, tmp_path / "a.tif")
    source = open_image(url, ImageFormat(3), scale=1.0)
    assert isinstance(source.reader, ScaledReader) and not copies
    assert np.array_equal(source.read(), pixels)
    put(url, (tmp_path / "a.tif").read_bytes()[:-200])
    with pytest.raises(UserError, match=r"^s3://bucket/source/a.tif: corrupt or truncated"):
        open_image(url, ImageFormat(3), scale=1.0).read()
