"""Images that Pillow reads: JPEG, PNG, GIF, BMP, WebP and the usual TIFFs."""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from unet_ddp.data.readers.base import (
    Codes,
    Header,
    ImageFormat,
    OpenFile,
    Pixels,
    refuse_bomb,
    upright,
)
from unet_ddp.errors import UserError

_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP")  # JPEG: MPO, too
_DEEP = frozenset({"I;16", "I;16B", "I;16L", "I"})
_GREY = frozenset({"1", "L", "LA"}) | _DEEP
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"})
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_IMAGE_LENGTH = 257  # a TIFF's tags
_BITS, _PHOTOMETRIC = 258, 262
_SAMPLES = 277
_PLANAR = 284
_HEAD = 1 << 16  # bytes of a WebP, in which its pixels begin, after a colour profile at most
_TAIL = 4096  # bytes at the end of a PNG; some programs append to it


def identify(path: Path | IO[bytes]) -> Image.Image:
    """Open an image by our formats' readers: Pillow has others, which may start programs."""
    Image.preinit()  # the first five; a format that is not loaded has Pillow load all: 40 ms
    image = Image.open(path, formats=_FORMATS)
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    if tags.get(_SAMPLES, 1) == 1 and tags.get(_PLANAR) == 2:
        tags[_PLANAR] = 1  # the same of one band, but of 2 Pillow takes packed bytes as pixels
        tiff: Any = image
        tiff._setup()
    return image


