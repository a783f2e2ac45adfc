"""Files to arrays: every format alike, nothing decided per image."""

from __future__ import annotations

import os
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from tests.conftest import SEED, make_set
from unet_ddp.data.checks.scan import read_image_metadata, scan
from unet_ddp.data.formats.header import ImageFormat, as_user_error
from unet_ddp.data.formats.read import read_header, read_image, read_mask
from unet_ddp.data.formats.resize import resize_area, scaled_size
from unet_ddp.data.pairs import find_pairs
from unet_ddp.errors import UserError

COLOUR, GREY = ImageFormat(3), ImageFormat(1)


@pytest.fixture
def picture() -> np.ndarray:
    rows, columns = np.mgrid[0:40, 0:60]
    return np.stack([rows * 6, columns * 4, 255 - rows * 3], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "webp", "jpg", "gif"])
def test_formats(tmp_path: Path, picture: np.ndarray, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    how = {"webp": {"lossless": True}, "jpg": {"quality": 98, "subsampling": 0}}.get(ending, {})
    Image.fromarray(picture).save(path, **how)
    read = read_image(path, COLOUR)
    assert read.shape == (40, 60, 3) and read.dtype == np.uint8
    lossless = ending in ("png", "bmp", "tif", "webp")
    assert np.abs(read.astype(int) - picture).max() <= (0 if lossless else 40)
    header = read_header(path)
    assert (header.height, header.width, header.format) == (40, 60, COLOUR)


def test_scale_is_the_mean_of_an_area(tmp_path: Path) -> None:
    blocks = np.kron(np.array([[10, 200], [90, 30]], np.uint8), np.ones((8, 8), np.uint8))
    blocks[::2, ::2] += 20  # a pattern that picking single pixels would show
    Image.fromarray(blocks).save(tmp_path / "x.png")
    read = read_image(tmp_path / "x.png", GREY, scale=0.125)
    assert read[..., 0].tolist() == [[15, 205], [95, 35]]


def test_scaled_jpeg_is_the_scaled_image(tmp_path: Path, picture: np.ndarray) -> None:
    large = np.asarray(Image.fromarray(picture).resize((960, 640)))
    Image.fromarray(large).save(tmp_path / "x.jpg", quality=95)
    full = read_image(tmp_path / "x.jpg", COLOUR)
    small = read_image(tmp_path / "x.jpg", COLOUR, scale=0.25)
    assert small.shape == (160, 240, 3)
    expected = full.reshape(160, 4, 240, 4, 3).mean(axis=(1, 3))
    assert np.abs(small - expected).mean() < 1.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_image_and_header_alike(
    tmp_path: Path, picture: np.ndarray, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "x.png"
    Image.fromarray(picture).save(path, exif=exif)
    header = read_header(path)
    read = read_image(path, COLOUR, scale=0.5)
    upright = (20, 30) if orientation < 5 else (30, 20)
    assert read.shape[:2] == upright
    assert (header.height, header.width) == (upright[0] * 2, upright[1] * 2)
    Image.fromarray(picture[..., 0]).save(path, exif=exif)
    assert read_mask(path, scale=0.5).shape == upright


def test_sixteen_bit_stays_sixteen_bit(tmp_path: Path) -> None:
    """Pillow's own conversion would leave two levels of these 64."""
    levels = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    Image.fromarray(levels).save(tmp_path / "x.png")
    header = read_header(tmp_path / "x.png")
    assert header.format == ImageFormat(1, "uint16")
    assert (read_image(tmp_path / "x.png", header.format)[..., 0] == levels).all()
    with pytest.raises(UserError, match="16 bit"):
        read_image(tmp_path / "x.png", GREY)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_of_many_bands(tmp_path: Path, dtype: type) -> None:
    bands = np.random.default_rng(0).integers(0, 200, (10, 12, 5)).astype(dtype)
    tifffile.imwrite(tmp_path / "x.tif", bands, photometric="minisblack", planarconfig="contig")
    header = read_header(tmp_path / "x.tif")
    assert header.format.channels == 5
    assert (read_image(tmp_path / "x.tif", header.format) == bands).all()
    with pytest.raises(UserError, match="5 channels"):
        read_image(tmp_path / "x.tif", ImageFormat(3, header.dtype))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "CMYK", "P", "1"])
