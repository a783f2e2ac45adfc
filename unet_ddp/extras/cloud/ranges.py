"""An object as a file of which only the parts that are asked for are fetched."""

from __future__ import annotations

import io
from pathlib import Path

from unet_ddp.extras.cloud.clients import client
from unet_ddp.extras.cloud.objects import find_stamp

_LEAST = 1 << 16  # bytes of a request: the tags of a TIFF are read in small parts


class RangeFile(io.RawIOBase):
    """An object, open to read parts of it; errors are UserErrors that name its address."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size, _ = find_stamp(path)
        self._place, self._first, self._held = 0, 0, b""

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return the new place, `offset` bytes from the start, from here or from the end."""
        self._place = offset + (0, self._place, self.size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        first = self._place
        end = self.size if size < 0 else min(self.size, first + size)
        if end <= first:
            return b""
        if not self._first <= first <= end <= self._first + len(self._held):
            last = min(self.size, max(end, first + _LEAST))
            with client(self.path) as (store, key):
                import obstore

                self._held = bytes(obstore.get_range(store, key, start=first, end=last))
            self._first = first
        self._place = end
        return self._held[first - self._first : end - self._first]
