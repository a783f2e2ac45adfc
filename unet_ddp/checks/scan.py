"""Scan of all files before the first step: each is decoded once, and its metadata cached."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.checks.metadata import (
    ImageMetadata,
    MaskMetadata,
    Metadata,
    ScannedFile,
    ScannedPair,
)
from unet_ddp.checks.scan_cache import ScanCache
from unet_ddp.data.pairs import Pairs, Stamp, find_stamp
from unet_ddp.data.readers.base import Header, ImageFormat, Pixels, Scene, as_user_error
from unet_ddp.data.readers.read import READERS, Source, describe_readers, find_readers
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import UnreachableError, UserError, hides_bars

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
    files = []
    for pair in pairs:
        image_stamp, mask_stamp = pair.stamps
        files.append(ScannedFile(pair.image, False, image_stamp))
        files.append(ScannedFile(pair.mask, True, mask_stamp))
    paths = [file.path for file in files]
    missing = sorted(each.missing() for each in find_readers(paths) if issubclass(each, Scene))
    key = f"{READERS} {pairs[0].mask.parent.resolve()} {nodata} {channels} {missing} {describe_readers(paths)}"
    if planes:
        key += f" bands {ignore}"
    scanner = _Scanner(pairs, nodata, channels, planes, ignore, ScanCache(key))
    bar = partial(tqdm, unit="file", leave=False, disable=hides_bars())
    try:
        found: list[Any] = list(bar(scanner.read_all(files), "checking files", len(files)))
    finally:
        pairs.fetch_ahead([])
        scanner.known.save()
    scanned = []
    errors = {}
    for pair, image, mask in zip(pairs, found[::2], found[1::2], strict=True):
        faults = [str(each) for each in (image, mask) if isinstance(each, UserError)]
        if faults:
            errors[pair.name] = "; ".join(dict.fromkeys(faults))  # an item has one for both
        else:
            scanned.append(ScannedPair(pair, image, mask))
    return scanned, errors


@dataclass
class _Scanner:
    """Reads metadata, but of files that an earlier scan with these options has read."""

    pairs: Pairs
    nodata: float | None
    channels: int | None
    planes: bool
    ignore: int | None
    known: ScanCache  # what earlier scans found

    def read_all(self, files: list[ScannedFile]) -> Iterator[Metadata | UserError]:
        """Yield the metadata of each file in order, read by threads if not known."""
        get = self.known.get
        workers = usable_cores(logical=True)
        pool = ThreadPoolExecutor(workers)
        size = _HELD if any(file.stamp for file in files) else CHUNK * workers
        try:
            for first in range(0, len(files), size):
                ahead = files[first : first + 2 * size]
                self.pairs.fetch_ahead(f.path for f in ahead if f.stamp and not get(f))
                results = [get(file) or pool.submit(self.read, file) for file in ahead[:size]]
                for result in results:
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
                    found = read_mask_metadata(source, stamp)
                else:
                    found = read_image_metadata(source, self.nodata, self.channels, stamp)
                found = found._replace(place=source.place)
        except UnreachableError:  # the other files can't be read either
            raise
        except UserError as error:
            return error
        self.known.put(file, found)
        return found


def read_image_metadata(
    source: Source,
    nodata: float | None = None,
    channels: int | None = None,
    stamp: Stamp | None = None,
) -> ImageMetadata:
    """Decode an image and return its metadata but its place; arguments as for `scan`."""
    header, stamp = _read_header(source, stamp)
    if header.dtype == "uint8":
        return ImageMetadata(header, stamp, _pack(read_picture(source, nodata)))
    if nodata is None:
        nodata = header.nodata
    if not header.has_alpha or channels != header.channels + 1:
        channels = header.channels
    pixels, nodata_mask = source.image(ImageFormat(channels, header.dtype, nodata))  # (H, W, C)
    thumbnail = _pack(_picture_of(pixels, nodata_mask))
    counted = pixels.reshape(-1, channels)  # (pixels, C)
    if nodata_mask is not None:
        counted = counted[~nodata_mask.ravel()]
    if not len(counted):
        return ImageMetadata(header, stamp, thumbnail)
    sums = np.zeros(channels)
    squares = np.zeros(channels)
    for part in np.array_split(counted, 1 + counted.size // AT_ONCE):
        values = part.astype(np.float64)
        sums += values.sum(axis=0)
        squares += np.square(values).sum(axis=0)
    return ImageMetadata(
        header,
        stamp,
        thumbnail,
        len(counted),
        float(counted.min()),
        float(counted.max()),
        tuple(sums.tolist()),
        tuple(squares.tolist()),
    )


def read_picture(source: Source, nodata: float | None = None) -> NDArray[np.float32]:
    """Return an image in grey, (THUMBNAIL, THUMBNAIL), its pixels without data as bright as the others on average.

    Edges of such pixels that are alike make no images alike. `nodata` is their value; default: the file's.
    """
    header = source.header
    nodata = header.nodata if nodata is None else nodata
    if nodata is None:
        return source.thumbnail(THUMBNAIL)
    return _picture_of(*source.image(ImageFormat(header.channels, header.dtype, nodata)))


def _picture_of(pixels: Pixels, nodata_mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
    grey = pixels.mean(axis=2, dtype=np.float32, keepdims=True)
    if nodata_mask is not None and not nodata_mask.all():
        grey[nodata_mask] = grey[~nodata_mask].mean(dtype=np.float64)
    return resize_area(grey, (THUMBNAIL, THUMBNAIL))[..., 0]


def read_mask_metadata(source: Source, stamp: Stamp | None = None) -> MaskMetadata:
    """Decode a mask and return its metadata but its place."""
    header, stamp = _read_header(source, stamp)
    codes = source.mask()
    if codes.size and codes.min() >= 0 and codes.max() < 65536:  # ten times as fast as sorting
        counts = np.bincount(codes.ravel())
        values = np.flatnonzero(counts)
        counts = counts[values]
    else:
        values, counts = np.unique(codes, return_counts=True)
    if len(values) > _MOST_VALUES:
        commonest = np.argsort(-counts, kind="stable")[: _MOST_VALUES - 2]
        kept = np.unique([0, *commonest, len(values) - 1])
        values = values[kept]
        counts = counts[kept]
    hides_shape = len(values) == 1 and source.hides_shape(codes)
    found = tuple(values.tolist()), tuple(counts.tolist())
    return MaskMetadata(header, stamp, *found, hides_shape=hides_shape)


def _read_header(source: Source, stamp: Stamp | None) -> tuple[Header, Stamp]:
    """Return header and stamp, if that is not known, of a file that is safe to decode."""
    with as_user_error(source.path):
        stamp = stamp or find_stamp(source.path)
    header = source.header
    if header.width * header.height > _MOST_PIXELS:
        raise UserError(
            f"{source.path}: {header.width}x{header.height} pixels, more than are safe to decode while "
            f"training ({_MOST_PIXELS // 10**6} million); cut it into tiles"
        )
    return _share(header), stamp


def _pack(grey: Pixels | NDArray[np.float32]) -> str:
    """Return a thumbnail of one channel as text."""
    low = float(grey.min())
    high = float(grey.max())
    if not high > low:
        return ""
    factor = 255 / (high - low)
    stretched = np.round((grey - low) * factor).astype(np.uint8)
    return base64.b64encode(stretched.tobytes()).decode()
