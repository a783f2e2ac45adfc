"""Images that are plain arrays: NPY files, and TIFF of many bands or of more than 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from unet_ddp.data.formats.header import DTYPES, TIFFS, Header, Pixels, upright
from unet_ddp.errors import UserError

_KEPT_AS = {"float64": "float32", "float16": "float32", "int8": "int16", "bool": "uint8"}
_SAMPLES, _BITS, _EXTRA, _PHOTOMETRIC, _RGB = 277, 258, 338, 262, 2  # of TIFF
_SAMPLE_FORMAT, _UNSIGNED, _GDAL_NODATA, _ORIENTATION = 339, 1, 42113, 274
_READ_BY_PILLOW = frozenset(
    {"1", "L", "LA", "RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "I;16", "I;16B"}
)


def is_array(path: Path) -> bool:
    """Whether `path` is read here: Pillow can't open such TIFFs, or makes less of them."""
    ending = path.suffix.lower()
    if ending not in TIFFS:
        return ending == ".npy"
    try:
        with Image.open(path) as image:
            tags = getattr(image, "tag_v2", {})
            samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
            signs = tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))
            has_alpha = any(kind in (1, 2) for kind in tags.get(_EXTRA, ()))
            other = samples == 2 or (samples == 4 and tags.get(_PHOTOMETRIC) == _RGB)
            return (
                (samples > 1 and bits > 8)
                or (other and not has_alpha)
                or any(sign != _UNSIGNED for sign in signs)
                or _GDAL_NODATA in tags
                or getattr(image, "n_frames", 1) > 1  # overviews, perhaps
                or image.mode not in _READ_BY_PILLOW
            )
    except UnidentifiedImageError:
        return path.is_file() and path.stat().st_size > 0
    except (OSError, ValueError, TypeError):
        return False


def array_header(path: Path) -> Header:
    """What the file says of itself; its pixels are not read."""
    if path.suffix.lower() == ".npy":
        stored = _open_npy(path)
        height, width, channels = _as_bands(stored, path).shape
        return Header(width, height, channels, _name(stored.dtype))
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        page = _only_page(tiff, path)
        sizes = dict(zip(page.axes, page.shape, strict=True))
        if _orientation(page) >= 5:
            sizes["X"], sizes["Y"] = sizes["Y"], sizes["X"]
        alpha = _has_alpha(page)
        return Header(
            sizes["X"],
            sizes["Y"],
            sizes.get("S", 1) - alpha,
            _name(page.dtype),
            has_alpha=alpha,
            nodata=_nodata(page),
        )


def read_array(path: Path) -> Pixels:
    """All bands of the file, (H, W, C); alpha, where there is one, is the last."""
    if path.suffix.lower() == ".npy":
        stored = _open_npy(path)
        return cast(Pixels, np.array(_as_bands(stored, path), _kind(stored.dtype, path)))
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        page = _only_page(tiff, path)
        bands = _page_pixels(page)
    bands = bands[..., None] if bands.ndim == 2 else bands
    return cast(Pixels, bands.astype(_kind(bands.dtype, path), copy=False))


def read_mask_values(path: Path) -> NDArray[np.int32]:
    """The values of a mask that is an array, (H, W) or (H, W, 3).

    Raises:
        UserError: values that are no whole numbers.
    """
    if path.suffix.lower() == ".npy":
        stored = _as_bands(_open_npy(path), path)
    else:
        import tifffile

        with tifffile.TiffFile(path) as tiff:
            page = _only_page(tiff, path)
            stored = _page_pixels(page)
    values = np.asarray(stored)
    codes = values.astype(np.int32)
    if not np.array_equal(codes, values):
        raise UserError(
            f"{path}: holds values that are no whole numbers; a mask holds one number per class"
        )
    return codes[..., 0] if codes.ndim == 3 and codes.shape[2] == 1 else codes


def _open_npy(path: Path) -> NDArray[Any]:
    stored: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return stored


def _as_bands(stored: NDArray[Any], path: Path) -> NDArray[Any]:
    """(H, W) or (H, W, C), or (C, H, W) where the first axis is the shortest, to (H, W, C)."""
    if stored.ndim == 2:
        return stored[..., None]
    if stored.ndim != 3:
        raise UserError(f"{path}: an array of {stored.ndim} axes; save (H, W) or (H, W, C)")
    if stored.shape[0] < min(stored.shape[1:]):
        return np.moveaxis(stored, 0, -1)
    return stored


def _only_page(tiff: Any, path: Path) -> Any:
    """The file's one image; smaller copies of it (overviews) are passed over."""
    pages = [page for page in tiff.pages if not getattr(page, "subfiletype", 0) & 1]
    if len(pages) > 1:
        raise UserError(f"{path}: holds several frames or pages; save one image per file")
    return pages[0]


def _page_pixels(page: Any) -> NDArray[Any]:
    """(H, W) or (H, W, C), upright."""
    stored: NDArray[Any] = np.asarray(page.asarray())
    if stored.ndim == 3 and page.planarconfig == 2:
        stored = np.moveaxis(stored, 0, -1)
    return np.ascontiguousarray(upright(stored, _orientation(page)))


def _orientation(page: Any) -> int:
    tag = page.tags.get(_ORIENTATION)
    return int(tag.value) if tag is not None else 1


def _has_alpha(page: Any) -> bool:
    return any(int(kind) in (1, 2) for kind in getattr(page, "extrasamples", ()) or ())


def _nodata(page: Any) -> float | None:
    tag = page.tags.get(_GDAL_NODATA)
    try:
        return None if tag is None else float(str(tag.value).strip("\0 "))
    except ValueError:
        return None


def _kind(dtype: np.dtype[Any], path: Path) -> str:
    """The type that pixels are kept in: the file's own, or one that holds its values as well."""
    name = _name(dtype)
    if name not in DTYPES:
        raise UserError(f"{path}: pixels of type {dtype}; save as {', '.join(DTYPES)}")
    return name


def _name(dtype: np.dtype[Any]) -> str:
    return _KEPT_AS.get(dtype.name, dtype.name)
