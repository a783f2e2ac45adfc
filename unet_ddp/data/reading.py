"""From an image file of any format to an array, scaled down while it is read.

Images keep their depth (uint8 or uint16) and come with as many channels as the data set
has; masks come as the values that the file holds. EXIF orientation is applied to whichever
file carries it. Nothing is decided per image that is a property of the set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unet_ddp.errors import UserError

Pixels = NDArray[np.uint8] | NDArray[np.uint16]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L", "LA", "I;16", "I;16B", "I;16L", "I"})
_DEEP = frozenset({"I;16", "I;16B", "I;16L", "I"})
_SAMPLES, _BITS, _EXTRA, _PHOTOMETRIC, _RGB = 277, 258, 338, 262, 2  # of TIFF
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"})


@dataclass(frozen=True)
class ImageFormat:
    """What all images of a data set have in common."""

    channels: int
    """1 for grey, 3 for colour, more for multi-band TIFF."""
    max_value: int
    """255 for 8 bit, 65535 for 16."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself, orientation applied."""

    width: int
    height: int
    format: ImageFormat
    is_colour: bool
    """Whether pixels are colours, rather than values or palette indices."""
    is_lossy: bool
    palette: tuple[tuple[int, int, int], ...] | None
    """Colours of the indices, for palette files."""


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Whatever goes wrong with reading `path`, as one line that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except Image.DecompressionBombError:
        raise UserError(f"{path}: too large to be safe to open; cut it into tiles") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: no image that can be read; remove or replace it") from None
    except Exception as error:  # decoders raise all kinds for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: damaged or cut short ({reason}); replace it") from None


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with _told(path), Image.open(path) as image:
        if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
            raise UserError(f"{path}: holds several frames or pages; save one image per file")
        yield image


def read_header(path: Path) -> Header:
    """Size and kind of the image at `path`; pixels are not decoded.

    Raises:
        UserError: it can't be read.
    """
    if _is_tifffile(path):
        with _told(path):
            bands = _read_tiff(path)
        return Header(bands.shape[1], bands.shape[0], _format_of(bands), True, False, None)
    with _opened(path) as image:
        width, height = image.size
        if _orientation(image) >= 5:  # orientations that turn by 90 degrees
            width, height = height, width
        if image.mode not in _GREY | _COLOUR:
            raise UserError(f"{path}: pixels of kind {image.mode}; save as 8 or 16 bit")
        indexed = image.mode in ("P", "PA")
        return Header(
            width,
            height,
            ImageFormat(
                1 if image.mode in _GREY else 3,
                65535 if image.mode in _DEEP or _is_deep_png(image) else 255,
            ),
            is_colour=image.mode in _COLOUR and not indexed,
            is_lossy=image.format in ("JPEG", "MPO") or _is_lossy_webp(path, image),
            palette=_palette(image) if indexed else None,
        )


