"""Images that are arrays: NPY files, maps, and TIFFs of many bands or of other than 8 bits."""

from __future__ import annotations

import lzma
import math
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from unet_ddp.data.formats import maps
from unet_ddp.data.formats.header import (
    DTYPES,
    TIFFS,
    Header,
    Pixels,
    refuse_bomb,
    storage_dtype,
    upright,
)
from unet_ddp.data.formats.pillow import identify
from unet_ddp.errors import UserError
from unet_ddp.files import refuse_special

_SAMPLES, _BITS, _EXTRA, _PHOTOMETRIC, _RGB = 277, 258, 338, 262, 2  # of TIFF
_SAMPLE_FORMAT, _UNSIGNED, _GDAL_NODATA, _ORIENTATION = 339, 1, 42113, 274
_PLANES, _SEPARATE, _GREYS = 284, 2, (0, 1)
_ALPHA = (1, 2)  # kinds of extra samples
_INFLATERS: dict[int, Callable[[], Any]] = {  # by TIFF's number of the compression
    **dict.fromkeys((8, 32946, 50013), zlib.decompressobj),
    **dict.fromkeys((50000, 34926), lambda: import_module("compression.zstd").ZstdDecompressor()),
    34925: lzma.LZMADecompressor,
}
_MOST = np.iinfo(np.int32).max
_MOST_APPENDED = 1 << 22  # bytes that a strip may hold beyond its size
_READ_BY_PILLOW = frozenset(
    {"1", "L", "LA", "RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "I;16", "I;16B"}
)


def is_array(path: Path) -> bool:
    """Return whether to read `path` here: no image of Pillow's, or a TIFF of which it loses a part."""
    suffix = path.suffix.lower()
    if suffix not in TIFFS:
        return suffix == ".npy"
    try:
        with identify(path) as image:
            tags = getattr(image, "tag_v2", {})
            samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
            has_extra = samples == 2 or (samples == 4 and tags.get(_PHOTOMETRIC) == _RGB)
            is_split = tags.get(_PLANES) == _SEPARATE  # band after band
            return (
                (samples > 1 and bits != 8)
                or (is_split and (bits > 8 or (samples > 1 and tags.get(_PHOTOMETRIC) in _GREYS)))
                or (has_extra and not any(kind in _ALPHA for kind in tags.get(_EXTRA, ())))
                or any(sign != _UNSIGNED for sign in tags.get(_SAMPLE_FORMAT, ()))
                or _GDAL_NODATA in tags
                or getattr(image, "n_frames", 1) > 1  # overviews, perhaps
                or image.mode not in _READ_BY_PILLOW
            )
    except UnidentifiedImageError:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError, TypeError):
        return False


def read_header(path: Path) -> Header:
    """Return the properties of the file; its pixels are not read."""
    if path.suffix.lower() == ".npy":
        stored = _open_npy(path)
        height, width, channels = stored.shape
        return Header(width, height, channels, storage_dtype(stored.dtype))
    with open_tiff(path) as tiff:
        page = only_page(tiff, path, is_whole=True)
        sizes = dict(zip(page.axes, page.shape, strict=True))
        if _orientation(page) >= 5:
            sizes["X"], sizes["Y"] = sizes["Y"], sizes["X"]
        has_alpha = any(int(kind) in _ALPHA for kind in getattr(page, "extrasamples", ()) or ())
        return Header(
            sizes["X"],
            sizes["Y"],
            sizes.get("S", 1) - has_alpha,
            storage_dtype(page.dtype),
            has_alpha=has_alpha,
            nodata=_nodata(page),
        )


def read_image(path: Path) -> Pixels:
    """Return all bands of the file, (H, W, C); alpha, if any, is the last."""
    return as_pixels(_read_bands(path), path)


def as_pixels(bands: NDArray[Any], source: Path | str) -> Pixels:
    """Return bands (H, W, C) of any type as one of ours; `source` is for messages."""
    dtype = storage_dtype(bands.dtype)
    if dtype not in DTYPES:
        raise UserError(f"{source}: pixels of type {bands.dtype}; save as {', '.join(DTYPES)}")
    return cast(Pixels, bands.astype(dtype, copy=False))


def read_mask(path: Path) -> NDArray[np.int32]:
    """Return the values of a mask, (H, W), or its colours, (H, W, C)."""
    bands = _read_bands(path)
    if bands.shape[2] in (2, 4) and read_header(path).has_alpha:
        bands = bands[..., :-1]
    if bands.shape[2] not in (1, 3):
        raise UserError(
            f"{path}: {bands.shape[2]} bands; a mask has one, or three of colour; if each class has a "
            "band, save their argmax"
        )
    with np.errstate(invalid="ignore"):  # nan, which the comparison finds
        values = bands.astype(np.int32)
    wrong = bands[values != bands]
    if wrong.size and not float(wrong[0]).is_integer():
        raise UserError(f"{path}: mask values are not whole numbers; save one number per class")
    if wrong.size:
        raise UserError(f"{path}: mask value {wrong[0]}; use numbers of at most {_MOST}")
    return values[..., 0] if values.shape[2] == 1 else values


def _read_bands(path: Path) -> NDArray[Any]:
    """Return the pixels (H, W, C) in the file's own type, upright."""
    if path.suffix.lower() == ".npy":
        return np.array(_open_npy(path))
    with open_tiff(path) as tiff:
        page = only_page(tiff, path, is_whole=True)
        try:
            stored: NDArray[Any] = np.asarray(page.asarray())
            if stored.ndim == 3 and page.planarconfig == 2:  # (C, H, W)
                stored = np.moveaxis(stored, 0, -1)
        except (ValueError, NotImplementedError) as error:
            if "imagecodecs" not in str(error) or not maps.is_readable(path):
                raise
            stored = maps.read_bands(path)
        bands = np.ascontiguousarray(upright(stored, _orientation(page)))
    return bands[..., None] if bands.ndim == 2 else bands


def _open_npy(path: Path) -> NDArray[Any]:
    """Map an array; see `as_bands`."""
    try:
        stored: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "object" not in str(error):
            raise
        raise UserError(
            f"{path}: holds Python objects, not an array of numbers; if it is Cellpose's, save the "
            "masks as TIFF there (--save_tif)"
        ) from None
    return as_bands(stored, path)


def as_bands(array: NDArray[Any], source: Path | str) -> NDArray[Any]:
    """Return an array (H, W), (H, W, C), or (C, H, W) if the first axis is the shortest, as (H, W, C)."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise UserError(f"{source}: an array of {array.ndim} axes; save (H, W) or (H, W, C)")
    return np.moveaxis(array, 0, -1) if array.shape[0] < min(array.shape[1:]) else array


def open_tiff(path: Path) -> Any:
    """Open a TIFF by tifffile, inflating no more of it than its strips or tiles need.

    tifffile's own decoders ignore the size that they are given; those of imagecodecs keep to it.
    Use pages, not series: the XML in a TIFF may name other files, which series would open.
    """
    import tifffile

    refuse_special(path)
    decoders: Any = tifffile.TIFF.DECOMPRESSORS
    known = getattr(decoders, "_codecs", {})  # private: a later tifffile may lack it
    for kind, new in _INFLATERS.items():
        if kind in decoders and decoders[kind].__module__ == "tifffile._imagecodecs":
            known[kind] = partial(_inflate, new)
    return tifffile.TiffFile(path)


def _inflate(new: Callable[[], Any], data: bytes, *, out: int) -> bytes:
    """Return the `out` bytes that compressed data hold; some programs append rows that nobody needs."""
    decoder = new()
    inflated: bytes = decoder.decompress(data, out + _MOST_APPENDED)
    if not decoder.eof:
        raise ValueError("a strip or tile is not as long as the header says")
    return inflated[:out]


def only_page(tiff: Any, path: Path, *, is_whole: bool) -> Any:
    """Return the file's one image, overviews aside; it or its tiles must be safe to decode."""
    pages = [page for page in tiff.pages if not getattr(page, "subfiletype", 0) & 1]
    if len(pages) > 1:
        raise UserError(f"{path}: holds several frames or pages; save one image per file")
    page = pages[0]
    height, width = page.imagelength, page.imagewidth
    if page.is_tiled:
        height = max(height * is_whole, page.tilelength)
        width = max(width * is_whole, page.tilewidth)
    elif not is_whole:
        height = min(height, page.rowsperstrip)
    pixel_bytes = page.imagedepth * page.samplesperpixel * page.dtype.itemsize
    refuse_bomb(path, width, height, pixel_bytes=pixel_bytes)
    return page


def _orientation(page: Any) -> int:
    tag = page.tags.get(_ORIENTATION)
    return int(tag.value) if tag is not None else 1


def _nodata(page: Any) -> float | None:
    tag = page.tags.get(_GDAL_NODATA)
    try:
        value = None if tag is None else float(str(tag.value).strip("\0 "))
    except ValueError:
        return None
    return math.nan if value != value else value  # one nan, so that headers with it are equal
