"""What there is to know of one file, found by decoding it once."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.header import Codes, Header, ImageFormat, Pixels
from unet_ddp.data.formats.read import read_header, read_mask, read_thumbnail, read_with_nodata_mask
from unet_ddp.data.formats.resize import resize_area
from unet_ddp.errors import UserError

THUMBNAIL = 8  # pixels on a side
_MOST_PIXELS = 100_000_000  # a file of a few KB can ask for gigabytes
_MOST_VALUES = 1024  # kept of a mask: more are no classes in any case

Palette = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ImageMetadata:
    """What the scan found in one image."""

    width: int
    height: int
    channels: int
    dtype: str
    has_alpha: bool
    nodata: float | None
    """As the file itself says."""
    thumbnail: str
    """8x8 grey pixels, contrast stretched, in base64; empty for an image of one colour."""
    count: int = 0
    """Pixels that the following are of; 0 for 8-bit images, which need none of it."""
    low: float = 0.0
    high: float = 0.0
    sums: tuple[float, ...] = ()
    """Of the pixels, for each channel."""
    squares: tuple[float, ...] = ()
    """Of the pixels' squares, for each channel."""


@dataclass(frozen=True)
class MaskMetadata:
    """What the scan found in one mask."""

    width: int
    height: int
    is_colour: bool
    is_lossy: bool
    palette: Palette | None
    values: tuple[int, ...]
    """Rising."""
    counts: tuple[int, ...]
    """Pixels of each value."""


def read_image_metadata(
    path: Path, nodata: float | None, channels: int | None = None
) -> ImageMetadata:
    """Decode the image once.

    Args:
        nodata: the value of pixels that hold nothing; the file's own where None.
        channels: as many of them as are asked for; those of the file, without alpha, where None.

    Raises:
        UserError: it is damaged, too large, or holds nan or infinity.
    """
    header = read_header(path)
    _refuse_huge(header, path)
    about = (header.width, header.height, header.channels, header.dtype, header.has_alpha)
    if header.dtype == "uint8":
        return ImageMetadata(*about, header.nodata, _pack(read_thumbnail(path, THUMBNAIL)))
    nodata = header.nodata if nodata is None else nodata
    whole = header.channels + header.has_alpha
    form = ImageFormat(whole if channels == whole else header.channels, header.dtype, nodata)
    pixels, nodata_mask = read_with_nodata_mask(path, form)
    grey = resize_area(pixels.mean(axis=2, dtype=np.float32)[..., None], (THUMBNAIL, THUMBNAIL))[
        ..., 0
    ]
    kept = pixels[~nodata_mask] if nodata_mask is not None else pixels.reshape(-1, pixels.shape[2])
    values = kept.astype(np.float64)
    return ImageMetadata(
        *about,
        header.nodata,
        _pack(grey),
        len(values),
        float(values.min()) if len(values) else 0.0,
        float(values.max()) if len(values) else 0.0,
        tuple(values.sum(axis=0).tolist()),
        tuple(np.square(values).sum(axis=0).tolist()),
    )


def read_mask_metadata(path: Path) -> MaskMetadata:
    """Decode the mask once.

    Raises:
        UserError: it is damaged or too large.
    """
    header = read_header(path)
    _refuse_huge(header, path)
    values, counts = _count(read_mask(path))
    if len(values) > _MOST_VALUES:
        kept = np.sort(np.argsort(-counts, kind="stable")[: _MOST_VALUES - 2])
        kept = np.unique(np.concatenate([[0], kept, [len(values) - 1]]))
        values, counts = values[kept], counts[kept]
    return MaskMetadata(
        header.width,
        header.height,
        header.is_colour or (header.channels > 1 and header.palette is None),
        header.is_lossy,
        header.palette,
        tuple(values.tolist()),
        tuple(counts.tolist()),
    )


def _refuse_huge(header: Header, path: Path) -> None:
    if header.width * header.height > _MOST_PIXELS:
        raise UserError(
            f"{path}: {header.width}x{header.height} pixels, more than are safe to decode while "
            f"training ({_MOST_PIXELS // 10**6} million); cut it into tiles"
        )


def _count(codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The values in a mask, rising, and the pixels of each."""
    if codes.size and codes.min() >= 0 and codes.max() < 65536:  # ten times as fast as sorting
        counts = np.bincount(codes.ravel())
        values = np.flatnonzero(counts)
        return values, counts[values]
    values, counts = np.unique(codes, return_counts=True)
    return values.astype(np.int64), counts


def _pack(grey: Pixels | NDArray[np.float32]) -> str:
    """A thumbnail (8, 8) as text."""
    low, high = float(grey.min()), float(grey.max())
    if not high > low:
        return ""
    stretched = np.round((grey - low) * (255 / (high - low))).astype(np.uint8)
    return base64.b64encode(stretched.tobytes()).decode()


def unpack_thumbnails(texts: list[str]) -> NDArray[np.float32]:
    """Thumbnails (N, 64), each of mean 0 and length 1, so that products are correlations."""
    flat = np.zeros((len(texts), THUMBNAIL**2), np.float32)
    for row, text in zip(flat, texts, strict=True):
        if text:
            row[:] = np.frombuffer(base64.b64decode(text), np.uint8)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat
