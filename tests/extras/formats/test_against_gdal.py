"""TIFF and PNG files of every layout: all bands but alpha, in order, as GDAL and tifffile have them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.pillow import decode
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.extras.geo.reader import MapFile

rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")

SIZE = 40, 48
COUNTS = (1, 2, 3, 4, 5, 7)
TYPES = ("uint8", "uint16", "int16", "float32")
PHOTOMETRIC = (None, "MINISBLACK", "RGB")
LAYOUTS = tuple(product(("pixel", "band"), (None, "deflate"), (False, True)))
TAGS: tuple[dict[str, Any], ...] = (
    {},
    {"nodata": 7},
    {"mask": True},
    {"alpha": "yes"},
    {"alpha": "premultiplied"},
)


def write_by_gdal(path: Path, pixels: np.ndarray, **how: Any) -> list[int]:
    """Write (C, H, W), and return the bands that GDAL says are not alpha."""
    mask = how.pop("mask", False)
    profile = {"driver": "GTiff", "count": len(pixels), "height": SIZE[0], "width": SIZE[1]}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(path, "w", **profile, dtype=pixels.dtype, **how) as out,
    ):
        out.write(pixels)
        if mask:
            out.write_mask(np.tri(*SIZE, dtype=np.uint8) * 255)
    with rasterio.open(path) as reference:
        assert np.array_equal(reference.read(), pixels)
        return [band for band, kind in enumerate(reference.colorinterp) if kind.name != "alpha"]


def read_all(path: Path, *, nodata: float | None = None) -> list[np.ndarray]:
    """Return the channels (H, W) of the whole image, and check that its rows are the same."""
    with Source(path) as source:
        header = source.header
        wanted = ImageFormat(
            header.channels, header.dtype, nodata=nodata, fill=(nodata or 0.0,) * header.channels
        )
        whole, _ = source.image(wanted)
        assert whole.shape == (*header.size, header.channels)
    with Source(path) as source:
        rows = source.rows(wanted)
        if rows is not None:
            parts = [rows.read(top, min(top + 9, rows.height)) for top in range(0, rows.height, 9)]
            assert np.array_equal(np.concatenate(parts), whole)
    return list(np.moveaxis(whole, -1, 0))


def layouts(count: int) -> list[dict[str, Any]]:
    found = []
    for photometric, (interleave, compress, tiled), tags in product(PHOTOMETRIC, LAYOUTS, TAGS):
        if (photometric == "RGB" and count < 3) or ("alpha" in tags and count < 2):
            continue
        how = {"interleave": interleave, **tags}
        how |= {"photometric": photometric} if photometric else {}
        how |= {"compress": compress} if compress else {}
        how |= {"tiled": True, "blockxsize": 16, "blockysize": 16} if tiled else {}
        found.append(how)
    return found


def check_layout(
    path: Path, dtype: str, count: int, how: dict[str, Any], rng: np.random.Generator
) -> str:
    """Return what differs between our channels and GDAL's; empty for nothing."""
    pixels = rng.integers(8, 100, (count, *SIZE)).astype(dtype)
    pixels += (100 * np.arange(count, dtype=dtype) % 150)[:, None, None]  # which no other band has
    bands = write_by_gdal(path, pixels, **how)
    try:
        found = read_all(path, nodata=how.get("nodata"))
    except UserError as error:
        return f"refused: {error}"
    places = [
        next((k for k in range(count) if np.array_equal(each, pixels[k])), None) for each in found
    ]
    return "" if places == bands else f"bands {places} of {bands}"


@pytest.mark.parametrize("count", COUNTS)
def test_all_bands_but_alpha_come_in_gdal_s_order(
    tmp_path: Path, rng: np.random.Generator, count: int
) -> None:
    """A sample of all layouts."""
    every = list(product(TYPES, layouts(count)))
    chosen = [every[k] for k in sorted(rng.choice(len(every), 24, replace=False))]
    check_all(tmp_path, count, chosen, rng)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count",
    [pytest.param(count, marks=[pytest.mark.release] * (count not in (2, 4))) for count in COUNTS],
)
def test_all_layouts(tmp_path: Path, rng: np.random.Generator, count: int) -> None:
    check_all(tmp_path, count, list(product(TYPES, layouts(count))), rng)


