"""NPY files and TIFFs that Pillow can't read, or of which it loses a part."""

from __future__ import annotations

import logging
import lzma
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.reading import read_header, read_image
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import Header, ImageFormat
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError


def write(path: Path, pixels: np.ndarray, **how: Any) -> Path:
    """A TIFF whose bands are one after the other in each pixel, unless said."""
    tifffile.imwrite(path, pixels, **{"photometric": "minisblack", "planarconfig": "contig", **how})
    return path


@pytest.mark.parametrize(
    ("shape", "dtype", "how", "expected"),
    [
        ((9, 7), "uint8", {}, False),
        ((9, 7), "uint16", {}, False),
        ((9, 7, 3), "uint8", {"photometric": "rgb"}, False),
        ((9, 7, 4), "uint8", {"photometric": "rgb", "extrasamples": ["unassalpha"]}, False),
        ((9, 7, 4), "uint8", {"photometric": "rgb", "extrasamples": ["assocalpha"]}, True),
        ((9, 7, 4), "uint8", {"photometric": "rgb", "extrasamples": ["unspecified"]}, True),
        ((9, 7, 2), "uint8", {"extrasamples": ["unspecified"]}, True),
        ((9, 7, 2), "uint8", {"extrasamples": ["unassalpha"]}, False),
        ((9, 7, 3), "uint16", {"photometric": "rgb"}, True),
        ((9, 7, 5), "uint8", {}, True),
        ((9, 7, 12), "uint8", {}, True),
        ((9, 7), "int16", {}, True),
        ((9, 7), "int8", {}, True),
        ((9, 7), "uint32", {}, True),
        ((9, 7), "float32", {}, True),
        ((9, 7), "uint8", {"extratags": [(42113, 2, 0, "-9", True)]}, False),
        ((2, 9, 7), "uint8", {"planarconfig": None}, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".tif", ".TIFF"])
def test_what_is_read_as_an_array(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, how: dict[str, Any], expected: bool,
    suffix: str,
) -> None:  # fmt: skip
    path = write(tmp_path / f"x{suffix}", np.zeros(shape, dtype), **how)
    if shape[0] == 2:
        with pytest.raises(UserError, match="several frames"):
            read_header(path)
    else:
        assert read_header(path).is_array == expected


def test_an_npy_file_is_an_array_and_a_photo_is_none(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3), np.uint8))
    Image.new("L", (3, 4)).save(tmp_path / "a.png")
    assert read_header(tmp_path / "a.npy").is_array
    assert not read_header(tmp_path / "a.png").is_array


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("suffix", ["npy", "tif"])
def test_many_bands_keep_their_type_and_values(
    tmp_path: Path, dtype: str, suffix: str, rng: np.random.Generator
) -> None:
    bands = (rng.integers(-90, 90, (10, 12, 5)) if dtype in ("int16", "float32")
             else rng.integers(0, 200, (10, 12, 5))).astype(dtype)  # fmt: skip
    path = tmp_path / f"x.{suffix}"
    (np.save if suffix == "npy" else write)(path, bands)
    assert read_header(path) == Header(12, 10, 5, dtype, is_array=True)
    read = read_image(path, ImageFormat(5, dtype))
    assert read.dtype == dtype and not isinstance(read, np.memmap)
    assert (read == bands).all()
    with pytest.raises(UserError, match=r"x\.\w+: 5 channels, the network takes 3"):
        read_image(path, ImageFormat(3, dtype))


@pytest.mark.parametrize(
    ("stored", "kept"), [("float64", "float32"), ("float16", "float32"), ("int8", "int16"),
                         ("bool", "uint8"), (">u2", "uint16"), (">f4", "float32")],
)  # fmt: skip
def test_types_that_one_of_ours_can_hold(tmp_path: Path, stored: str, kept: str) -> None:
    values = np.array([[0, 1], [1, 0]], stored)
    np.save(tmp_path / "x.npy", values)
    assert read_header(tmp_path / "x.npy").dtype == kept
    read = read_image(tmp_path / "x.npy", ImageFormat(1, kept))
    white = 255 if stored == "bool" else 1  # as an image of one bit
    assert read.dtype.str == np.dtype(kept).str and (read[..., 0] == white * values).all()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "complex64"])
def test_other_types_are_refused(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 4), dtype))
    expected = rf"x\.npy: pixels of type {dtype}; save as uint8, uint16, int16, float32"
    with pytest.raises(UserError, match=expected):
        read_image(tmp_path / "x.npy", ImageFormat(1))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 6), (5, 6, 1)), ((5, 6, 4), (5, 6, 4)), ((4, 5, 6), (5, 6, 4)), ((4, 6, 5), (6, 5, 4)),
     ((5, 5, 6), (5, 5, 6)), ((5, 6, 5), (5, 6, 5)), ((1, 6, 6), (6, 6, 1))],
)  # fmt: skip
def test_the_bands_of_an_npy_are_its_last_axis_or_a_shortest_first_one(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "x.npy", values)
    header = read_header(tmp_path / "x.npy")
    assert (header.height, header.width, header.channels) == expected
    read = read_image(tmp_path / "x.npy", ImageFormat(header.channels, "float32"))
    moved = shape[0] == expected[-1] and len(shape) == 3 and shape != expected
    assert (read == (np.moveaxis(values, 0, -1) if moved else values.reshape(expected))).all()


