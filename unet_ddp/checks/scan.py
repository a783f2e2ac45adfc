"""Scan of all files before the first step: each is decoded once, and its metadata cached."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.data.pairs import Pair, Pairs, Stamp, find_stamp
from unet_ddp.data.readers.base import Header, ImageFormat, Pixels, as_user_error
from unet_ddp.data.readers.read import READERS, Source, describe_readers, find_readers
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import UnreachableError, UserError, hides_bars
from unet_ddp.plugins import find

THUMBNAIL = 8
"""Pixels on a side of a thumbnail."""

AT_ONCE = 1 << 24
"""Samples whose squares are summed at a time."""
CHUNK = 32
"""Files per thread that are read at once."""

_MOST_PIXELS = 100_000_000  # a file of a few KB can ask for gigabytes
_MOST_VALUES = 1024  # kept of a mask: more are no classes in any case
_HELD = 16  # objects that are fetched at once, and as many ahead
_share = lru_cache(maxsize=256)(lambda header: header)  # one object for equal ones, with palette

ScannedFile = tuple[Path, bool, Stamp | None]
"""Its path, whether it is a mask, and an object's stamp."""


class ImageMetadata(NamedTuple):
    """Header and statistics of an image."""

    header: Header
    stamp: Stamp  # size and time of the file
    thumbnail: str  # 8x8 grey pixels, stretched, in base64; empty for an image of one colour
    num_pixels: int = 0  # that the statistics are of; 0 for 8-bit images, which need none
    low: float = 0.0
    high: float = 0.0
    sums: tuple[float, ...] = ()  # of the pixels per channel
    squares: tuple[float, ...] = ()  # sums of the squared pixels per channel
    place: tuple[Any, ...] | None = None  # on a map; see `OpenFile.place`


class MaskMetadata(NamedTuple):
    """Header and values of a mask."""

    header: Header
    stamp: Stamp
    values: tuple[int, ...]  # sorted
    counts: tuple[int, ...]  # pixels of each value
    place: tuple[Any, ...] | None = None  # on a map; see `OpenFile.place`


Metadata = ImageMetadata | MaskMetadata


class ScannedPair(NamedTuple):
    """A pair with the metadata of its files."""

    pair: Pair
    image: ImageMetadata
    mask: MaskMetadata


def scan(
    pairs: Pairs,
    *,
    nodata: float | None = None,
    channels: int | None = None,
    planes: bool = False,
    ignore: int | None = None,
) -> tuple[list[ScannedPair], dict[str, str]]:
    """Return the metadata of every pair, and why others can't be read, by name.

    All cores read, behind a bar if this is a terminal. `nodata` and `channels` describe the
    data set; None: each image's own, without alpha. `planes`: masks may have a band for each class, `ignore`:
    the value in them of pixels to ignore.
    """
    files = [
        file
        for pair in pairs
        for file in zip((pair.image, pair.mask), (False, True), pair.stamps, strict=True)
    ]
    paths = [path for path, *_ in files]
    readers = [sorted({each.missing() for each in find_readers(paths)}), describe_readers(paths)]
    scanner = _Scanner(pairs, nodata, channels, planes, ignore, readers)
    results: Iterable[Any] = scanner.read_all(files)
    results = tqdm(
        results, "checking files", len(files), unit="file", leave=False, disable=hides_bars()
    )
    try:
        found = list(results)
    finally:
        pairs.fetch_ahead([])
        scanner.known.save()
    scanned, errors = [], {}
    for pair, image, mask in zip(pairs, found[::2], found[1::2], strict=True):
        faults = [str(each) for each in (image, mask) if isinstance(each, UserError)]
        if faults:
            errors[pair.name] = "; ".join(faults)
        else:
            scanned.append(ScannedPair(pair, image, mask))
    return scanned, errors