def _orientation(image: Image.Image) -> int:
    """EXIF's 1 to 8; above 4 for a turn by 90 degrees."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode all pixels to look for it behind them
    return int(image.getexif().get(0x0112, 1))


def check_decodes(path: Path) -> None:
    """Decode the file once, as small as its format allows, to know that it is whole.

    Raises:
        UserError: it is damaged or cut short.
    """
    if _is_tifffile(path):
        return  # read whole for its header
    with _opened(path) as image:
        image.draft(image.mode, (1, 1))  # JPEG: an eighth of the size, a quarter of the time
        image.load()


def scaled_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """Height and width at `scale`, at least one pixel each."""
    return max(1, round(height * scale)), max(1, round(width * scale))


def read_image(path: Path, wanted: ImageFormat, *, scale: float = 1.0) -> Pixels:
    """The image, with the data set's channels and depth, reduced to `scale` of its size.

    Returns:
        (H, W, C) uint8, or uint16 where `wanted.max_value` is above 255.

    Raises:
        UserError: it can't be read, or is of another kind than the data set.
    """
    if _is_tifffile(path):
        with _told(path):
            pixels: Pixels = _read_tiff(path)
        height, width = pixels.shape[:2]
    else:
        with _opened(path) as image:
            width, height = image.size
            target = scaled_size(height, width, scale)
            image.draft(image.mode, (target[1], target[0]))  # JPEG: decoded at 1/2, 1/4 or 1/8
            pixels, turned = _as_array(image, wanted, path)
            if turned:
                width, height = height, width
    return fit(_check(pixels, wanted, path), scaled_size(height, width, scale))


def _as_array(image: Image.Image, wanted: ImageFormat, path: Path) -> tuple[Pixels, bool]:
    """The pixels upright, and whether that took a turn by 90 degrees."""
    turned = _orientation(image) >= 5
    if _is_deep_png(image):
        return _read_deep_png(path), turned
    upright = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
    if upright.mode in _DEEP:
        values = np.asarray(upright)
        if values.min() < 0 or values.max() > 65535:
            raise UserError(f"{path}: values beyond 16 bit; save as 8 or 16 bit")
        return values.astype(np.uint16)[..., None], turned
    pixels = np.asarray(upright.convert("L" if wanted.channels == 1 else "RGB"), np.uint8)
    return pixels, turned


def _check(pixels: Pixels, wanted: ImageFormat, path: Path) -> Pixels:
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    found = _format_of(pixels)
    if found.max_value != wanted.max_value:
        raise UserError(
            f"{path}: {_bits(found)} bit, the other images have {_bits(wanted)}; convert it"
        )
    if found.channels == 1 and wanted.channels == 3:
        return cast(Pixels, np.repeat(pixels, 3, axis=2))
    if found.channels != wanted.channels:
        raise UserError(
            f"{path}: {found.channels} channels, the network takes {wanted.channels}; convert it"
        )
    return pixels


def _bits(form: ImageFormat) -> int:
    return 8 if form.max_value == 255 else 16


def fit(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """`pixels` (H, W, C) reduced to `size` (height, width), each new pixel the mean of its area."""
    if pixels.shape[:2] == size:
        return pixels
    import cv2

    resized: Pixels = cv2.resize(
        np.ascontiguousarray(pixels), (size[1], size[0]), interpolation=cv2.INTER_AREA
    )
    return resized if resized.ndim == 3 else resized[..., None]


def read_mask(path: Path, *, scale: float = 1.0) -> NDArray[np.int32]:
    """The mask's values, every one of them a value that the file holds, at `scale`.

    Returns:
        (H, W) int32: grey values or palette indices as they are, colours as 0xRRGGBB.

    Raises:
        UserError: it can't be read.
    """
    with _opened(path) as image:
        values = np.asarray(_upright_mask(image))
    if values.ndim == 3:
        red, green, blue = (values[..., band].astype(np.int32) for band in range(3))
        codes = red << 16 | green << 8 | blue
    else:
        codes = values.astype(np.int32)
    return (
        codes if scale == 1 else _nearest(codes, scaled_size(codes.shape[0], codes.shape[1], scale))
    )


def _upright_mask(image: Image.Image) -> Image.Image:
    if _orientation(image) > 1:
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("LA", "PA"):
        return image.convert(image.mode[0])
    if image.mode in _COLOUR and image.mode not in ("P", "RGB"):
        return image.convert("RGB")
    return image


def _nearest(codes: NDArray[np.int32], size: tuple[int, int]) -> NDArray[np.int32]:
    """The value at the centre of each new pixel: no value that was not there."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.intp)
        for new, old in zip(size, codes.shape, strict=True)
    )
    sampled: NDArray[np.int32] = codes[rows[:, None], columns]
    return sampled


def _palette(image: Image.Image) -> tuple[tuple[int, int, int], ...]:
    flat = image.getpalette("RGB") or []
    return tuple((flat[i], flat[i + 1], flat[i + 2]) for i in range(0, len(flat) - 2, 3))


def _is_lossy_webp(path: Path, image: Image.Image) -> bool:
    if image.format != "WEBP":
        return False
    with path.open("rb") as file:
        return b"VP8L" not in file.read(4096)


# -- kinds of PNG and TIFF that Pillow can't read, or would make less of -------------------


def _is_deep_png(image: Image.Image) -> bool:
    """Whether it is colour of 16 bit, of which Pillow drops the lower half."""
    return (
        image.format == "PNG" and image.mode != "I;16" and ";16" in str(getattr(image, "tile", ""))
    )


def _read_deep_png(path: Path) -> Pixels:
    import cv2

    stored = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise UserError(f"{path}: damaged or cut short; replace it")
    if stored.ndim == 2 or stored.shape[2] == 2:
        return cast(Pixels, np.atleast_3d(stored)[..., :1])
    return cast(Pixels, np.ascontiguousarray(stored[..., 2::-1]))  # OpenCV's order is BGR(A)


def _is_tifffile(path: Path) -> bool:
    """Whether `path` is a TIFF of many bands or of 16 bit colour; Pillow can't open such files, or
    takes a fourth band for something else."""
    if path.suffix.lower() not in (".tif", ".tiff"):
        return False
    try:
        with Image.open(path) as image:
            tags = getattr(image, "tag_v2", {})
            samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
            has_alpha = any(kind in (1, 2) for kind in tags.get(_EXTRA, ()))
            other = samples == 2 or (samples == 4 and tags.get(_PHOTOMETRIC) == _RGB)
            deep = samples > 1 and bits > 8
            return deep or (other and not has_alpha) or image.mode not in _GREY | _COLOUR
    except UnidentifiedImageError:
        return True
    except (OSError, ValueError, TypeError):
        return False


def _read_tiff(path: Path) -> Pixels:
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        if len(tiff.pages) > 1:
            raise UserError(f"{path}: holds several frames or pages; save one image per file")
        page = tiff.pages[0]
        bands = np.asarray(page.asarray())
        planar = getattr(page, "planarconfig", 1) == 2
    if bands.dtype not in (np.uint8, np.uint16):
        raise UserError(f"{path}: pixels of kind {bands.dtype}; save as 8 or 16 bit")
    if bands.ndim == 2:
        bands = bands[..., None]
    return np.moveaxis(bands, 0, -1) if planar else bands


def _format_of(pixels: Pixels) -> ImageFormat:
    return ImageFormat(pixels.shape[2], 255 if pixels.dtype == np.uint8 else 65535)