def test_an_npy_of_another_kind_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 4, 5)))
    with pytest.raises(UserError, match=r"an array of 4 axes; save \(H, W\) or \(H, W, C\)"):
        read_header(tmp_path / "x.npy")
    np.save(tmp_path / "empty.npy", np.zeros((0, 5), np.float32))
    with pytest.raises(UserError, match=r"empty\.npy: has no pixels"):
        read_image(tmp_path / "empty.npy", ImageFormat(1, "float32"))
    cellpose = {"masks": np.ones((4, 5), np.uint16), "flows": [], "filename": "x.tif"}
    np.save(tmp_path / "x_seg.npy", cellpose, allow_pickle=True)
    with pytest.raises(UserError, match=r"x_seg\.npy: holds Python objects, .* export the masks"):
        read_mask(tmp_path / "x_seg.npy")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(UserError, match="corrupt or truncated"):
        read_header(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("kind", "has_alpha"), [("unassalpha", True), ("assocalpha", True), ("unspecified", False)]
)
def test_alpha_is_no_channel_unless_asked_for(tmp_path: Path, kind: str, has_alpha: bool) -> None:
    bands = np.arange(48, dtype=np.uint16).reshape(3, 4, 4)
    path = write(tmp_path / "x.tif", bands, photometric="rgb", extrasamples=[kind])
    assert read_header(path) == Header(
        4, 3, 4 - has_alpha, "uint16", has_alpha=has_alpha, is_array=True
    )
    assert (read_image(path, ImageFormat(4, "uint16")) == bands).all()
    if has_alpha:
        assert (read_image(path, ImageFormat(3, "uint16")) == bands[..., :3]).all()
    else:
        with pytest.raises(UserError, match="4 channels, the network takes 3"):
            read_image(path, ImageFormat(3, "uint16"))


@pytest.mark.parametrize(("text", "expected"), [("-9999", -9999.0), (" 0.5 ", 0.5), ("none", None)])
def test_gdal_s_no_data_value(tmp_path: Path, text: str, expected: float | None) -> None:
    tags = [(42113, 2, 0, text, True)]
    path = write(tmp_path / "x.tif", np.zeros((4, 4), np.uint8), extratags=tags)
    assert read_header(path).nodata == expected
    nan = write(
        tmp_path / "y.tif", np.zeros((4, 4), np.float32), extratags=[(42113, 2, 0, "nan", True)]
    )
    assert np.isnan(read_header(nan).nodata) and read_header(nan) == read_header(nan)


def test_overviews_are_ignored_and_pages_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    pixels = rng.integers(0, 255, (64, 48, 3), dtype=np.uint8)
    for subfile, name in ((1, "x.tif"), (0, "y.tif")):
        with tifffile.TiffWriter(tmp_path / name) as tiff:
            tiff.write(pixels, photometric="rgb")
            tiff.write(pixels[::2, ::2], photometric="rgb", subfiletype=subfile)
    assert (read_image(tmp_path / "x.tif", ImageFormat(3)) == pixels).all()
    with pytest.raises(UserError, match=r"y\.tif: holds several frames or pages; save one image"):
        read_image(tmp_path / "y.tif", ImageFormat(3))


@pytest.mark.parametrize("suffix", ["npy", "tif"])
@pytest.mark.parametrize("dtype", ["int16", "float32", "int32"])
def test_masks_hold_whole_numbers(tmp_path: Path, suffix: str, dtype: str) -> None:
    values = np.array([[-1, 0, 300], [7, 7, 32000]], dtype)
    save = np.save if suffix == "npy" else write
    save(tmp_path / f"x.{suffix}", values)
    read = read_mask(tmp_path / f"x.{suffix}")
    assert read.dtype == np.int32 and read.tolist() == values.tolist()
    np.save(tmp_path / "z.npy", values[..., None].repeat(2, axis=0))
    assert read_mask(tmp_path / "z.npy").tolist() == values.repeat(2, axis=0).tolist()
    for wrong in (0.5, np.nan, np.inf):
        save(tmp_path / f"y.{suffix}", np.array([[1, wrong]], np.float32))
        with pytest.raises(UserError, match=r"y\.\w+: mask values are not whole numbers; save one"):
            read_mask(tmp_path / f"y.{suffix}")