def check_all(folder: Path, count: int, cases: list[Any], rng: np.random.Generator) -> None:
    faults = []
    for dtype, how in cases:
        fault = check_layout(folder / "x.tif", dtype, count, how, rng)
        if fault:
            faults.append(f"{count} bands of {dtype}, {how}: {fault}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("compress", ["JPEG", "DEFLATE", "LERC"])
@pytest.mark.parametrize("kind", ["mask", "alpha", "plain"])
def test_cloud_optimised_files_of_gdal_s_own_driver(
    tmp_path: Path, rng: np.random.Generator, compress: str, kind: str
) -> None:
    """With overviews, and the internal mask that it makes of alpha with JPEG."""
    from rasterio.shutil import copy

    small = rng.integers(0, 255, (3, 20, 24), dtype=np.uint8)
    pixels = np.kron(small, np.ones((1, 32, 32), np.uint8))
    how: dict[str, Any] = {"photometric": "RGB"}
    alpha = np.kron(
        rng.integers(0, 2, (1, 20, 24), dtype=np.uint8) * 255, np.ones((1, 32, 32), np.uint8)
    )
    if kind == "alpha":
        pixels, how["alpha"] = np.concatenate([pixels, alpha]), "yes"
    profile = {
        "driver": "GTiff",
        "count": len(pixels),
        "height": 640,
        "width": 768,
        "dtype": "uint8",
    }
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
        rasterio.open(tmp_path / "x.tif", "w", **profile, **how) as out,
    ):
        out.write(pixels)
        if kind == "mask":
            out.write_mask(alpha[0])
    try:
        copy(tmp_path / "x.tif", tmp_path / "cog.tif", driver="COG", compress=compress)
    except rasterio.errors.RasterioError as error:
        pytest.skip(f"this GDAL has no {compress}: {error}")
    with rasterio.open(tmp_path / "cog.tif") as reference:
        expected = reference.read([1, 2, 3])
        empty = (reference.dataset_mask() == 0).sum()
    found = np.stack(read_all(tmp_path / "cog.tif"))
    assert np.abs(found.astype(int) - expected).max() <= (3 if compress == "JPEG" else 0)
    with Source(tmp_path / "cog.tif") as source, source.reading() as opened:
        assert source.place is None  # asks GDAL
        ids = np.zeros((640, 768), np.uint8)
        if kind != "plain":
            assert opened.mark_nodata(ids, 9) == (ids == 9).sum() == empty > 0


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize(
    "tags", [{}, {"compression": "zlib"}, {"tile": (16, 16)}, {"nodata": 9}, {"rowsperstrip": 3}]
)
def test_where_0_is_white_grey_values_are_turned(
    tmp_path: Path, rng: np.random.Generator, dtype: str, tags: dict[str, Any]
) -> None:
    """In images and in masks, whatever else the file notes; signed and real numbers have no white."""
    how = dict(tags)
    nodata = how.pop("nodata", None)
    how["extratags"] = [(42113, 2, 0, str(nodata), True)] if nodata is not None else []
    white = np.iinfo(dtype).max
    stored = rng.integers(0, white, SIZE, dtype=dtype)
    tifffile.imwrite(tmp_path / "x.tif", stored, photometric="miniswhite", **how)
    with Source(tmp_path / "x.tif") as source:
        found, _ = source.image(ImageFormat(1, dtype))
        assert np.array_equal(found[..., 0], white - stored)
        assert np.array_equal(source.mask(), white - stored)
        assert source.header.nodata == (None if nodata is None else white - nodata)
    for signed in ("int16", "float32"):
        values = stored.astype(signed)
        tifffile.imwrite(tmp_path / "y.tif", values, photometric="miniswhite")
        with Source(tmp_path / "y.tif") as source:
            assert np.array_equal(source.image(ImageFormat(1, signed))[0][..., 0], values)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("is_big", [False, True])
