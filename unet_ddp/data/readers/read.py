"""Image files of any format, opened once and read as arrays, reduced while they are read.

Images keep their type (uint8, uint16, int16, float32) and come with the data set's number of
channels; masks come as the values that the file holds. The orientation that a file notes is
applied. What is a property of the data set is never decided per image. What can't be read is a
UserError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.arrays import NpyReader
from unet_ddp.data.readers.base import OpenFile
from unet_ddp.data.readers.fit import fit_pixels
from unet_ddp.data.readers.header import TIFFS, Codes, Header, ImageFormat, Pixels, as_user_error
from unet_ddp.data.readers.maps import MapRows, Place
from unet_ddp.data.readers.pillow import PillowReader
from unet_ddp.data.readers.tiff import OpenTiff
from unet_ddp.errors import UserError
from unet_ddp.storage import StorageError, local_file

READERS = 7
"""Version of the readers, and of what the scan keeps: caches of another one are not used."""


def _open(path: Path, local: Path) -> OpenFile:
    """Return an open file of this machine, whose name in messages is `path`."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return NpyReader(path, local)
    file = local.open("rb")
    try:
        return OpenTiff(path, local, file) if suffix in TIFFS else PillowReader(path, file)
    except BaseException:
        file.close()
        raise


class Source:
    """An image file, open from its first use until `close`; what it says of itself is read once.

    One thread uses it at a time. An object in storage is fetched once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: OpenFile | None = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Source], tuple[Path]]:
        return Source, (self.path,)  # another process opens the file itself

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; using it again opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @contextmanager
    def _reading(self) -> Iterator[OpenFile]:
        """Yield the open file, and make an error of reading it a UserError of one line."""
        if self._opened is None:
            with local_file(self.path) as local, as_user_error(local):
                self._opened = _open(self.path, local)
        with as_user_error(self.path):
            yield self._opened

    @cached_property
    def place(self) -> Place | None:
        """Place on a map; None without map coordinates, without rasterio, or if unreadable."""
        try:
            with self._reading() as opened:
                return opened.place
        except StorageError:  # the next use would wait for it, too
            raise
        except UserError:
            return None

    @cached_property
    def header(self) -> Header:
        """Size and format; pixels are not decoded."""
        with self._reading() as opened:
            header = opened.whole.header
        if self.place is None:
            return header
        return replace(header, ground_resolution=self.place.resolution)

    def image(
        self, wanted: ImageFormat, *, scale: float = 1.0
    ) -> tuple[Pixels, NDArray[np.bool_] | None]:
        """Return the image (H, W, C) as `wanted`, the data set's format, at `scale` of its size.

        With it comes a mask (H, W) of its pixels without data, which are filled; None if the data
        set has no no-data value. See `fit_pixels`.
        """
        with self._reading() as opened:
            pixels, size = opened.whole.read(wanted, scale)
            has_alpha = pixels.shape[2] == wanted.channels + 1 and opened.whole.header.has_alpha
        return fit_pixels(pixels, wanted, size, self.path, has_alpha=has_alpha)

    def rows(self, wanted: ImageFormat, *, at_least: int = 0) -> MapRows | None:
        """Return the image by rows, if it has so many pixels; None if only the whole can be read."""
        with suppress(UserError), self._reading() as opened:
            return opened.rows(wanted, at_least)
        return None

    def mask(self, *, scale: float = 1.0) -> Codes:
        """Return the mask's values (H, W) at `scale`, every one of them a value that the file holds.

        Grey values and palette indices of 8 bit are uint8, others int32; colours are 0xRRGGBB, int32.
        """
        with self._reading() as opened:
            values = opened.whole.read_mask(scale)
        if values.ndim == 2:
            return values if values.dtype == np.uint8 else values.astype(np.int32, copy=False)
        if values.min() < 0 or values.max() > 255:
            raise UserError(
                f"{self.path}: colours beyond 0 to 255; save the mask with 8 bit, or in grey"
            )
        packed = values[..., 0].astype(np.int32)
        for band in (1, 2):  # in place: such a mask may be large
            packed <<= 8
            packed |= values[..., band]
        return packed

    def thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size), decoded as small as its format allows."""
        with self._reading() as opened:
            return opened.whole.read_thumbnail(size)

    def mark_nodata(self, ids: NDArray[Any], mark: int) -> int:
        """Set `ids` (H, W) to `mark` where the file says that it has no data; return how often."""
        with self._reading() as opened:
            return opened.mark_nodata(ids, mark)


def read_mask(path: Path, *, scale: float = 1.0) -> Codes:
    """Return the mask's values (H, W) at `scale`; see `Source.mask`."""
    with Source(path) as source:
        return source.mask(scale=scale)
