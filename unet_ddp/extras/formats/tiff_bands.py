"""TIFF files of many bands, or of other than 8 bits, as tifffile reads them."""

from __future__ import annotations

import logging
import lzma
import math
import os
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.bands import BandsFile
from unet_ddp.data.readers.base import (
    Header,
    ImageFormat,
    Pixels,
    bits_of,
    refuse_bomb,
    storage_dtype,
    upright,
)
from unet_ddp.errors import UserError, count_of

ORIENTATION, GDAL_NODATA = 274, 42113  # tags
SEPARATE = 2  # planar configuration: band after band
MIN_IS_WHITE = 0  # photometric interpretation: grey values of which 0 is white
NO_IMAGE = 1 | 4  # kinds of a page, as bits: an overview, a mask of the pixels with data
_ALPHA = (1, 2)  # kinds of extra samples
_OTHER_COLOURS = {3: "palette colours", 5: "CMYK", 8: "CIELab", 9: "ICCLab", 10: "ITULab"}
_AS_ONE = {  # axes of pages, and what makes one image of them
    "channels": "Image > Color > Merge Channels",
    "slices": "Image > Stacks > Z Project",
    "frames": "Image > Stacks > Tools > Stack to Images",
}
_INFLATERS: dict[int, Callable[[], Any]] = {  # by TIFF's number of the compression
    **dict.fromkeys((8, 32946, 50013), zlib.decompressobj),
    **dict.fromkeys((50000, 34926), lambda: import_module("compression.zstd").ZstdDecompressor()),
    34925: lzma.LZMADecompressor,
}
logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else Python prints to stderr
_MOST_APPENDED = 1 << 22  # bytes that a strip may hold beyond its size


class TiffBandsFile(BandsFile):
    """An open TIFF that tifffile reads, inflating no more of it than its strips or tiles need.

    tifffile's own decoders ignore the size that they are given; imagecodecs' decoders keep to it.
    Use pages, not series: the XML in a TIFF may name other files, which series would open.
    """

    def __init__(
        self, path: Path, file: IO[bytes], decode: Callable[[int], NDArray[Any] | None]
    ) -> None:
        super().__init__(path)
        import tifffile

        decoders: Any = tifffile.TIFF.DECOMPRESSORS
        known = getattr(decoders, "_codecs", {})  # private: a later tifffile may lack it
        for kind, new in _INFLATERS.items():
            if kind in decoders and decoders[kind].__module__ == "tifffile._imagecodecs":
                known[kind] = partial(_inflate, new)
        self._decode = decode  # by another library
        file.seek(0)
        self._file = file
        self._tiff = tifffile.TiffFile(file)
        pages: Any = self._tiff.pages
        self._pages = [page for page in pages if not getattr(page, "subfiletype", 0) & NO_IMAGE]
        if len(self._pages) == 1:
            self._refuse_bomb(self._pages[0])

    @cached_property
    def header(self) -> Header:
        """Properties of the file."""
        page = self._page
        sizes = dict(zip(page.axes, page.shape, strict=True))
        if self._orientation >= 5:
            sizes["X"], sizes["Y"] = sizes["Y"], sizes["X"]
        channels, has_alpha = sizes.get("S", 1), _alpha_of(page) is not None
        if has_alpha:
            channels -= 1
        if self._is_stack:
            channels = len(self._pages)
        return Header(
            sizes["X"],
            sizes["Y"],
            channels,
            storage_dtype(page.dtype),
            has_alpha=has_alpha,
            nodata=parse_nodata(
                page.tags.valueof(GDAL_NODATA), _white_of(page) if _is_inverted(page) else None
            ),
            is_array=True,
        )

    @cached_property
    def _is_stack(self) -> bool:
        """True if each page is a band: a class of a mask, or a channel of an image."""
        if len(self._pages) == 1 and self._tiff.is_imagej:
            count = int((self._tiff.imagej_metadata or {}).get("images", 1))
            size = self._pages[0].nbytes * count
            if count > 1 and self._file.seek(0, os.SEEK_END) > size:  # else a page that was cut out
                raise UserError(
                    f"{self.path}: ImageJ's {count} images in one directory; save one image per file, e.g. in Fiji "
                    f"by {_AS_ONE['frames']}"
                )
        if len(self._pages) < 2 or self.planes:
            return len(self._pages) > 1
        sizes = read_axes(self._tiff)
        if sizes.get("channels") == len(self._pages):
            return True
        for axis, count in sizes.items():
            if axis != "channels" and count > 1:
                raise UserError(
                    f"{self.path}: holds {count} {axis} of an image; save one image per file, e.g. in Fiji by "
                    f"{_AS_ONE[axis]}"
                )
        return False

    @property
    def _page(self) -> Any:
        """The file's one image, or the first page of a stack."""
        if len(self._pages) > 1 and not self._is_stack:
            raise self._several_pages()
        return self._pages[0]

    def _several_pages(self) -> UserError:
        return UserError(f"{self.path}: holds several frames or pages; save one image per file")

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all bands (H, W, C) of an image, which are grey values or red, green and blue."""
        kind = _OTHER_COLOURS.get(int(self._page.photometric))
        if kind:
            bits = bits_of(str(self._page.dtype))
            raise UserError(f"{self.path}: an image of {kind} in {bits}; save it as RGB or grey")
        return super().read(wanted)

    def read_mask(self) -> NDArray[Any]:
        """Return the values of a mask; channels in pages are none."""
        if self._is_stack and not self.planes:
            raise self._several_pages()
        return super().read_mask()

    @property
    def _orientation(self) -> int:
        return find_orientation(self._page.tags.valueof(ORIENTATION, default=1))

    def read_bands(self) -> NDArray[Any]:
        """Return the pixels (H, W, C) in the file's own type, upright; of a stack, C counts its pages."""
        stored = self._read_stack() if self._is_stack else self._read_page(self._page)
        bands = upright(stored, self._orientation)
        bands = bands[..., None] if bands.ndim == 2 else bands
        alpha = _alpha_of(self._page)
        if _is_inverted(self._page):
            colour = [band for band in range(bands.shape[2]) if band != alpha]
            bands = bands.copy()
            bands[..., colour] = _white_of(self._page) - bands[..., colour]
        if alpha is not None and not self._is_stack:  # to the end
            bands = np.concatenate(
                [bands[..., :alpha], bands[..., alpha + 1 :], bands[..., alpha, None]], axis=2
            )
        return np.ascontiguousarray(bands)

    def _read_stack(self) -> NDArray[Any]:
        """Return all pages (H, W, pages), which must be grey and of one size."""
        if self.planes:
            self._check_count(len(self._pages))
        for page in self._pages:
            self._refuse_bomb(page)
            is_alike = (page.shape, page.dtype) == (self._page.shape, self._page.dtype)
            if not is_alike or len(page.shape) > 2:
                raise UserError(
                    f"{self.path}: has pages of {_describe(self._page)} and of {_describe(page)}; a page for each "
                    "class or channel must be grey, all of one size and type"
                )
        pages = [self._read_page(page) for page in self._pages]
        return np.stack([page.reshape(page.shape[:2]) for page in pages], axis=-1)

    def _read_page(self, page: Any) -> NDArray[Any]:
        """Return the pixels of a page as they lie, (H, W) or (H, W, C)."""
        try:
            stored = np.asarray(page.asarray())
        except (ValueError, NotImplementedError, ModuleNotFoundError) as error:
            if "imagecodecs" not in str(error) and not isinstance(error, ModuleNotFoundError):
                raise
            decoded = self._decode(page.index + 1)
            if decoded is None:
                name = getattr(page.compression, "name", page.compression)
                raise UserError(
                    f"{self.path}: its compression {name} needs 'pip install imagecodecs'; or save it uncompressed"
                ) from None
            return decoded
        is_split = stored.ndim == 3 and page.planarconfig == SEPARATE  # (C, H, W)
        return np.moveaxis(stored, 0, -1) if is_split else stored

    def _refuse_bomb(self, page: Any) -> None:
        """Raise a UserError if a page is not safe to decode."""
        height, width = page.imagelength, page.imagewidth
        if page.is_tiled:
            height, width = max(height, page.tilelength), max(width, page.tilewidth)
        pixel_bytes = page.imagedepth * page.samplesperpixel * page.dtype.itemsize
        refuse_bomb(self.path, width, height, file=self._file.fileno(), pixel_bytes=pixel_bytes)


