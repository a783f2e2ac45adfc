"""An object as a file of which only the parts that are asked for are fetched."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from unet_ddp.data.pairs import Stamp
from unet_ddp.extras.cloud.clients import ask
from unet_ddp.extras.cloud.objects import get_range

BLOCK = 1 << 16  # bytes: the tags of a TIFF are read in small parts
_KEPT = 256  # blocks, of all objects
_SMALL = 4 * BLOCK  # bytes of an object that one request fetches


class RangeFile(io.RawIOBase):
    """An object, open to read; its errors are UserErrors that name the address."""

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self._path, self._stamp, self._at = path, stamp, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return the new place, `offset` bytes from the start, from here or from the end."""
        self._at = offset + (0, self._at, self._stamp[0])[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes, and return how many they are."""
        size, first = self._stamp[0], self._at
        end = min(size, first + len(buffer))
        if end <= first:
            return 0
        if end - first > BLOCK:
            found = get_range(self._path, first, end)
        else:
            begun = first // BLOCK
            blocks = range(begun, -(-end // BLOCK))
            found = b"".join(read_block(self._path, self._stamp, number) for number in blocks)
            found = found[first - begun * BLOCK : end - begun * BLOCK]
        buffer[: len(found)] = found
        self._at = end
        return len(found)


@lru_cache(_KEPT)
def read_block(path: Path, stamp: Stamp, number: int) -> bytes:
    """Return a block of an object as it was at `stamp`; the last ones are kept."""
    return get_range(path, number * BLOCK, min((number + 1) * BLOCK, stamp[0]))


def open_parts(path: Path) -> IO[bytes]:
    """Return an object as a file: a small one is fetched whole, of a large one the parts that are read."""
    content, stamp = ask(path, _get_small)
    return io.BytesIO(content) if content is not None else cast("IO[bytes]", RangeFile(path, stamp))


def _get_small(store: Any, key: str) -> tuple[bytes | None, Stamp]:
    """Return the content of an object, None if it is large, and its stamp."""
    import obstore

    found = obstore.get(store, key)
    meta = found.meta
    stamp = meta["size"], int(meta["last_modified"].timestamp() * 1e9)
    return bytes(found.bytes()) if meta["size"] <= _SMALL else None, stamp