class _Scanner:
    """Reads metadata, but of files that an earlier scan with these options has read."""

    def __init__(
        self,
        pairs: Pairs,
        nodata: float | None,
        channels: int | None,
        planes: bool,
        ignore: int | None,
        readers: object,
    ) -> None:
        self.pairs, self.options = pairs, (nodata, channels)
        self.planes, self.ignore = planes, ignore
        folder = pairs[0].mask.parent.resolve()
        key = f"{READERS} {folder} {nodata} {channels} {readers}"
        if planes:
            key += f" planes {ignore}"
        self.known = find("extras", "open_scans")(key)

    def read_all(self, files: list[ScannedFile]) -> Iterator[Metadata | UserError]:
        """Yield the metadata of each file in order, read by threads if not known."""
        workers, get = usable_cores(logical=True), self.known.get
        pool = ThreadPoolExecutor(workers)
        size = _HELD if any(stamp for *_, stamp in files) else CHUNK * workers
        try:
            for first in range(0, len(files), size):
                chunk, ahead = files[first : first + size], files[first : first + 2 * size]
                self.pairs.fetch_ahead(file[0] for file in ahead if file[2] and not get(file))
                found = [get(file) or pool.submit(self.read, file) for file in chunk]
                for result in found:
                    yield result.result() if isinstance(result, Future) else result
                self.known.save(is_end=False)
        finally:
            pool.shutdown(cancel_futures=True)

    def read(self, file: ScannedFile) -> Metadata | UserError:
        """Read a file's metadata and remember it; called by several threads."""
        path, is_mask, stamp = file
        found: Metadata
        try:
            planes = is_mask and self.planes
            with self.pairs.local(path, self.ignore) as local, Source(local, planes) as source:
                if is_mask:
                    found = read_mask_metadata(source)
                else:
                    found = read_image_metadata(source, *self.options)
                found = found._replace(place=source.place)
        except UnreachableError:  # the other files can't be read either
            raise
        except UserError as error:
            return error
        found = found._replace(stamp=stamp or found.stamp)
        self.known.put(file, found)
        return found


def read_image_metadata(
    source: Source, nodata: float | None = None, channels: int | None = None
) -> ImageMetadata:
    """Decode an image and return its metadata but its place; arguments as for `scan`."""
    header, stamp = _read_header(source)
    if header.dtype == "uint8":
        return ImageMetadata(header, stamp, _pack(source.thumbnail(THUMBNAIL)))
    whole = header.channels + header.has_alpha
    nodata = header.nodata if nodata is None else nodata
    form = ImageFormat(whole if channels == whole else header.channels, header.dtype, nodata)
    pixels, nodata_mask = source.image(form)  # (H, W, C), (H, W)
    grey = pixels.mean(axis=2, dtype=np.float32)[..., None]
    thumbnail = _pack(resize_area(grey, (THUMBNAIL, THUMBNAIL))[..., 0])
    kept = pixels[~nodata_mask] if nodata_mask is not None else pixels.reshape(-1, pixels.shape[2])
    if not len(kept):  # (pixels, C)
        return ImageMetadata(header, stamp, thumbnail)
    sums = squares = np.zeros(kept.shape[1])
    for part in np.array_split(kept, 1 + kept.size // AT_ONCE):
        values = part.astype(np.float64)
        sums, squares = sums + values.sum(axis=0), squares + np.square(values).sum(axis=0)
    low, high = float(kept.min()), float(kept.max())
    moments = tuple(sums.tolist()), tuple(squares.tolist())
    return ImageMetadata(header, stamp, thumbnail, len(kept), low, high, *moments)


def read_mask_metadata(source: Source) -> MaskMetadata:
    """Decode a mask and return its metadata but its place."""
    header, stamp = _read_header(source)
    codes = source.mask()
    if codes.size and codes.min() >= 0 and codes.max() < 65536:  # ten times as fast as sorting
        found = np.bincount(codes.ravel())
        values, counts = np.flatnonzero(found), found[found > 0]
    else:
        values, counts = np.unique(codes, return_counts=True)
    if len(values) > _MOST_VALUES:
        kept = np.sort(np.argsort(-counts, kind="stable")[: _MOST_VALUES - 2])
        kept = np.unique(np.concatenate([[0], kept, [len(values) - 1]]))
        values, counts = values[kept], counts[kept]
    return MaskMetadata(header, stamp, tuple(values.tolist()), tuple(counts.tolist()))


def _read_header(source: Source) -> tuple[Header, Stamp]:
    """Return header and stamp of a file that is safe to decode."""
    with as_user_error(source.path):
        stamp = find_stamp(source.path)
    header = source.header
    if header.width * header.height > _MOST_PIXELS:
        raise UserError(
            f"{source.path}: {header.width}x{header.height} pixels, more than are safe to decode while "
            f"training ({_MOST_PIXELS // 10**6} million); cut it into tiles"
        )
    return _share(header), stamp


def _pack(grey: Pixels | NDArray[np.float32]) -> str:
    """Return a thumbnail (8, 8) as text."""
    low, high = float(grey.min()), float(grey.max())
    if not high > low:
        return ""
    stretched = np.round((grey - low) * (255 / (high - low))).astype(np.uint8)
    return base64.b64encode(stretched.tobytes()).decode()