def _describe(page: Any) -> str:
    """Return size, bands and type of a page in words."""
    return (
        f"{page.imagewidth}x{page.imagelength} with {count_of(page.samplesperpixel, 'band')} of "
        f"{bits_of(str(page.dtype))}"
    )


def read_axes(tiff: Any) -> dict[str, int]:
    """Return how many channels, slices and frames ImageJ or OME-XML says that the pages are; {} if none does."""
    if tiff.is_imagej:
        found = tiff.imagej_metadata or {}
        sizes = {axis: int(found.get(axis, 1)) for axis in _AS_ONE}
        if set(sizes.values()) == {1}:  # an older stack has its number of images alone
            sizes["slices"] = int(found.get("images", 1))
        return sizes
    if not tiff.is_ome:
        return {}
    pixels = re.search(r"<(?:\w+:)?Pixels\b[^>]*>", tiff.ome_metadata or "")
    values = dict(re.findall(r'\bSize([CZT])\s*=\s*"(\d+)"', pixels[0] if pixels else ""))
    return {axis: int(values.get(name, 1)) for axis, name in zip(_AS_ONE, "CZT", strict=True)}


def find_alpha(extra: Sequence[int], samples: int) -> int | None:
    """Return which of a TIFF's samples is alpha, by the kinds of its extra ones; None if none is."""
    first = samples - len(extra)
    return next((first + k for k, kind in enumerate(extra) if int(kind) in _ALPHA), None)


def _alpha_of(page: Any) -> int | None:
    return find_alpha(getattr(page, "extrasamples", None) or (), page.samplesperpixel)


def _is_inverted(page: Any) -> bool:
    """Return whether 0 is white: of whole numbers from 0 on, which have a black as well."""
    return bool(page.photometric == MIN_IS_WHITE and page.dtype.kind == "u")


def _white_of(page: Any) -> int:
    return (1 << int(page.bitspersample)) - 1


def _inflate(new: Callable[[], Any], data: bytes, *, out: int) -> bytes:
    """Return the `out` bytes that compressed data hold; some programs append rows that nobody needs."""
    decoder = new()
    inflated: bytes = decoder.decompress(data, out + _MOST_APPENDED)
    if not decoder.eof:
        raise ValueError("a strip or tile is not as long as the header says")
    return inflated[:out]


def find_orientation(tag: Any) -> int:
    """Return EXIF's orientation, 1 to 8; for another number 1."""
    return int(tag) if tag in range(1, 9) else 1


def parse_nodata(tag: Any, white: int | None) -> float | None:
    """Return the value of GDAL's tag, from `white` where 0 is white; None if it has no number."""
    if tag is None:
        return None
    try:
        value = float(str(tag).strip("\0 "))
    except ValueError:
        return None
    if white is not None:
        value = white - value
    return math.nan if math.isnan(value) else value  # one nan, so that headers with it are equal
