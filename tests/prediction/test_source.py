"""Images opened at the network's scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.object_store import MemoryBucket
from tests.prediction.models import noise
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import StorageError, Url, put, remote
from unet_ddp.prediction import source as module
from unet_ddp.prediction.source import SourceImage, open_array, open_image
from unet_ddp.prediction.streaming import ArrayReader, ScaledReader

COLOUR, GREY, DEEP = ImageFormat(3), ImageFormat(1), ImageFormat(1, "uint16")


def test_an_image_is_scaled_and_knows_its_own_size(tmp_path: Path) -> None:
    image = noise(40, 60)
    Image.fromarray(image).save(tmp_path / "a.png")
    source = Source(tmp_path / "a.png")
    found = open_image(source, COLOUR, 0.5)
    assert (found.size, found.input_size, found.source) == ((40, 60), (20, 30), source)
    assert np.array_equal(found.read(), resize_area(image, (20, 30)))


@pytest.mark.parametrize("pixels", [2400, 2401])
def test_tiffs_are_streamed_from_a_size_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    monkeypatch.setattr(module, "_STREAMED", pixels)
    image = noise(40, 60)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    source = Source(tmp_path / "a.tif")
    found = open_image(source, COLOUR, 0.5)
    assert isinstance(found.reader, ScaledReader if pixels == 2400 else ArrayReader)
    assert (found.size, found.input_size, found.source) == ((40, 60), (20, 30), source)
    assert np.array_equal(found.read(), resize_area(image, (20, 30)))


def pillow(mode: str, orientation: int = 1) -> Image.Image:
    image = Image.fromarray(noise(24, 36)[..., 0].astype(np.int32) * 200, "I")
    image = image if mode == "I" else Image.fromarray(noise(24, 36)).convert(mode)
    image.getexif()[274] = orientation
    return image


def outcome(source: Callable[[], SourceImage]) -> Any:
    """Return pixels and size, or the error without the name of what it is about."""
    try:
        found = source()
        return found.read(), found.size
    except UserError as error:
        return str(error).partition(": ")[2]


FLOATS = noise(24, 36).astype(np.float32)
FLOATS[3:9, 5] = -9999
GAPS = np.where(FLOATS == -9999, np.float32(np.nan), FLOATS)
FLOAT = ImageFormat(3, "float32", fill=(3.0, 4.0, 5.0))


@pytest.mark.parametrize("scale", [1.0, 0.4])
@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        *(
            (pillow(mode), COLOUR)
            for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F")
        ),
        *((pillow(mode), GREY) for mode in ("1", "L", "RGB")),
        *((pillow(mode), ImageFormat(4)) for mode in ("RGB", "RGBA")),
        *((pillow(mode), DEEP) for mode in ("L", "I", "I;16")),
        *((pillow("RGB", turn), COLOUR) for turn in (3, 6)),
        (pillow("L"), replace(GREY, nodata=noise(24, 36).item(0), fill=(77.0,))),
        (pillow("F"), ImageFormat(1, "float32")),
        (FLOATS, FLOAT),
        (FLOATS, replace(FLOAT, nodata=-9999.0)),
        (GAPS, FLOAT),
        (GAPS, replace(FLOAT, nodata=np.nan)),
        (FLOATS.astype(np.float64), FLOAT),
        (FLOATS.astype(np.complex64), FLOAT),
        (noise(24, 36)[..., 0], GREY),
        (noise(24, 36)[..., :1], COLOUR),
        (noise(24, 36)[..., :2], COLOUR),
        (noise(24, 36).transpose(2, 0, 1), COLOUR),
        (noise(24, 36)[None], COLOUR),
        (noise(24, 36), GREY),
        (noise(24, 36).astype(">u2"), ImageFormat(3, "uint16")),
        (noise(24, 36).astype(np.uint16), COLOUR),
        (noise(24, 36)[0, :, 0], GREY),
    ],
)
def test_an_image_in_memory_is_what_it_is_as_a_file(
    tmp_path: Path, image: Any, wanted: ImageFormat, scale: float
) -> None:
    if isinstance(image, np.ndarray):
        path = tmp_path / "a.npy"
        np.save(path, image)
    else:
        path = tmp_path / ("a.tif" if image.mode in ("F", "CMYK") else "a.png")
        saved = image.convert("I;16") if image.mode == "I" else image  # as PNG, 16 bit anyway
        saved.save(path, exif=image.getexif())
    before = np.array(image)
    file = outcome(lambda: open_image(Source(path), wanted, scale))
    memory = outcome(lambda: open_array(image, wanted, scale))
    assert np.array_equal(np.array(image), before, equal_nan=before.dtype.kind == "f")
    if isinstance(file, str):
        assert memory == file
        return
    assert memory[0].dtype == wanted.dtype and np.array_equal(memory[0], file[0])
    assert memory[1] == file[1]
    if not isinstance(image, np.ndarray):  # read from its file later
        with Image.open(path) as opened:
            assert np.array_equal(outcome(lambda: open_array(opened, wanted, scale))[0], file[0])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((0, 4, 3), np.uint8), r"^array \(0, 4, 3\): has no pixels"),
        (Image.new("RGB", (0, 4)), r"^Pillow image RGB: has no pixels"),
        (noise(4, 6)[..., :2], r"^array \(4, 6, 2\): 2 channels, the network takes 3"),
        (np.array(["a"]), r"^array \(1,\): an array of 1 axes; save \(H, W\) or"),
    ],
)
def test_what_is_no_image_is_an_error(image: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_array(image, COLOUR, 1.0)


def test_a_truncated_image_of_pillow_is_an_error(tmp_path: Path) -> None:
    Image.fromarray(noise(40, 60)).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:900])
    with Image.open(tmp_path / "a.jpg") as image, pytest.raises(UserError, match="truncated"):
        open_array(image, COLOUR, 1.0)


@pytest.mark.parametrize("scale", [1.0, 0.37])
@pytest.mark.parametrize(
    ("bands", "wanted", "options"),
    [
        (3, COLOUR, {"compress": "deflate"}),
        (3, replace(COLOUR, nodata=7.0, fill=(1.0, 2.0, 3.0)), {"nodata": 7}),
        (1, COLOUR, {}),
        (3, GREY, {}),
        (4, COLOUR, {"photometric": "rgb", "alpha": "yes"}),
        (4, COLOUR, {"photometric": "rgb", "alpha": "premultiplied"}),
        (5, ImageFormat(5, "int16"), {"interleave": "band", "compress": "lzw"}),
        (3, COLOUR, {"compress": "jpeg", "photometric": "ycbcr"}),
    ],
    ids=str,
)
def test_a_map_has_the_pixels_that_other_libraries_read(
    tmp_path: Path, bands: int, wanted: ImageFormat, options: Any, scale: float
) -> None:
    """The library that gives its place gives its pixels, if they are the same."""
    maps = pytest.importorskip("tests.maps")
    pixels = noise(40, 30)[..., [0, 1, 2, 0, 1][:bands]].astype(wanted.dtype)
    pixels[:9, :9] = 7
    path = maps.write_map(tmp_path / "a.tif", pixels, **options)
    found = open_image(Source(path), wanted, scale)
    expected, _ = Source(path).image(wanted, scale=scale)
    assert found.size == (40, 30) and np.array_equal(found.read(), expected)


@pytest.mark.parametrize("name", ["a.tif", "a.png"])
def test_storage_that_fails_is_asked_once(
    memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A request may wait for minutes."""
    asked = []

    def fail(path: Path) -> Any:
        asked.append(path)
        raise StorageError(f"{path}: can't be reached")

    monkeypatch.setattr(remote, "read_chunks", fail)
    with pytest.raises(StorageError, match="can't be reached"):
        open_image(Source(Url(f"s3://bucket/{name}")), COLOUR, 1.0)
    assert len(asked) == 1


def test_a_large_tiff_in_storage_is_read_in_bands(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STREAMED", 100)
    pixels = noise(40, 30)
    tifffile.imwrite(
        tmp_path / "a.tif", pixels, tile=(16, 16), compression="zlib", photometric="rgb"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = Url("s3://bucket/source/a.tif")
    put(url, tmp_path / "a.tif")
    source = open_image(Source(url), ImageFormat(3), scale=1.0)
    assert isinstance(source.reader, ScaledReader)
    assert np.array_equal(source.read(), pixels)
    assert source.source is not None
    source.source.close()
    del source
    assert not list(tmp_path.glob("unet_ddp-*"))
    put(url, (tmp_path / "a.tif").read_bytes()[:-200])
    with pytest.raises(UserError, match=r"^s3://bucket/source/a.tif: corrupt or truncated"):
        open_image(Source(url), ImageFormat(3), scale=1.0).read()