def test_either_order_of_bytes_is_read_alike(
    tmp_path: Path, rng: np.random.Generator, order: Any, is_big: bool
) -> None:
    pixels = rng.integers(0, 65535, (*SIZE, 5), dtype=np.uint16)
    how: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
    tifffile.imwrite(tmp_path / "x.tif", pixels, byteorder=order, bigtiff=is_big, **how)
    assert np.array_equal(np.stack(read_all(tmp_path / "x.tif"), -1), pixels)
    with Source(tmp_path / "x.tif") as source:
        assert source.rows(ImageFormat(5, "uint16")) is not None


# -- pages that are channels -----------------------------------------------------------------


def write_pages(path: Path, pixels: np.ndarray, axes: str, program: str) -> Path:
    metadata = {"axes": axes}
    if program == "ImageJ":
        tifffile.imwrite(path, pixels, imagej=True, metadata=metadata)
    else:
        tifffile.imwrite(path, pixels, ome=True, metadata=metadata, photometric="minisblack")
    return path


@pytest.mark.parametrize("program", ["ImageJ", "OME"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_channels_in_pages_are_bands(
    tmp_path: Path, rng: np.random.Generator, program: str, dtype: str, count: int
) -> None:
    pixels = rng.integers(0, 255, (count, *SIZE)).astype(dtype)
    path = write_pages(tmp_path / "x.tif", pixels, "CYX", program)
    assert np.array_equal(np.stack(read_all(path)), pixels)
    with Source(path) as source, pytest.raises(UserError, match="several frames or pages"):
        source.mask()


@pytest.mark.parametrize("compress", [None, "lzw", "zstd", "packbits", "lzma", "deflate"])
def test_pages_of_any_compression_are_the_pages_that_gdal_reads(
    tmp_path: Path, rng: np.random.Generator, compress: str | None
) -> None:
    """As channels of an image, and as classes of a mask."""
    path, pixels = tmp_path / "x.tif", rng.integers(0, 2, (4, *SIZE), dtype=np.uint16)
    profile = {"driver": "GTiff", "height": SIZE[0], "width": SIZE[1], "count": 1}
    profile |= {"compress": compress} if compress else {}
    text = "ImageJ=1.53\nimages=4\nchannels=4\nmode=composite\n"
    for page, values in enumerate(pixels):
        how = {**profile, "APPEND_SUBDATASET": "YES"} if page else profile
        with rasterio.open(path, "w", **how, dtype="uint16") as out:
            out.update_tags(TIFFTAG_IMAGEDESCRIPTION=text)
            out.write(values, 1)
    assert np.array_equal(np.stack(read_all(path)), pixels)
    with Source(path, planes=True) as source:
        assert np.array_equal(source.mask(), (pixels << np.arange(4)[:, None, None]).sum(0))


@pytest.mark.parametrize("program", ["ImageJ", "OME"])
@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (
            "ZYX",
            "holds 3 slices of an image; save one image per file, e.g. in Fiji by Image > Stacks > Z Project",
        ),
        ("TYX", "holds 3 frames of an image; save one image per file"),
        ("ZCYX", "holds 3 slices of an image"),
        ("TCYX", "holds 3 frames of an image"),
    ],
)
def test_slices_and_frames_are_named(tmp_path: Path, program: str, axes: str, said: str) -> None:
    shape = (3, 2, *SIZE)[: len(axes) - 2] + SIZE
    path = write_pages(tmp_path / "x.tif", np.zeros(shape, np.uint8), axes, program)
    for ask in (lambda s: s.header, lambda s: s.image(ImageFormat(3))):
        with Source(path) as source, pytest.raises(UserError, match=said):
            ask(source)


