"""JPEG, PNG, GIF, BMP, WebP and the usual TIFFs."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps, TiffImagePlugin

from tests.reading import read_header, read_image
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import Header, ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.errors import UserError

COLOUR, GREY, DEEP = ImageFormat(3), ImageFormat(1), ImageFormat(3, "uint16")


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
    difference = np.abs(read.astype(int) - picture)
    if ending in ("jpg", "gif"):
        assert difference.mean() < (2 if ending == "jpg" else 12)
    else:
        assert difference.max() == 0
    header = read_header(path)
    assert (header.size, header.channels, header.dtype) == ((40, 60), 3, "uint8")
    assert header.is_lossy == (ending == "jpg") and header.is_colour == (ending != "gif")


@pytest.mark.parametrize(
    ("mode", "ending", "expected"),
    [
        ("RGBA", "png", Header(60, 40, 3, "uint8", has_alpha=True, is_colour=True)),
        ("LA", "png", Header(60, 40, 1, "uint8", has_alpha=True)),
        ("L", "png", Header(60, 40, 1, "uint8")),
        ("1", "png", Header(60, 40, 1, "uint8", bits=1)),
        ("CMYK", "jpg", Header(60, 40, 3, "uint8", is_colour=True, is_lossy=True)),
        ("L", "jpg", Header(60, 40, 1, "uint8", is_lossy=True)),
    ],
)
def test_modes_become_the_set_s_channels(
    tmp_path: Path, picture: np.ndarray, mode: str, ending: str, expected: Header
) -> None:
    path = tmp_path / f"x.{ending}"
    Image.fromarray(picture).convert(mode).save(path)
    assert read_header(path) == expected
    with Image.open(path) as image:
        for image_format, wanted in ((COLOUR, "RGB"), (GREY, "L"), (ImageFormat(4), "RGBA")):
            converted = np.atleast_3d(np.asarray(image.convert(wanted)))
            assert (read_image(path, image_format) == converted).all()


def test_palette_indices_are_a_mask_s_values(tmp_path: Path) -> None:
    """Not their grey; and no value between two when scaled."""
    mask = np.zeros((30, 30), np.uint8)
    mask[5:20, 5:20] = 5
    image = Image.fromarray(mask)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9, 200, 100, 50])
    image.save(tmp_path / "x.png")
    assert (read_mask(tmp_path / "x.png") == mask).all()
    assert set(np.unique(read_mask(tmp_path / "x.png", scale=0.37))) == {0, 5}
    header = read_header(tmp_path / "x.png")
    assert header.palette is not None and header.palette[4:] == ((9, 9, 9), (200, 100, 50))
    assert not header.is_colour and header.channels == 3
    assert read_image(tmp_path / "x.png", COLOUR)[6, 6].tolist() == [200, 100, 50]


@pytest.mark.parametrize("mode", ["LA", "PA"])
def test_a_mask_s_alpha_is_dropped(tmp_path: Path, mode: str) -> None:
    mask = np.array([[0, 1], [2, 3]], np.uint8)
    image = Image.fromarray(mask).convert(mode)
    ending = "png" if mode == "LA" else "tif"
    image.save(tmp_path / f"x.{ending}")
    assert read_mask(tmp_path / f"x.{ending}").shape == (2, 2)
    if mode == "LA":
        assert read_mask(tmp_path / "x.png").tolist() == mask.tolist()


def test_masks_of_one_bit_and_of_16(tmp_path: Path) -> None:
    bits = np.array([[True, False], [False, True]])
    Image.fromarray(bits).save(tmp_path / "x.png")
    found = read_mask(tmp_path / "x.png")
    assert found.dtype == np.uint8 and found.tolist() == [[1, 0], [0, 1]]
    Image.fromarray(np.array([[0, 40000]], np.uint16)).save(tmp_path / "x.png")
    found = read_mask(tmp_path / "x.png")
    assert found.dtype == np.int32 and found.tolist() == [[0, 40000]]


def test_colour_masks_are_packed(tmp_path: Path) -> None:
    colours = np.array([[[255, 0, 0], [0, 128, 7]]], np.uint8)
    Image.fromarray(colours).save(tmp_path / "x.png")
    assert read_mask(tmp_path / "x.png").tolist() == [[0xFF0000, 0x008007]]
    Image.fromarray(colours).convert("RGBA").save(tmp_path / "x.png")
    assert read_mask(tmp_path / "x.png").tolist() == [[0xFF0000, 0x008007]]


def test_lossless_webp_masks_are_not_lossy(tmp_path: Path) -> None:
    mask = np.kron(np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((8, 8), np.uint8))
    for lossless in (True, False):
        Image.fromarray(mask).convert("RGB").save(tmp_path / "x.webp", lossless=lossless)
        assert read_header(tmp_path / "x.webp").is_lossy != lossless


# -- 16 bit ---------------------------------------------------------------------------------


def test_sixteen_bit_stays_sixteen_bit(tmp_path: Path) -> None:
    """Pillow's own conversion would leave two levels of these 64."""
    levels = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    for name in ("x.png", "x.tif"):
        Image.fromarray(levels).save(tmp_path / name)
        assert read_header(tmp_path / name) == Header(8, 8, 1, "uint16")
        read = read_image(tmp_path / name, ImageFormat(1, "uint16"))
        assert read.dtype == np.uint16 and (read[..., 0] == levels).all()
        with pytest.raises(
            UserError, match="16 bit, the network was trained on 8 bit images; convert it"
        ):
            read_image(tmp_path / name, GREY)


