"""Images opened at the network's scale."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.object_store import MemoryBucket
from tests.prediction.models import noise
from tests.reading import read_image
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.pictures import decode_picture_mask
from unet_ddp.data.readers.read import Source
from unet_ddp.data.readers.resize import resize_area, scaled_size
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import StorageError, Url, put, remote
from unet_ddp.prediction import source as module
from unet_ddp.prediction.source import ScaledReader, SourceImage, open_array, open_image

COLOUR, GREY, DEEP = ImageFormat(3), ImageFormat(1), ImageFormat(1, "uint16")


def read(image: SourceImage) -> Any:
    """Return all of its pixels at the network's scale."""
    return image.read(0, image.input_size[0])


def test_an_image_is_scaled_and_knows_its_own_size(tmp_path: Path) -> None:
    image = noise(40, 60)
    Image.fromarray(image).save(tmp_path / "a.png")
    source = Source(tmp_path / "a.png")
    found = open_image(source, COLOUR, 0.5)
    assert (found.size, found.input_size, found.source) == ((40, 60), (20, 30), source)
    assert np.array_equal(read(found), resize_area(image, (20, 30)))


@pytest.mark.parametrize("pixels", [2400, 2401])
def test_tiffs_are_streamed_from_a_size_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    monkeypatch.setattr(module, "STREAMED", pixels)
    image, reads = noise(40, 60), list[object]()
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    source = Source(tmp_path / "a.tif")
    whole = Source.image
    monkeypatch.setattr(Source, "image", lambda *a, **k: reads.append(a) or whole(*a, **k))
    found = open_image(source, COLOUR, 0.5)
    assert bool(reads) == (pixels == 2401)
    assert (found.size, found.input_size, found.source) == ((40, 60), (20, 30), source)
    assert np.array_equal(read(found), resize_area(image, (20, 30)))


def pillow(mode: str, orientation: int = 1) -> Image.Image:
    image = Image.fromarray(noise(24, 36)[..., 0].astype(np.int32) * 200, "I")
    image = image if mode == "I" else Image.fromarray(noise(24, 36)).convert(mode)
    image.getexif()[274] = orientation
    return image


def outcome(source: Callable[[], SourceImage]) -> Any:
    """Return pixels and size, or the error without the name of what it is about."""
    try:
        found = source()
        return read(found), found.size
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
        (
            np.ma.masked_less(noise(4, 6), 99),
            r"^the image is a masked array; fill it, .* network, which has none",
        ),
    ],
)
def test_what_is_no_image_is_an_error(image: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_array(image, COLOUR, 1.0)


def test_a_masked_array_is_told_the_no_data_value() -> None:
    masked = np.ma.masked_less(noise(4, 6), 99)
    with pytest.raises(UserError, match=r"with the no-data value of the network, 7$"):
        open_array(masked, replace(COLOUR, nodata=7.0), 1.0)
    plain = open_array(np.ma.array(noise(4, 6)), COLOUR, 1.0)  # nothing in it is masked
    assert np.array_equal(plain.read(0, 4), noise(4, 6))


def test_a_truncated_image_of_pillow_is_an_error(tmp_path: Path) -> None:
    Image.fromarray(noise(40, 60)).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:900])
    with Image.open(tmp_path / "a.jpg") as image, pytest.raises(UserError, match="truncated"):
        open_array(image, COLOUR, 1.0)


@pytest.mark.parametrize("form", ["png", "jpg", "tif", "gif", "bmp"])
def test_a_closed_image_of_pillow_is_an_error(tmp_path: Path, form: str) -> None:
    Image.fromarray(noise(40, 60)).save(tmp_path / f"a.{form}")
    with Image.open(tmp_path / f"a.{form}") as left:
        pass
    closed, loaded = (Image.open(tmp_path / f"a.{form}") for _ in range(2))
    loaded.load()
    closed.close()
    loaded.close()
    for image in (left, closed, loaded):
        with pytest.raises(UserError, match=r"Pillow image .*: is closed; open it again"):
            open_array(image, COLOUR, 1.0)
        with pytest.raises(UserError, match="mask: is closed; open it again"):
            decode_picture_mask(image, "mask")