# -- few bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_mask_of_few_bits_has_the_values_that_are_stored(
    tmp_path: Path, rng: np.random.Generator, bits: int, suffix: str
) -> None:
    """As GDAL reads them; an image's go up to white."""
    white = (1 << bits) - 1
    stored = rng.integers(0, white + 1, SIZE, dtype=np.uint8)
    stored[0, 0] = white
    path = tmp_path / f"x.{suffix}"
    profile = {"height": SIZE[0], "width": SIZE[1], "count": 1, "dtype": "uint8", "NBITS": bits}
    with rasterio.open(path, "w", driver={"png": "PNG", "tif": "GTiff"}[suffix], **profile) as out:
        out.write(stored, 1)
    with Source(path) as source:
        assert source.header.bits == bits
        assert np.array_equal(source.mask(), stored)
        found, _ = source.image(ImageFormat(1))
    assert np.array_equal(found[..., 0], stored * (255 // white))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite", "palette"])
def test_overviews_change_no_pixel(
    tmp_path: Path, rng: np.random.Generator, photometric: str, bits: int
) -> None:
    """Of an image, whose grey values go up to white and whose palette is colours, and of a mask."""
    stored = rng.integers(0, 1 << bits, SIZE, dtype=np.uint8)
    profile = {"height": SIZE[0], "width": SIZE[1], "count": 1, "dtype": "uint8", "NBITS": bits}
    found = []
    for name in ("plain.tif", "overviews.tif"):
        with rasterio.open(
            tmp_path / name, "w", driver="GTiff", photometric=photometric, **profile
        ) as out:
            out.write(stored, 1)
            if photometric == "palette":
                out.write_colormap(1, {k: (k * 9 % 256, 255 - k, 7, 255) for k in range(1 << bits)})
        if name == "overviews.tif":
            with rasterio.open(tmp_path / name, "r+") as out:
                out.build_overviews([2, 4])
        with Source(tmp_path / name) as source:
            header = source.header
            image, _ = source.image(ImageFormat(header.channels))
            found.append((header.channels, header.palette, image, source.mask()))
    (channels, palette, image, mask), (*properties, other_image, other_mask) = found
    assert properties == [channels, palette]
    assert np.array_equal(image, other_image) and np.array_equal(mask, other_mask)
    if photometric != "miniswhite":
        assert np.array_equal(mask, stored)
    if photometric == "palette":
        colours = np.array([palette[k] for k in range(1 << bits)], np.uint8)
        assert np.array_equal(image, colours[stored])


@pytest.mark.parametrize("how", [{}, {"tiled": True, "blockxsize": 16, "blockysize": 16}])
@pytest.mark.parametrize("count", [3, 4])
def test_webp_in_a_tiff_is_read_by_a_library_that_can(
    tmp_path: Path, rng: np.random.Generator, count: int, how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pixels = rng.integers(0, 256, (count, *SIZE), dtype=np.uint8)
    path, how = tmp_path / "x.tif", {**how, "photometric": "rgb"}
    how |= {"alpha": "yes"} if count == 4 else {}
    try:
        bands = write_by_gdal(path, pixels, compress="webp", webp_lossless=True, **how)
    except rasterio.errors.RasterioError as error:
        pytest.skip(f"this GDAL has no WebP: {error}")
    assert np.array_equal(np.stack(read_all(path)), pixels[bands])
    monkeypatch.setattr(MapFile, "decode", lambda self, page: None)  # as without rasterio
    with Source(path) as source, pytest.raises(UserError, match="compression WEBP needs") as told:
        source.image(ImageFormat(len(bands)))
    assert str(told.value).startswith(f"{path}: ") and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("photometric", "bits", "count", "expected"),
    [
        *(("minisblack", bits, 1, 255 // ((1 << bits) - 1)) for bits in (1, 2, 4, 8)),
        *(("miniswhite", bits, 1, 255 - 255 // ((1 << bits) - 1)) for bits in (1, 2, 4, 8)),
        ("minisblack", 16, 1, 1),
        ("miniswhite", 16, 1, 65534),
        ("palette", 8, 1, None),
        ("palette", 4, 1, None),
        ("cmyk", 8, 4, None),
        ("rgb", 8, 3, 1),
        ("rgb", 16, 3, 1),
        ("ycbcr", 8, 3, 1),
    ],
)
def test_a_value_of_no_data_changes_no_pixel(
    tmp_path: Path,
    rng: np.random.Generator,
    photometric: str,
    bits: int,
    count: int,
    expected: float | None,
) -> None:
    """Pixels and masks are those of the file without the tag; the value is one of the pixels."""
    dtype = "uint16" if bits > 8 else "uint8"
    pixels = rng.integers(0, 1 << bits, (count, *SIZE)).astype(dtype)
    pixels[:, :8, :8] = 1
    how: dict[str, Any] = {"photometric": photometric} | ({"nbits": bits} if bits < 8 else {})
    if photometric == "ycbcr":
        how |= {"compress": "jpeg", "interleave": "pixel"}
    profile = {"driver": "GTiff", "height": SIZE[0], "width": SIZE[1], "count": count}
    found = []
    for name, tag in (("plain", {}), ("tagged", {"nodata": 1})):
        path = tmp_path / f"{name}.tif"
        with rasterio.open(path, "w", **profile, dtype=dtype, **how, **tag) as out:
            out.write(pixels)
            if photometric == "palette":
                out.write_colormap(1, {k: (k, 255 - k, k // 2, 255) for k in range(1 << bits)})
        with Source(path) as source:
            header = source.header
            whole, _ = source.image(ImageFormat(header.channels, header.dtype))
            found.append((whole, source.mask() if bits < 16 or count == 1 else whole))
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    assert header.nodata == expected
    if expected is not None and photometric != "ycbcr":
        assert (whole[:8, :8] == expected).all()


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "webp", "unknown"])
@pytest.mark.parametrize(
    ("dtype", "count", "photometric"), [("uint16", 1, "miniswhite"), ("uint8", 5, "minisblack")]
)
def test_a_tiff_under_another_suffix_is_read_as_a_tiff(
    tmp_path: Path, rng: np.random.Generator, suffix: str, dtype: Any, count: int, photometric: Any
) -> None:
    pixels = rng.integers(0, 255, (*SIZE, count)).astype(dtype)
    how = {"photometric": photometric, "planarconfig": "contig"}
    stored = pixels if count > 1 else pixels[..., 0]
    for name in ("x.tif", f"y.{suffix}"):
        tifffile.imwrite(tmp_path / name, stored, **how)
    expected = read_all(tmp_path / "x.tif")
    assert len(expected) == count
    assert np.array_equal(read_all(tmp_path / f"y.{suffix}"), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite"])
def test_a_pillow_image_has_the_pixels_of_its_file(
    tmp_path: Path, rng: np.random.Generator, dtype: Any, photometric: Any
) -> None:
    pixels = rng.integers(0, np.iinfo(dtype).max, SIZE, dtype=dtype)
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric=photometric)
    with Image.open(tmp_path / "x.tif") as image:
        found = decode(image, ImageFormat(1, dtype), "image")
    assert np.array_equal(found[..., 0], read_all(tmp_path / "x.tif")[0])


@pytest.mark.parametrize(
    ("photometric", "shape", "said"),
    [("separated", (*SIZE, 4), "CMYK in 16 bit"), ("cielab", (*SIZE, 3), "CIELab in 8 bit")],
)
def test_other_colours_are_refused(
    tmp_path: Path, photometric: Any, shape: tuple[int, ...], said: str
) -> None:
    dtype = np.uint16 if "16" in said else np.uint8
    tifffile.imwrite(tmp_path / "x.tif", np.zeros(shape, dtype), photometric=photometric)
    with pytest.raises(UserError, match=f"an image of {said}; save it as RGB or grey"):
        read_all(tmp_path / "x.tif")


def test_a_stack_of_imagej_in_one_directory_is_refused(tmp_path: Path) -> None:
    """As ImageJ writes one beyond 4 GB; a page that was cut out of a stack is an image."""
    pixels = np.ones((3, *SIZE), np.uint16)
    how: dict[str, Any] = {"imagej": True, "metadata": {"axes": "CYX"}, "truncate": True}
    tifffile.imwrite(tmp_path / "x.tif", pixels, **how)
    with pytest.raises(UserError, match="ImageJ's 3 images in one directory"):
        read_all(tmp_path / "x.tif")
    text = "ImageJ=1.53\nimages=3\nchannels=3\n"
    tifffile.imwrite(tmp_path / "y.tif", pixels[0], description=text, metadata=None)
    assert np.array_equal(read_all(tmp_path / "y.tif"), pixels[:1])
