"""TIFF files of many bands, or of other than 8 bits, as tifffile reads them."""

from __future__ import annotations

import logging
import lzma
import math
import zlib
from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.bands import BandsFile
from unet_ddp.data.readers.base import Header, refuse_bomb, storage_dtype, upright
from unet_ddp.errors import UserError, count_of

ORIENTATION, GDAL_NODATA = 274, 42113  # tags
SEPARATE = 2  # planar configuration: band after band
ALPHA = (1, 2)  # kinds of extra samples
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
        self, path: Path, file: IO[bytes], decode: Callable[[], NDArray[Any] | None]
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
        pages: Any = tifffile.TiffFile(file).pages
        # Overviews are no images of their own.
        self._pages = [page for page in pages if not getattr(page, "subfiletype", 0) & 1]
        if len(self._pages) == 1:
            self._refuse_bomb(self._pages[0])

    @cached_property
    def header(self) -> Header:
        """Properties of the file."""
        page = self._page
        sizes = dict(zip(page.axes, page.shape, strict=True))
        if self._orientation >= 5:
            sizes["X"], sizes["Y"] = sizes["Y"], sizes["X"]
        extra = getattr(page, "extrasamples", None) or ()
        has_alpha = any(int(kind) in ALPHA for kind in extra)
        channels = sizes.get("S", 1)
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
            nodata=_nodata(page),
            is_array=True,
        )

    @property
    def _is_stack(self) -> bool:
        return self.planes and len(self._pages) > 1

    @property
    def _page(self) -> Any:
        """The file's one image, or the first page of a stack."""
        if len(self._pages) > 1 and not self.planes:
            raise UserError(f"{self.path}: holds several frames or pages; save one image per file")
        return self._pages[0]

    @property
    def _orientation(self) -> int:
        orientation = self._page.tags.valueof(ORIENTATION, default=1)
        return int(orientation) if orientation in range(1, 9) else 1

    def read_bands(self) -> NDArray[Any]:
        """Return the pixels (H, W, C) in the file's own type, upright; of a stack, C counts its pages."""
        try:
            if self._is_stack:
                stored = self._read_stack()
            else:
                stored = np.asarray(self._page.asarray())
                if stored.ndim == 3 and self._page.planarconfig == SEPARATE:  # (C, H, W)
                    stored = np.moveaxis(stored, 0, -1)
        except (ValueError, NotImplementedError) as error:
            if "imagecodecs" not in str(error):
                raise
            decoded = self._decode()
            if decoded is None:
                raise UserError(
                    f"{self.path}: its compression needs 'pip install imagecodecs'; or save it uncompressed"
                ) from None
            stored = decoded
        bands = np.ascontiguousarray(upright(stored, self._orientation))
        return bands[..., None] if bands.ndim == 2 else bands

    def _read_stack(self) -> NDArray[Any]:
        """Return all pages (H, W, pages), which must be grey and of one size."""
        self._check_count(len(self._pages))
        for page in self._pages:
            self._refuse_bomb(page)
            if page.shape != self._page.shape or len(page.shape) > 2:
                raise UserError(
                    f"{self.path}: has pages of {_describe(self._page)} and of {_describe(page)}; a mask "
                    "has a grey page for each class, all of one size"
                )
        return np.stack([page.asarray() for page in self._pages], axis=-1)

    def _refuse_bomb(self, page: Any) -> None:
        """Raise a UserError if a page is not safe to decode."""
        height, width = page.imagelength, page.imagewidth
        if page.is_tiled:
            height, width = max(height, page.tilelength), max(width, page.tilewidth)
        pixel_bytes = page.imagedepth * page.samplesperpixel * page.dtype.itemsize
        refuse_bomb(self.path, width, height, file=self._file.fileno(), pixel_bytes=pixel_bytes)


def _describe(page: Any) -> str:
    """Return size and bands of a page in words."""
    return f"{page.imagewidth}x{page.imagelength} with {count_of(page.samplesperpixel, 'band')}"


def _inflate(new: Callable[[], Any], data: bytes, *, out: int) -> bytes:
    """Return the `out` bytes that compressed data hold; some programs append rows that nobody needs."""
    decoder = new()
    inflated: bytes = decoder.decompress(data, out + _MOST_APPENDED)
    if not decoder.eof:
        raise ValueError("a strip or tile is not as long as the header says")
    return inflated[:out]


def _nodata(page: Any) -> float | None:
    tag = page.tags.get(GDAL_NODATA)
    if tag is None:
        return None
    try:
        value = float(str(tag.value).strip("\0 "))
    except ValueError:
        return None
    return math.nan if math.isnan(value) else value  # one nan, so that headers with it are equal