def long_text() -> bytes:
    """Return a PNG file whose text, behind the pixels, is longer than Pillow reads."""
    stored = io.BytesIO()
    Image.fromarray(noise(40, 60)).save(stored, "png")
    text = b"zTXt" + b"a\0\0" + zlib.compress(b"x" * (70 << 20))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    end = stored.getvalue().index(b"IEND") - 4
    return stored.getvalue()[:end] + chunk + stored.getvalue()[end:]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"P3 40 40 255\n" + b"1 2 3 " * 20, "not enough image data"),
        (b"P3 40 40 255\n" + b"1 2 x " * 2000, "invalid literal"),
        (b"P3 40 40 255\n" + b"1 2 999 " * 2000, "Channel value too large"),
        (long_text(), "Decompressed data too large"),
    ],
)
def test_a_damaged_image_of_pillow_is_not_called_closed(content: bytes, reason: str) -> None:
    for read in (
        lambda image: open_array(image, COLOUR, 1.0),
        lambda image: decode_picture_mask(image, "mask"),
    ):
        with Image.open(io.BytesIO(content)) as image:
            with pytest.raises(UserError, match=rf": corrupt or truncated \({reason}") as caught:
                read(image)
            assert "closed" not in str(caught.value)


@pytest.mark.parametrize("kind", [AssertionError, SyntaxError, struct.error])
def test_any_error_of_a_decoder_is_a_line(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = io.BytesIO()
    Image.fromarray(noise(40, 60)).save(stored, "png")
    with Image.open(stored) as image:

        def load() -> None:
            raise kind("of a chunk")

        monkeypatch.setattr(image, "load", load)
        with pytest.raises(UserError, match=r": corrupt or truncated \(of a chunk\); replace it"):
            open_array(image, COLOUR, 1.0)


def test_an_image_whose_file_is_closed_is_an_error(tmp_path: Path) -> None:
    Image.fromarray(noise(40, 60)).save(tmp_path / "a.png")
    path = tmp_path / "a.png"
    for file in (path.open("rb"), io.BytesIO(path.read_bytes())):
        image = Image.open(file)
        file.close()
        with pytest.raises(UserError, match="is closed; open it again"):
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
    assert found.size == (40, 30) and np.array_equal(read(found), expected)


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
    monkeypatch.setattr(module, "STREAMED", 100)
    pixels = noise(40, 30)
    tifffile.imwrite(
        tmp_path / "a.tif", pixels, tile=(16, 16), compression="zlib", photometric="rgb"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = Url("s3://bucket/source/a.tif")
    put(url, tmp_path / "a.tif")
    source = open_image(Source(url), ImageFormat(3), scale=1.0)
    assert np.array_equal(read(source), pixels)
    assert source.source is not None
    source.source.close()
    del source
    assert not list(tmp_path.glob("unet_ddp-*"))
    put(url, (tmp_path / "a.tif").read_bytes()[:-200])
    with (
        Source(url) as opened,
        pytest.raises(UserError, match=r"^s3://bucket/source/a.tif: corrupt or truncated"),
    ):
        read(open_image(opened, ImageFormat(3), scale=1.0))


# -- rows ------------------------------------------------------------------------------------


class Counting:
    """The rows of an image in memory, and which were read."""

    def __init__(self, pixels: Any) -> None:
        self.pixels = pixels
        self.calls: list[tuple[int, int]] = []

    def __call__(self, top: int, bottom: int) -> Any:
        self.calls.append((top, bottom))
        return self.pixels[top:bottom]


@pytest.mark.parametrize("at_once", [200, 1 << 24])
@pytest.mark.parametrize("size", [(150, 100), (151, 103), (64, 64), (7, 5)])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.125, 0.37, 1 / 3])
def test_scaled_rows_are_the_scaled_wholes(
    size: tuple[int, int], scale: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    image = noise(*size)
    small = scaled_size(*size, scale)
    whole = resize_area(image, small)
    reader = ScaledReader(Counting(image), size, small)
    exact = Fraction(size[0], small[0]).denominator <= 64 or at_once > 200
    for top in range(0, small[0], 6):  # overlapping
        rows = reader.read(top, min(top + 9, small[0]))
        assert len(rows) == min(9, small[0] - top)
        if exact:
            assert np.array_equal(rows, whole[top : top + 9])
    assert np.array_equal(reader.read(0, small[0]), whole) or not exact


def test_rows_of_the_last_call_are_not_read_again() -> None:
    source = Counting(noise(64, 8))
    reader = ScaledReader(source, (64, 8), (32, 4))
    reader.read(0, 8)
    assert np.array_equal(reader.read(4, 12), resize_area(source.pixels, (32, 4))[4:12])
    reader.read(5, 9)
    reader.read(5, 9)
    reader.read(20, 24)
    assert source.calls == [(0, 16), (16, 24), (40, 48)]


def test_rows_are_the_same_wherever_reading_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes share a scene, each from another row on."""
    size, small = (2003, 300), (1001, 150)
    monkeypatch.setattr(module, "AT_ONCE", 60 * size[1])
    image = np.random.default_rng(2).normal(size=(*size, 3)).astype(np.float32)
    whole = ScaledReader(Counting(image), size, small).read(0, 1001)
    for begin in (1, 100, 333):
        part = ScaledReader(Counting(image), size, small).read(begin, 1001)
        np.testing.assert_array_equal(part, whole[begin:])


def test_a_ratio_without_small_groups_is_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1000)
    image, small = noise(1201, 50), (600, 25)
    whole = resize_area(image, small).astype(int)
    source = Counting(image)
    reader = ScaledReader(source, (1201, 50), small)
    found = np.concatenate([reader.read(a, a + 60) for a in range(0, 600, 60)]).astype(int)
    assert max(bottom - top for top, bottom in source.calls) < 60
    assert np.abs(found - whole).max() <= 1  # the last bit of a mean
    assert (found != whole).mean() < 0.01
    floats = ScaledReader(Counting(image.astype(np.float32)), (1201, 50), small).read(0, 600)
    assert np.abs(floats - resize_area(image.astype(np.float32), small)).max() < 1e-3


@pytest.mark.parametrize("how", [
    {}, {"tile": (64, 48)}, {"rowsperstrip": 7}, {"tile": (64, 64), "compression": "zlib"},
    {"rowsperstrip": 16, "compression": "zlib", "predictor": True}, {"byteorder": ">"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiffs_of_all_layouts_are_read_by_rows(tmp_path: Path, how: Any, dtype: Any) -> None:
    image = noise(150, 131).astype(dtype) * (1 if dtype is np.uint8 else 257)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb", **how)
    source = Source(tmp_path / "a.tif")
    reader = source.rows(ImageFormat(3, np.dtype(dtype).name))
    assert reader is not None and (reader.height, reader.width) == (150, 131)
    for top, bottom in ((0, 1), (0, 150), (60, 70), (63, 129), (64, 128), (149, 150)):
        rows = reader.read(top, bottom)
        assert rows.dtype == dtype and np.array_equal(rows, image[top:bottom])
    assert Source(tmp_path / "a.tif").rows(ImageFormat(4, "uint8")) is None


@pytest.mark.parametrize(
    ("stored", "how", "wanted", "expected"),
    [
        (noise(9, 8)[..., 0], {}, ImageFormat(1), noise(9, 8)[..., :1]),
        (noise(9, 8)[..., 0], {}, ImageFormat(3), noise(9, 8)[..., :1].repeat(3, 2)),
        (
            np.dstack([noise(9, 8), noise(9, 8, 1)[..., 0]]),
            {"photometric": "rgb", "extrasamples": ["unassalpha"]},
            ImageFormat(3),
            noise(9, 8),
        ),
        (
            np.dstack([noise(9, 8), noise(9, 8, 1)[..., 0]]),
            {"photometric": "rgb", "extrasamples": ["unassalpha"]},
            ImageFormat(4),
            None,  # which of the four is alpha is for the reader of whole images to say
        ),
        (noise(9, 8).transpose(2, 0, 1), {"photometric": "rgb", "planarconfig": "separate"},
         ImageFormat(3), noise(9, 8)),
        (noise(9, 8)[..., 0], {"photometric": "miniswhite"}, ImageFormat(1), None),
        (noise(9, 8)[..., 0], {"extratags": [(274, "H", 1, 6, True)]}, ImageFormat(1), None),
        (noise(9, 8)[..., 0] > 99, {}, ImageFormat(1), None),
        (noise(9, 8)[..., 0], {}, ImageFormat(1, "uint16"), None),
        (noise(9, 8).transpose(2, 0, 1), {"photometric": "minisblack"}, ImageFormat(3), None),
    ],
)  # fmt: skip
def test_channels_are_those_wanted_or_the_image_is_read_whole(
    tmp_path: Path, stored: Any, how: Any, wanted: ImageFormat, expected: Any
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", stored, **how)
    source = Source(tmp_path / "a.tif")
    reader = source.rows(wanted)
    if expected is None:
        assert reader is None
        return
    assert reader is not None and np.array_equal(reader.read(2, 7), expected[2:7])


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
@pytest.mark.parametrize(
    ("nodata", "dtype"), [(None, "float32"), (float("nan"), "float32"), (-9.0, "int16")]
)
def test_floats_and_nodata_are_read_by_rows_as_whole(
    tmp_path: Path, nodata: float | None, dtype: str, scale: float
) -> None:
    image = (noise(150, 130).astype("float32") * 0.01).astype(dtype)
    if nodata is not None:
        image[20:50, 30:60] = nodata
    path, wanted = tmp_path / "a.tif", ImageFormat(3, dtype, nodata, (1.0, 2.0, 3.0))
    tifffile.imwrite(path, image, photometric="rgb", tile=(64, 64), compression="zlib")
    source = Source(path)
    reader = source.rows(wanted)
    assert reader is not None
    whole = read_image(path, wanted, scale=scale)
    scaled = ScaledReader(reader.read, (150, 130), whole.shape[:2])
    parts = [scaled.read(a, min(a + 9, len(whole))) for a in range(0, len(whole), 9)]
    found = np.concatenate(parts)
    assert found.dtype == whole.dtype and np.abs(found - whole).max() < 1e-5
    if nodata is not None:
        assert reader.read(30, 31)[0, 40].tolist() == [1, 2, 3]


def test_nan_deep_in_a_tiff_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    image = np.zeros((90, 40, 3), np.float32)
    image[77, 5] = np.nan
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    source = Source(tmp_path / "a.tif")
    reader = source.rows(ImageFormat(3, "float32"))
    assert reader is not None and reader.read(0, 70).sum() == 0
    with pytest.raises(UserError, match=r"a\.tif: nan or infinity in 1 pixel"):
        reader.read(70, 90)


def test_a_damaged_strip_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, noise(90, 40), photometric="rgb", compression="zlib", rowsperstrip=10)
    with tifffile.TiffFile(path) as tiff:
        offset = tiff.pages[0].dataoffsets[8]
    content = bytearray(path.read_bytes())
    content[offset : offset + 20] = b"x" * 20
    path.write_bytes(content)
    source = Source(path)
    reader = source.rows(ImageFormat(3))
    assert reader is not None and np.array_equal(reader.read(0, 80), noise(90, 40)[:80])
    with pytest.raises(UserError, match=r"a\.tif: corrupt or truncated \(.*\); replace it"):
        reader.read(79, 81)
    (tmp_path / "b.tif").write_bytes(b"II*\0no image")
    assert Source(tmp_path / "b.tif").rows(ImageFormat(3)) is None


def test_a_file_that_an_ome_tiff_names_is_not_opened(tmp_path: Path) -> None:
    """A pipe, here: to open it would wait for ever."""
    os.mkfifo(tmp_path / "pipe.tif")
    xml = """<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:1"><Image
    ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" SizeX="9" SizeY="8"
    SizeC="1" SizeZ="2" SizeT="1"><Channel ID="C:0" SamplesPerPixel="1"/><TiffData IFD="0"
    PlaneCount="1"/><TiffData IFD="0" FirstZ="1" PlaneCount="1"><UUID FileName="pipe.tif"
    >urn:uuid:2</UUID></TiffData></Pixels></Image></OME>"""
    image = noise(8, 9)[..., 0]
    tifffile.imwrite(tmp_path / "a.tif", image, description=xml, metadata=None)
    source = Source(tmp_path / "a.tif")
    reader = source.rows(ImageFormat(1))
    assert reader is not None and np.array_equal(reader.read(0, 8)[..., 0], image)


def test_smaller_copies_are_passed_over_and_several_images_are_left_to_others(
    tmp_path: Path,
) -> None:
    image = noise(64, 48)
    for kind, is_read in ((1, True), (0, False)):
        with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
            tiff.write(image, photometric="rgb", metadata=None)
            tiff.write(image[::2, ::2], photometric="rgb", subfiletype=kind, metadata=None)
        source = Source(tmp_path / "a.tif")
        reader = source.rows(ImageFormat(3))
        assert (reader is not None) == is_read
        if reader is not None:
            assert np.array_equal(reader.read(0, 64), image)


def test_scenes_of_any_size_are_read_by_rows_but_not_tiles_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pixels in memory at one time count: a tile, not the image."""
    monkeypatch.setattr(base, "MOST_BYTES", 64 * 64 * 3)
    monkeypatch.setattr(base, "MOST_RATIO", 1)
    image, path = np.zeros((640, 640, 3), np.uint8), tmp_path / "a.tif"
    for tile, is_read in ((64, True), (80, False)):
        tifffile.imwrite(path, image, photometric="rgb", tile=(tile, tile), compression="zlib")
        source = Source(path)
        reader = source.rows(ImageFormat(3))
        assert (reader is not None) == is_read
        if reader is not None:
            assert reader.read(634, 640).shape == (6, 640, 3)
            with pytest.raises(UserError, match="640x640 pixels of 3 bytes in a small file"):
                reader.read(0, 640)