@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bit_colour_keeps_its_lower_half(
    tmp_path: Path, rng: np.random.Generator, channels: int
) -> None:
    """Pillow reads such a PNG as 8 bit."""
    pixels = rng.integers(0, 65536, (9, 7, channels)).astype(np.uint16)
    order = [2, 1, 0, 3][:channels]
    cv2.imwrite(str(tmp_path / "x.png"), pixels[..., order])
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric="rgb",
                     extrasamples=["unassalpha"] if channels == 4 else None)  # fmt: skip
    for name in ("x.png", "x.tif"):
        header = read_header(tmp_path / name)
        assert (header.channels, header.dtype) == (3, "uint16") and header.has_alpha == (
            channels == 4
        )
        assert (read_image(tmp_path / name, DEEP) == pixels[..., :3]).all()
        if channels == 4:
            assert (read_image(tmp_path / name, ImageFormat(4, "uint16")) == pixels).all()
    with pytest.raises(UserError, match=r"x\.png: colours of 16 bit; save the mask with 8 bit"):
        read_mask(tmp_path / "x.png")


def test_values_beyond_16_bit_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(tmp_path / "x.tif")
    with pytest.raises(UserError, match="pixels of type int32"):
        read_image(tmp_path / "x.tif", ImageFormat(1, "uint16"))