def test_modes_become_the_set_s_channels(tmp_path: Path, picture: np.ndarray, mode: str) -> None:
    ending = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(picture).convert(mode).save(tmp_path / f"x.{ending}")
    assert read_image(tmp_path / f"x.{ending}", COLOUR).shape == (40, 60, 3)
    assert read_image(tmp_path / f"x.{ending}", GREY).shape == (40, 60, 1)


def test_mask_values_survive(tmp_path: Path) -> None:
    """Palette indices, not their grey; and no value between two when scaled."""
    mask = np.zeros((30, 30), np.uint8)
    mask[5:20, 5:20] = 5
    image = Image.fromarray(mask)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9, 200, 100, 50])
    image.save(tmp_path / "x.png")
    for scale in (1.0, 0.37):
        assert set(np.unique(read_mask(tmp_path / "x.png", scale=scale))) == {0, 5}
    header = read_header(tmp_path / "x.png")
    assert header.palette is not None and header.palette[5] == (200, 100, 50)
    assert not header.is_colour


def test_mask_is_scaled_about_the_same_centre_as_its_image(tmp_path: Path) -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[16:48, 16:48] = 255
    Image.fromarray(mask).save(tmp_path / "x.png")
    small_mask = read_mask(tmp_path / "x.png", scale=1 / 3) > 0
    small_image = read_image(tmp_path / "x.png", GREY, scale=1 / 3)[..., 0] > 127
    assert (small_mask == small_image).all()


def test_colour_masks_are_packed(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 128, 7]]], np.uint8)
    Image.fromarray(colours).save(tmp_path / "x.png")
    assert read_mask(tmp_path / "x.png").tolist() == [[0xFF0000, 0x008007]]


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "tif", "bmp"])
def test_half_a_file_is_an_error_that_names_it(
    tmp_path: Path, picture: np.ndarray, ending: str
) -> None:
    path = tmp_path / f"half.{ending}"
    Image.fromarray(picture).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"half\.{ending}"):
        read_image_metadata(path, None)


def test_no_image_at_all(tmp_path: Path) -> None:
    for name, content in (("empty.jpg", b""), ("page.jpg", b"<html></html>")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_header(tmp_path / name)
    frames = [Image.new("L", (8, 8), k) for k in (0, 90)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="several frames"):
        read_header(tmp_path / "film.gif")


def test_sixteen_bit_colour_keeps_its_lower_half(tmp_path: Path) -> None:
    """Pillow reads such a PNG as 8 bit."""
    import cv2

    pixels = np.random.default_rng(0).integers(0, 65536, (9, 7, 3)).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "x.png"), pixels[..., ::-1])
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric="rgb")
    for name in ("x.png", "x.tif"):
        header = read_header(tmp_path / name)
        assert header.format == ImageFormat(3, "uint16")
        assert (read_image(tmp_path / name, header.format) == pixels).all()


@pytest.mark.parametrize("bands", [2, 4])
def test_a_further_band_is_not_lost(tmp_path: Path, bands: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, bands), dtype=np.uint8)
    photometric = "rgb" if bands == 4 else "minisblack"
    tifffile.imwrite(
        tmp_path / "x.tif", pixels, photometric=photometric, planarconfig="contig",
        extrasamples=["unspecified"],
    )  # fmt: skip
    header = read_header(tmp_path / "x.tif")
    assert header.format.channels == bands
    assert (read_image(tmp_path / "x.tif", header.format) == pixels).all()


def test_values_beyond_16_bit_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(tmp_path / "x.tif")
    with pytest.raises(UserError, match="pixels of type int32"):
        read_image(tmp_path / "x.tif", ImageFormat(1, "uint16"))