class PillowFile(OpenFile):
    """An open file that Pillow reads; several frames, bombs and truncated files are refused."""

    suffixes = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
    one_of_frames: ClassVar[tuple[str, ...]] = ("MPO",)  # formats whose first frame is the image

    def __init__(
        self, path: Path, file: IO[bytes] | None = None, image: Image.Image | None = None
    ) -> None:
        super().__init__(path)
        self._file = file or path.open("rb")
        try:
            self._image: Image.Image | None = image or identify(self._file)
            self._check(self._image)
        except BaseException:
            if file is None:
                self._file.close()
            raise

    def _take(self) -> Image.Image:
        """Return the image to be decoded; nothing here keeps its pixels in memory."""
        image = self._image
        self._image = None
        if image is None:
            self._file.seek(0, os.SEEK_END)  # what is buffered is void: libtiff moved the position
            self._file.seek(0)
            image = identify(self._file)
        return image

    def _check(self, image: Image.Image) -> None:
        """Refuse an image that is not safe to decode."""
        path = self.path
        file = self._file
        if image.format not in self.one_of_frames and getattr(image, "n_frames", 1) > 1:
            raise UserError(f"{path}: holds several frames or pages; save one image per file")
        if image.format == "TIFF":  # which Pillow would fill up, too
            tiff: Any = image
            rows = tiff.tag_v2[_IMAGE_LENGTH]  # before the image is turned
            covered = max((tile.extents[3] for tile in tiff.tile), default=0)
            if covered < rows:
                raise UserError(
                    f"{path}: corrupt or truncated ({covered} of its {rows} rows); replace it"
                )
        # In 16-bit colour, of which Pillow drops the lower half.
        tiles = str(getattr(image, "tile", ""))
        self._is_deep_png = image.format == "PNG" and image.mode != "I;16" and ";16" in tiles
        self._is_deep = image.mode in _DEEP or self._is_deep_png
        pixel_bytes = len(image.getbands())
        if self._is_deep:
            pixel_bytes *= 2
        copies = 3 if image.format == "WEBP" else 1  # in Pillow's decoder
        refuse_bomb(path, *image.size, file=file.fileno(), pixel_bytes=pixel_bytes, copies=copies)
        if image.format == "PNG":
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            if b"IEND" not in file.read():  # Pillow would fill it up with black rows
                raise UserError(f"{path}: corrupt or truncated (its end is missing); replace it")

    @cached_property
    def header(self) -> Header:
        """Properties of the file; its pixels are not decoded."""
        self._image = image = self._take()
        width, height = image.size
        if read_orientation(image) >= 5:  # turned by 90 degrees
            width, height = height, width
        _check_mode(image, self.path)
        is_indexed = image.mode in ("P", "PA")
        return Header(
            width,
            height,
            1 if image.mode in _GREY else 3,
            "uint16" if self._is_deep else "uint8",
            has_alpha=image.mode in ("LA", "RGBA", "PA"),
            is_colour=image.mode in _COLOUR and not is_indexed,
            is_lossy=_is_lossy(image, self._file),
            palette=_palette(image) if is_indexed else None,
            bits=_grey_bits(image),
        )

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size), decoded whole but as small as its format allows."""
        image = self._take()
        image.draft(image.mode, (8 * size, 8 * size))  # JPEG: an eighth, in a quarter of the time
        image.load()
        if image.mode not in _GREY and image.mode != "RGB":
            image = image.convert("RGB")
        grey = image.convert("F")
        ImageOps.exif_transpose(grey, in_place=True)
        return np.asarray(grey.resize((size, size), Image.Resampling.BOX), np.float32)

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return the pixels (H, W, C), upright."""
        image = self._take()
        if self._is_deep_png:
            stored = _decode_deep_png(self._file, wanted.channels, self.path)
        else:
            stored = _decode_by_opencv(image, wanted, self._file)
        if stored is None:
            return decode(image, wanted, self.path)
        return np.ascontiguousarray(upright(stored, read_orientation(image)))

    def read_mask(self) -> NDArray[Any]:
        """Return a mask's values (H, W) or colours (H, W, 3), in the file's own type."""
        if self._is_deep_png:
            raise UserError(f"{self.path}: colours of 16 bit; save the mask with 8 bit, or in grey")
        return decode_mask(self._take(), self.path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _grey_bits(image: Image.Image) -> int:
    """Return the bits of a stored grey value: 1, 2 or 4, which Pillow makes 8 by a factor, or 8 for all others."""
    if image.mode == "1":
        return 1
    packed = re.search(
        r"'L;([24])", str(getattr(image, "tile", ""))
    )  # e.g. L;4, or L;2I with white as 0
    return int(packed[1]) if packed else 8


def read_orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, 1 to 8; for another number 1, as other programs do not turn it."""
    if image.format == "TIFF":
        return 1  # Pillow turns it itself
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode all pixels to look for it behind them
    orientation = image.getexif().get(0x0112, 1)
    return int(orientation) if orientation in range(1, 9) else 1


def _decode_by_opencv(image: Image.Image, wanted: ImageFormat, file: IO[bytes]) -> Pixels | None:
    """Return the stored pixels of a colour JPEG or WebP: Pillow's, in less time and memory.

    None for other files, and for truncated ones: OpenCV would fill them up with grey.
    """
    if image.format not in ("JPEG", "WEBP") or image.mode != "RGB" or wanted.channels != 3:
        return None
    import cv2

    stored = _read_bytes(file)
    if image.format == "JPEG" and stored[-2:].tobytes() != b"\xff\xd9":
        return None
    decoded = cv2.imdecode(stored, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if decoded is None or decoded.shape[:2] != (image.height, image.width):
        return None
    colour: Pixels = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB, dst=decoded)
    return colour


def decode(image: Image.Image, wanted: ImageFormat, source: Path | str) -> Pixels:
    """Return the pixels (H, W, C) as Pillow has them, upright; `source` is for messages."""
    _check_mode(image, source)
    turned = _turn(image)
    if turned.mode in _DEEP:
        values = np.asarray(turned)
        if values.min(initial=0) < 0 or values.max(initial=0) > 65535:
            raise UserError(f"{source}: values beyond 16 bit; save as 8 or 16 bit")
        values = values.astype(np.uint16)[..., None]
        tags = getattr(image, "tag_v2", {})  # where 0 is white, Pillow turns 8 bit alone
        if tags.get(_PHOTOMETRIC) == 0:
            values = np.uint16((1 << max(tags.get(_BITS, (16,)))) - 1) - values
        return values
    mode = _MODES.get(wanted.channels, turned.mode)
    if turned.mode != mode:  # or Pillow would copy it
        turned = turned.convert(mode)
    return np.atleast_3d(np.asarray(turned))


def decode_mask(image: Image.Image, source: Path | str) -> Codes:
    """Return a mask's values (H, W) or colours (H, W, 3) as Pillow has them, upright; `source` is for messages."""
    _check_mode(image, source)
    bits = _grey_bits(image)
    image = _turn(image)
    if image.mode in ("LA", "PA"):  # without alpha
        image = image.convert(image.mode[0])
    elif image.mode in _COLOUR and image.mode not in ("P", "RGB"):
        image = image.convert("RGB")
    values = np.asarray(image).astype(np.uint8) if image.mode == "1" else np.asarray(image)
    return values // (255 // ((1 << bits) - 1)) if 1 < bits < 8 else values  # as stored


def _check_mode(image: Image.Image, source: Path | str) -> None:
    if image.mode not in _GREY | _COLOUR:
        raise UserError(f"{source}: pixels of kind {image.mode}; save as 8 or 16 bit")


def _turn(image: Image.Image) -> Image.Image:
    """Return an image upright."""
    return ImageOps.exif_transpose(image) if read_orientation(image) > 1 else image


def _read_bytes(file: IO[bytes]) -> NDArray[np.uint8]:
    file.seek(0)
    return np.fromfile(file, np.uint8)


def _palette(image: Image.Image) -> tuple[tuple[int, int, int], ...]:
    flat = image.getpalette("RGB") or []
    reds = flat[::3]
    greens = flat[1::3]
    blues = flat[2::3]
    return tuple(zip(reds, greens, blues, strict=False))


def _is_lossy(image: Image.Image, file: IO[bytes]) -> bool:
    if image.format != "WEBP":
        return image.format in ("JPEG", "MPO")
    file.seek(0)
    return b"VP8L" not in file.read(_HEAD)  # the part of lossless pixels


def _decode_deep_png(file: IO[bytes], channels: int, path: Path) -> Pixels | None:
    import cv2

    stored = cv2.imdecode(_read_bytes(file), cv2.IMREAD_UNCHANGED)
    if stored is None:
        raise UserError(f"{path}: corrupt or truncated; replace it")
    if stored.ndim == 2 or stored.shape[2] == 2:
        return np.atleast_3d(stored)[..., :1]
    order = cv2.COLOR_BGR2RGB if stored.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    colour: Pixels = cv2.cvtColor(stored, order, dst=stored)
    return colour[..., : max(channels, 3)]