# -- orientation ----------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "jpg", "grey.jpg", "deep.png", "tif", "mask.png"])
def test_every_orientation_is_turned_as_pillow_does(
    tmp_path: Path, orientation: int, kind: str, rng: np.random.Generator
) -> None:
    """Header and pixels agree, so that image and mask do."""
    small = rng.integers(0, 255, (3, 4, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(small).resize((32, 20), Image.Resampling.BICUBIC))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"x.{kind}"
    if kind == "deep.png":
        cv2.imwrite(str(path), pixels[..., ::-1].astype(np.uint16) * 256)
        plain = path.read_bytes()
        chunk = b"eXIf" + exif.tobytes()[6:]
        block = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
        path.write_bytes(plain[:33] + block + plain[33:])  # behind the header
    else:
        plain = pixels[..., 0] if kind in ("grey.jpg", "mask.png") else pixels
        Image.fromarray(plain).save(path, exif=exif, **({"quality": 95} if "jpg" in kind else {}))
    with Image.open(path) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    header = read_header(path)
    assert (header.height, header.width) == expected.shape[:2]
    if kind == "mask.png":
        assert (read_mask(path) == expected).all()
        assert read_mask(path, scale=0.5).shape == scaled_size(*expected.shape, 0.5)
        return
    wanted = ImageFormat(header.channels, header.dtype)
    read = read_image(path, wanted)
    expected = np.atleast_3d(expected)
    assert (read // (256 if header.dtype == "uint16" else 1) == expected).all()
    half = read_image(path, wanted, scale=0.5)
    assert half.shape[:2] == scaled_size(*expected.shape[:2], 0.5)
    if header.dtype == "uint8":
        grey = np.asarray(
            Image.fromarray(expected.squeeze()).convert("L").resize((4, 4), Image.Resampling.BOX)
        )
        assert np.abs(Source(path).thumbnail(4) - grey).max() < 12


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("kind", ["jpg", "mask.png", "float.tif"])
def test_a_number_that_is_no_orientation_turns_nothing(
    tmp_path: Path, orientation: int, kind: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"x.{kind}"
    if kind == "float.tif":
        tag = (274, "H", 1, orientation, True)
        tifffile.imwrite(path, np.zeros((20, 40), np.float32), extratags=[tag])
    else:
        Image.new("RGB", (40, 20)).save(path, exif=exif)
    header = read_header(path)
    assert header.size == (20, 40)
    assert read_image(path, ImageFormat(header.channels, header.dtype)).shape[:2] == (20, 40)


# -- JPEG -----------------------------------------------------------------------------------


def test_a_truncated_jpeg_is_not_filled_with_grey(tmp_path: Path, picture: np.ndarray) -> None:
    path = tmp_path / "x.jpg"
    Image.fromarray(picture).save(path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UserError, match=r"x\.jpg: corrupt or truncated"):
        read_image(path, COLOUR)
    with pytest.raises(UserError, match=r"x\.jpg: corrupt or truncated"):
        Source(path).thumbnail(8)


# -- files that are not whole ---------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "tif", "bmp", "webp"])
@pytest.mark.parametrize("read", [lambda path: read_image(path, COLOUR), read_mask])
def test_half_a_file_is_an_error_that_names_it(
    tmp_path: Path, picture: np.ndarray, ending: str, read: object
) -> None:
    path = tmp_path / f"half.{ending}"
    Image.fromarray(picture).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"half\.{ending}: "):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_one_band_is_the_same_however_bands_are_kept(
    tmp_path: Path, bits: int, photometric: str
) -> None:
    """Pillow takes the bytes of planes as pixels, whatever they are packed into."""
    rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")
    pixels = np.random.default_rng(0).integers(0, 2**bits, (1, 9, 19), np.uint8)
    found = []
    for interleave in ("pixel", "band"):
        path = tmp_path / f"{interleave}.tif"
        how = {"driver": "GTiff", "height": 9, "width": 19, "count": 1, "dtype": "uint8"}
        how |= {"nbits": bits, "photometric": photometric, "interleave": interleave}
        with rasterio.open(path, "w", **how) as file:
            file.write(pixels)
        found.append(read_image(path, GREY))
    assert np.array_equal(*found)
    assert len(np.unique(found[0])) == len(np.unique(pixels))


def test_a_tiff_with_fewer_strips_than_rows_is_truncated(
    tmp_path: Path, picture: np.ndarray
) -> None:
    """Pillow would return seven million black rows after those that are there."""
    path, height = tmp_path / "x.tif", len(picture)
    Image.fromarray(picture).save(path, tiffinfo={TiffImagePlugin.ROWSPERSTRIP: height})
    tag = struct.pack("<HHI", TiffImagePlugin.IMAGELENGTH, 4, 1)
    stored = path.read_bytes()
    place = stored.index(tag) + len(tag)
    path.write_bytes(stored[:place] + struct.pack("<I", 10 * height) + stored[place + 4 :])
    message = rf"x\.tif: corrupt or truncated \({height} of its {10 * height} rows\)"
    with pytest.raises(UserError, match=message):
        read_header(path)


def test_a_png_that_ends_in_zeros_is_truncated(tmp_path: Path, picture: np.ndarray) -> None:
    """A crash leaves such files: Pillow would give black rows."""
    path = tmp_path / "x.png"
    Image.fromarray(picture).save(path)
    data = path.read_bytes()
    path.write_bytes(data + bytes(4000))  # which some programs append
    assert (read_image(path, COLOUR) == picture).all()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    for read in (read_header, lambda path: read_image(path, COLOUR), read_mask):
        with pytest.raises(UserError, match=r"x\.png: corrupt or truncated \(its end is missing\)"):
            read(path)


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_several_frames_are_refused(tmp_path: Path, ending: str) -> None:
    frames = [Image.new("L", (8, 8), k) for k in (0, 90)]
    frames[0].save(tmp_path / f"film.{ending}", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="holds several frames or pages; save one image per file"):
        read_header(tmp_path / f"film.{ending}")


def test_a_camera_s_second_picture_is_ignored(tmp_path: Path, picture: np.ndarray) -> None:
    """MPO: a JPEG with a preview behind it."""
    image = Image.fromarray(picture)
    image.save(tmp_path / "x.mpo", save_all=True, append_images=[image.resize((30, 20))])
    (tmp_path / "x.mpo").rename(tmp_path / "x.jpg")
    header = read_header(tmp_path / "x.jpg")
    assert (header.width, header.height, header.is_lossy) == (60, 40, True)
    assert read_image(tmp_path / "x.jpg", COLOUR).shape == (40, 60, 3)


# -- what may not be opened -----------------------------------------------------------------


def test_a_file_named_as_an_image_starts_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow hands PostScript to Ghostscript, whatever its name."""
    Image.init()  # all of Pillow's readers, as some other library may load them
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("Ghostscript"))
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    for name in ("x.png", "x.tif"):
        (tmp_path / name).write_bytes(script)
        for read in (read_header, read_mask, lambda path: read_image(path, COLOUR)):
            with pytest.raises(UserError, match=r"not a (readable image|TIFF)"):
                read(tmp_path / name)


@pytest.mark.parametrize("kind", ["PPM", "TGA", "PCX", "ICO", "SGI", "JPEG2000"])
def test_formats_that_are_not_documented_are_not_read(tmp_path: Path, kind: str) -> None:
    Image.init()
    Image.new("RGB", (16, 16)).save(tmp_path / "x.png", format=kind)
    with pytest.raises(UserError, match=r"x\.png: is .*, not a readable image"):
        read_image(tmp_path / "x.png", COLOUR)


def test_every_format_that_is_documented_is_read_under_any_name(tmp_path: Path) -> None:
    photo = Image.new("RGB", (16, 16), (200, 10, 10))
    for kind in ("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF"):
        photo.save(tmp_path / "x.png", format=kind)
        assert read_image(tmp_path / "x.png", COLOUR).shape == (16, 16, 3)
    photo.save(tmp_path / "x.jpg", format="MPO", save_all=True, append_images=[photo])
    assert read_header(tmp_path / "x.jpg").is_lossy
    assert read_image(tmp_path / "x.jpg", COLOUR).shape == (16, 16, 3)


def test_one_function_opens_images() -> None:
    """In the program; it names the formats."""
    root = Path(__file__).parents[3]
    files = [*(root / "unet_ddp").rglob("*.py"), root / "train.py", root / "predict.py"]
    calling = [f.name for f in files if "Image.open(" in f.read_text(encoding="utf-8")]
    assert calling == ["pillow.py"]


def test_small_files_of_many_deep_pixels_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted with bands and bytes: 6 for each of 16-bit colour, where Pillow counts pixels."""
    path = tmp_path / "x.png"
    cv2.imwrite(str(path), np.zeros((100, 90, 3), np.uint16))
    monkeypatch.setattr(base, "MOST_BYTES", 100 * 90 * 6)
    assert read_image(path, DEEP).shape == (100, 90, 3)
    monkeypatch.setattr(base, "MOST_BYTES", 100 * 90 * 6 - 1)
    for read in (read_header, read_mask, lambda path: read_image(path, DEEP)):
        with pytest.raises(UserError, match=r"x\.png: 90x100 pixels .* too large to open safely"):
            read(path)
    noise = np.random.default_rng(0).integers(0, 65536, (100, 90, 3), np.uint16)
    cv2.imwrite(str(path), noise)  # a file of about that size: nobody is cheated
    assert (read_image(path, DEEP) == noise[..., ::-1]).all()


def test_the_canvases_of_webp_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thumbnail and a mask are decoded by Pillow, which holds the pixels three times."""
    Image.new("RGB", (100, 90)).save(tmp_path / "x.webp")
    monkeypatch.setattr(base, "MOST_BYTES", 100 * 90 * 3 * 3)
    assert read_mask(tmp_path / "x.webp").shape == (90, 100)
    monkeypatch.setattr(base, "MOST_BYTES", 100 * 90 * 3 * 3 - 1)
    with pytest.raises(UserError, match=r"x\.webp: 100x90 pixels .* too large to open safely"):
        read_mask(tmp_path / "x.webp")


def test_webp_is_read_without_pillows_canvases(
    tmp_path: Path, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take three times the memory of the pixels, which are the same."""
    for lossless in (True, False):
        Image.fromarray(picture).save(tmp_path / "x.webp", lossless=lossless)
        with Image.open(tmp_path / "x.webp") as image:
            expected = np.asarray(image)
        with monkeypatch.context() as patch:
            patch.setattr(
                "PIL.WebPImagePlugin.WebPImageFile.load", lambda *_: pytest.fail("Pillow")
            )
            assert (read_image(tmp_path / "x.webp", COLOUR) == expected).all()
    content = (tmp_path / "x.webp").read_bytes()
    (tmp_path / "x.webp").write_bytes(content[:-9])
    with pytest.raises(UserError, match=r"x\.webp: corrupt or truncated"):
        read_image(tmp_path / "x.webp", COLOUR)