def test_lossless_webp_masks_are_not_lossy(tmp_path: Path) -> None:
    mask = np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((8, 8), np.uint8))
    for lossless in (True, False):
        Image.fromarray(mask).convert("RGB").save(tmp_path / "x.webp", lossless=lossless)
        assert read_header(tmp_path / "x.webp").is_lossy != lossless


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "deep.png", "tif", "deep.tif", "mask.tif"])
def test_every_reader_turns_every_orientation(tmp_path: Path, orientation: int, kind: str) -> None:
    """As Pillow turns the same picture; header and pixels agree, so that image and mask do."""
    pixels = np.random.default_rng(1).integers(0, 255, (10, 16, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "model.png", exif=exif)
    with Image.open(tmp_path / "model.png") as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    path = tmp_path / f"x.{kind}"
    tag = [(274, 3, 1, orientation, True)]
    if kind == "png":
        Image.fromarray(pixels).save(path, exif=exif)
    elif kind == "deep.png":
        import cv2

        cv2.imwrite(str(path), pixels[..., ::-1].astype(np.uint16) * 256)
        plain = path.read_bytes()
        chunk = b"eXIf" + exif.tobytes()[6:]
        block = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
        path.write_bytes(plain[:33] + block + plain[33:])  # behind the header
    elif kind == "tif":
        Image.fromarray(pixels).save(path, exif=exif)
    elif kind == "deep.tif":
        tifffile.imwrite(path, pixels.astype(np.uint16) * 256, photometric="rgb", extratags=tag)
    else:
        tifffile.imwrite(path, pixels[..., 0].astype(np.int16), extratags=tag)
    header = read_header(path)
    assert (header.height, header.width) == expected.shape[:2]
    if kind == "mask.tif":
        assert (read_mask(path) == expected[..., 0]).all()
        return
    read = read_image(path, ImageFormat(3, header.dtype))
    assert (read // (256 if header.dtype == "uint16" else 1) == expected).all()


def test_a_png_that_ends_in_zeros_is_cut_short(tmp_path: Path, picture: np.ndarray) -> None:
    """As a crash leaves it: Pillow would give black rows."""
    path = tmp_path / "x.png"
    Image.fromarray(picture).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(UserError, match="end is missing"):
        read_image_metadata(path, None)


def test_overviews_are_passed_over(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (64, 48, 3), dtype=np.uint8)
    with tifffile.TiffWriter(tmp_path / "x.tif") as tiff:
        tiff.write(pixels, photometric="rgb")
        tiff.write(pixels[::2, ::2], photometric="rgb", subfiletype=1)
    assert (read_image(tmp_path / "x.tif", COLOUR) == pixels).all()


def test_hundreds_of_bands_are_scaled(tmp_path: Path) -> None:
    bands = np.random.default_rng(1).integers(0, 900, (220, 240, 200)).astype(np.int16)
    np.save(tmp_path / "x.npy", bands)
    read = read_image(tmp_path / "x.npy", ImageFormat(200, "int16"), scale=0.5)
    assert read.shape == (110, 120, 200)
    means = bands.reshape(110, 2, 120, 2, 200).mean((1, 3))
    assert np.abs(read - means).max() <= 0.5


def test_no_permission_is_said() -> None:
    """As another user where the tests run as root, whom no permission stops."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "x.png"
        Image.new("RGB", (8, 8)).save(path)
        path.chmod(0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"x\.png: no permission to read it"):
                read_image_metadata(path, None)
        finally:
            os.seteuid(before)
            path.chmod(0o644)


def test_threads_leave_the_warning_filters_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each image is one that Pillow warns of as large."""
    before = list(warnings.filters)
    first, second = (
        as_user_error(tmp_path),
        as_user_error(tmp_path),
    )  # as two threads meet in it, now and then
    for enter in (first.__enter__, second.__enter__):
        enter()
    for leave in (first.__exit__, second.__exit__):
        leave(None, None, None)
    assert list(warnings.filters) == before
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # as at import
    make_set(tmp_path, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # they have 768; an error from 1000 on
    pairs = find_pairs(tmp_path / "imgs", tmp_path / "masks")
    before = list(warnings.filters)
    found = scan(pairs, progress=lambda items, total: items, workers=8)
    assert len(found.pairs) == 20 and found.errors == {}
    assert list(warnings.filters) == before


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25, 0.125, 0.3])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_s_pixels_are_pillow_s(tmp_path: Path, scale: float, orientation: int) -> None:
    """Whichever decoder reads it: both at the size that the format gives for little."""
    random = np.random.default_rng(SEED)
    small = random.integers(0, 256, (9, 14, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((301, 203), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "x.jpg", quality=88, exif=exif)
    found = read_image(tmp_path / "x.jpg", ImageFormat(3), scale=scale)
    with Image.open(tmp_path / "x.jpg") as stored:
        stored.draft("RGB", (round(301 * scale), round(203 * scale)))
        plain = np.asarray(ImageOps.exif_transpose(stored))
    size = scaled_size(*((203, 301) if orientation == 1 else (301, 203)), scale)
    assert np.array_equal(found, resize_area(plain, size))
