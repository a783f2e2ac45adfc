"""An object as a file of which only the parts that are asked for are fetched."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path

from unet_ddp.extras.cloud.clients import client
from unet_ddp.extras.cloud.objects import find_stamp

_BLOCK = 1 << 16  # bytes: the tags of a TIFF are read in small parts
_KEPT = 64  # blocks


class Ranges:
    """An object of which parts are fetched; its last small ones are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size, _ = find_stamp(path)
        self._block = lru_cache(_KEPT)(lambda k: self._fetch(k * _BLOCK, (k + 1) * _BLOCK))

    def read(self, first: int, end: int) -> bytes:
        """Return the bytes from `first` to `end`; errors are UserErrors that name the address."""
        if end - first > _BLOCK:
            return self._fetch(first, end)
        begun = first // _BLOCK
        found = b"".join(self._block(k) for k in range(begun, (end - 1) // _BLOCK + 1))
        return found[first - begun * _BLOCK : end - begun * _BLOCK]

    def _fetch(self, first: int, end: int) -> bytes:
        with client(self.path) as (store, key):
            import obstore

            return bytes(obstore.get_range(store, key, start=first, end=min(end, self.size)))


class RangeFile(io.RawIOBase):
    """An object, open to read."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges, self._place = ranges, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return the new place, `offset` bytes from the start, from here or from the end."""
        self._place = offset + (0, self._place, self.ranges.size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        first, end = self._place, self.ranges.size
        if size >= 0:
            end = min(end, first + size)
        self._place = max(first, end)
        return self.ranges.read(first, end) if first < end else b""
