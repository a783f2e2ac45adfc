"""Images that Pillow reads: JPEG, PNG, GIF, BMP, WebP and TIFF of the usual kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from unet_ddp.data.formats.header import Header, ImageFormat, Pixels, upright
from unet_ddp.errors import UserError

_GREY = frozenset({"1", "L", "LA", "I;16", "I;16B", "I;16L", "I"})
_DEEP = frozenset({"I;16", "I;16B", "I;16L", "I"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"})
_TAIL = 4096  # bytes at the end of a PNG; some programs append to it
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """The file, open; its pixels are not decoded yet.

    Raises:
        UserError: it holds several frames.
    """
    with Image.open(path) as image:
        if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
            raise UserError(f"{path}: holds several frames or pages; save one image per file")
        if image.format == "PNG":
            _check_end(path)
        yield image


def _check_end(path: Path) -> None:
    """Pillow takes a PNG whose end was never written, or only as zeros, for black rows."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL))
        if b"IEND" not in file.read():
            raise UserError(f"{path}: damaged or cut short (its end is missing); replace it")


def header(path: Path) -> Header:
    """What the file says of itself."""
    with opened(path) as image:
        width, height = image.size
        if _orientation(image) >= 5:  # orientations that turn by 90 degrees
            width, height = height, width
        if image.mode not in _GREY | _COLOUR:
            raise UserError(f"{path}: pixels of kind {image.mode}; save as 8 or 16 bit")
        indexed = image.mode in ("P", "PA")
        return Header(
            width,
            height,
            1 if image.mode in _GREY else 3,
            "uint16" if image.mode in _DEEP or _is_deep_png(image) else "uint8",
            has_alpha=image.mode in ("LA", "RGBA", "PA"),
            is_colour=image.mode in _COLOUR and not indexed,
            is_lossy=image.format in ("JPEG", "MPO") or _is_lossy_webp(path, image),
            palette=_palette(image) if indexed else None,
        )


def _orientation(image: Image.Image) -> int:
    """EXIF's 1 to 8; above 4 for a turn by 90 degrees."""
    if image.format == "TIFF":
        return 1  # Pillow turns it by itself
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode all pixels to look for it behind them
    return int(image.getexif().get(0x0112, 1))


def thumbnail(path: Path, size: int) -> NDArray[np.float32]:
    """The image in grey, (size, size), decoded whole but as small as its format allows."""
    with opened(path) as image:
        image.draft(image.mode, (8 * size, 8 * size))  # JPEG: an eighth, in a quarter of the time
        image.load()
        grey = image.convert("RGB").convert("F") if image.mode not in _GREY else image.convert("F")
        small = (ImageOps.exif_transpose(grey) or grey).resize((size, size), Image.Resampling.BOX)
        return np.asarray(small, np.float32)


def read(path: Path, wanted: ImageFormat, scale: float) -> tuple[Pixels, tuple[int, int]]:
    """The pixels (h, w, C) upright, perhaps reduced already, and the file's whole (height, width)."""
    with opened(path) as image:
        width, height = image.size
        target = max(1, round(width * scale)), max(1, round(height * scale))
        image.draft(image.mode, target)  # JPEG: decoded at 1/2, 1/4 or 1/8
        turned = _orientation(image) >= 5
        pixels = _jpeg(image, wanted, path, width)
        if pixels is None:
            pixels = _as_array(image, wanted, path)
    return pixels, (width, height) if turned else (height, width)


def _jpeg(image: Image.Image, wanted: ImageFormat, path: Path, width: int) -> Pixels | None:
    """A whole colour JPEG by OpenCV: the pixels that Pillow gives, in two thirds of the time.

    None for other files, and for those whose end is missing: OpenCV would fill them up with grey.
    """
    if image.format != "JPEG" or image.mode != "RGB" or wanted.channels != 3:
        return None
    import cv2

    stored = np.fromfile(path, np.uint8)
    if stored[-2:].tobytes() != b"\xff\xd9":
        return None
    by = round(width / image.size[0])  # what draft() has chosen
    flag = {
        2: cv2.IMREAD_REDUCED_COLOR_2,
        4: cv2.IMREAD_REDUCED_COLOR_4,
        8: cv2.IMREAD_REDUCED_COLOR_8,
    }
    decoded = cv2.imdecode(stored, flag.get(by, cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION)
    if decoded is None or decoded.shape[:2] != (image.size[1], image.size[0]):
        return None
    pixels = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB, dst=decoded)
    return cast(Pixels, np.ascontiguousarray(upright(pixels, _orientation(image))))


def _as_array(image: Image.Image, wanted: ImageFormat, path: Path) -> Pixels:
    if _is_deep_png(image):
        pixels = _read_deep_png(path, wanted.channels)
        return cast(Pixels, np.ascontiguousarray(upright(pixels, _orientation(image))))
    turned = ImageOps.exif_transpose(image) if _orientation(image) > 1 else image
    if turned.mode in _DEEP:
        values = np.asarray(turned)
        if values.min() < 0 or values.max() > 65535:
            raise UserError(f"{path}: values beyond 16 bit; save as 8 or 16 bit")
        return values.astype(np.uint16)[..., None]
    mode = _MODES.get(wanted.channels, turned.mode)
    if turned.mode != mode:  # or Pillow would copy it
        turned = turned.convert(mode)
    return np.atleast_3d(np.asarray(turned))


def read_mask_values(path: Path, scale: float) -> NDArray[Any]:
    """The values of a mask, (H, W), or its colours, (H, W, 3), of the file's own type.

    At `scale`, by the value at the centre of each new pixel.
    """
    with opened(path) as image:
        if _is_deep_png(image):
            raise UserError(
                f"{path}: colours of 16 bit; save the mask with 8 bit, or as a grey image"
            )
        mask = _upright_mask(image)
        if scale != 1:  # here, for what is left out need not leave Pillow
            size = max(1, round(mask.width * scale)), max(1, round(mask.height * scale))
            mask = mask.resize(size, Image.Resampling.NEAREST)
        values = np.asarray(mask)
    return values.astype(np.uint8) if values.dtype == bool else values


def _upright_mask(image: Image.Image) -> Image.Image:
    if _orientation(image) > 1:
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode in ("LA", "PA"):
        return image.convert(image.mode[0])
    if image.mode in _COLOUR and image.mode not in ("P", "RGB"):
        return image.convert("RGB")
    return image


def _palette(image: Image.Image) -> tuple[tuple[int, int, int], ...]:
    flat = image.getpalette("RGB") or []
    return tuple((flat[i], flat[i + 1], flat[i + 2]) for i in range(0, len(flat) - 2, 3))


def _is_lossy_webp(path: Path, image: Image.Image) -> bool:
    if image.format != "WEBP":
        return False
    with path.open("rb") as file:
        return b"VP8L" not in file.read(4096)


def _is_deep_png(image: Image.Image) -> bool:
    """Whether it is colour of 16 bit, of which Pillow drops the lower half."""
    return (
        image.format == "PNG" and image.mode != "I;16" and ";16" in str(getattr(image, "tile", ""))
    )


def _read_deep_png(path: Path, channels: int) -> Pixels:
    import cv2

    stored = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise UserError(f"{path}: damaged or cut short; replace it")
    if stored.ndim == 2 or stored.shape[2] == 2:
        return cast(Pixels, np.atleast_3d(stored)[..., :1])
    order = [2, 1, 0, 3] if channels == 4 and stored.shape[2] == 4 else [2, 1, 0]
    return cast(Pixels, np.ascontiguousarray(stored[..., order]))  # OpenCV's order is BGR(A)