def test_masks_of_colours_and_of_two_bands(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 128, 7]]] * 4, np.int16)
    np.save(tmp_path / "x.npy", colours)
    assert read_mask(tmp_path / "x.npy").tolist() == [[0xFF0000, 0x008007]] * 4
    np.save(tmp_path / "x.npy", colours[..., :2].repeat(3, axis=1))
    with pytest.raises(UserError, match="2 bands; a mask has one, or three of colour"):
        read_mask(tmp_path / "x.npy")


def test_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pillow and tifffile report bands and tags that they don't know, once per file and reading."""
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's, which would take the messages
    bands = write(tmp_path / "bands.tif", np.zeros((9, 7, 12), np.uint8))
    whole = bands.read_bytes()
    read_header(bands)
    read_image(bands, ImageFormat(12))
    for place in range(12, len(whole) - 9 * 7 * 12, 12):
        (tmp_path / "odd.tif").write_bytes(whole[:place] + b"\x77" + whole[place + 1 :])
        try:
            read_header(tmp_path / "odd.tif")
            read_image(tmp_path / "odd.tif", ImageFormat(12))
        except UserError as error:
            assert "odd.tif: " in str(error)
    assert capfd.readouterr() == ("", "")


# -- small files that would take much memory ------------------------------------------------


@pytest.mark.parametrize("compression", ["zlib", "lzma"])
def test_a_strip_that_inflates_beyond_its_header_is_refused(
    tmp_path: Path, compression: str
) -> None:
    """A kilobyte may inflate to a megabyte. Some rows too many, as some programs write, do no harm."""
    ones = np.ones((4, 4), np.int16)
    path = write(tmp_path / "x.tif", ones, compression=compression)
    pack = {"zlib": zlib.compress, "lzma": lzma.compress}[compression]
    grow(path, pack(ones.tobytes() + bytes(1000)))
    assert (read_image(path, ImageFormat(1, "int16"))[..., 0] == ones).all()
    grow(path, pack(bytes(64 << 20)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    with pytest.raises(UserError, match="a strip or tile is not as long as the header says"):
        read_image(path, ImageFormat(1, "int16"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_tifffile_without_its_private_table_of_decoders_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one may keep them elsewhere; its own decoders are then used."""
    ones = np.ones((4, 4), np.int16)
    path = write(tmp_path / "x.tif", ones, compression="zlib")
    decoders = type(tifffile.TIFF.DECOMPRESSORS)(encode=False)  # as it is before ours are put in
    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", {8: decoders[8]})
    assert (read_image(path, ImageFormat(1, "int16"))[..., 0] == ones).all()


def grow(path: Path, data: bytes) -> None:
    """Replace the one strip of a TIFF by `data`, at the file's end."""
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tags = tiff.pages[0].tags
        end = path.stat().st_size
        tags["StripOffsets"].overwrite(end)
        tags["StripByteCounts"].overwrite(len(data))
    with path.open("ab") as file:
        file.write(data)


def test_a_damaged_or_truncated_strip_is_still_found(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tif", np.arange(99, dtype=np.int16)[None], compression="zlib")
    good = path.read_bytes()
    with tifffile.TiffFile(path) as tiff:
        begin, length = tiff.pages[0].dataoffsets[0], tiff.pages[0].databytecounts[0]
    end = begin + length
    changed = good[: end - 1] + bytes([good[end - 1] ^ 1]) + good[end:]  # its checksum
    cut = good[: end - 9] + bytes(9) + good[end:]
    for content in (changed, cut):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.tif: corrupt or truncated"):
            read_image(path, ImageFormat(1, "int16"))


def test_bands_and_their_bytes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 bands of 90x90: 3.2 MB in a file of 4 KB."""
    path = write(tmp_path / "x.tif", np.zeros((90, 90, 200), np.uint16), compression="zlib")
    monkeypatch.setattr(base, "MOST_BYTES", 90 * 90 * 200 * 2)
    assert read_header(path).channels == 200
    monkeypatch.setattr(base, "MOST_BYTES", 90 * 90 * 200 * 2 - 1)
    for read in (read_header, read_mask, lambda path: read_image(path, ImageFormat(200, "uint16"))):
        with pytest.raises(UserError, match=r"x\.tif: 90x90 pixels of 400 bytes"):
            read(path)
    write(path, np.zeros((90, 90, 200), np.uint16))  # plain: the file is as large as its pixels
    assert read_image(path, ImageFormat(200, "uint16")).shape == (90, 90, 200)


def test_a_tile_larger_than_its_image_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.zeros((16, 16), np.int16)
    path = write(tmp_path / "x.tif", pixels, compression="zlib", tile=(512, 512))
    monkeypatch.setattr(base, "MOST_BYTES", 512 * 512 * 2 - 1)
    with pytest.raises(UserError, match=r"x\.tif: .*too large to open safely"):
        read_image(path, ImageFormat(1, "int16"))
