"""PNG files of masks, written band by band.

Pillow needs the whole picture in memory, tries every filter on every row, and packs no bits faster
than it compresses them: half of what a photograph costs beside the network. A mask is runs of one
value, for which no filter and zlib's run-length strategy are the best; and a PNG is no more than
rows that are compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_NO_FILTER = 0
_GREY, _COLOUR, _INDEXED = 0, 2, 3


@dataclass(frozen=True)
class Kind:
    """What the pixels of a PNG are."""

    depth: int
    """Bits of a sample: 1 for indices 0 and 1, 8, or 16 for grey."""
    colour: int
    palette: bytes = b""
    """Red, green and blue of each index."""

    @classmethod
    def of(cls, sample: NDArray[np.generic], palette: bytes | None, *, most: int) -> Kind:
        """That of pictures like `sample`, (H, W) or (H, W, 3), whose largest value is `most`.

        Grey pixels keep their 8 bits, as programs disagree on what grey of 1 or 2 bits means;
        indices mean themselves.
        """
        if palette is not None:
            depth = 1 if most <= 1 else 8
            return cls(depth, _INDEXED, palette[: 3 << depth])
        return cls(8 * sample.dtype.itemsize, _COLOUR if sample.ndim == 3 else _GREY)


def write_png(
    file: IO[bytes], bands: Iterable[NDArray[np.generic]], size: tuple[int, int], kind: Kind
) -> None:
    """A PNG of `size` (height, width) of bands (rows, W) or (rows, W, 3) from the top."""
    height, width = size
    file.write(_SIGNATURE)
    _write_chunk(
        file, b"IHDR", struct.pack(">IIBBBBB", width, height, kind.depth, kind.colour, 0, 0, 0)
    )
    if kind.palette:
        _write_chunk(file, b"PLTE", kind.palette)
    strategy = zlib.Z_DEFAULT_STRATEGY if kind.colour == _COLOUR else zlib.Z_RLE  # 1 byte apart
    press = zlib.compressobj(1, strategy=strategy)
    for band in bands:
        _write_chunk(file, b"IDAT", press.compress(_to_bytes(band, kind.depth).data))
    _write_chunk(file, b"IDAT", press.flush())
    _write_chunk(file, b"IEND", b"")


def _to_bytes(band: NDArray[np.generic], depth: int) -> NDArray[np.uint8]:
    """Rows as a PNG has them, each after the number of its filter."""
    if depth == 1:
        pixels = np.packbits(band.astype(bool), axis=1)
    elif depth == 16:
        pixels = band.astype(">u2").view(np.uint8)
    else:
        pixels = band.reshape(len(band), -1).view(np.uint8)
    rows = np.empty((len(band), 1 + pixels.shape[1]), np.uint8)
    rows[:, 0] = _NO_FILTER
    rows[:, 1:] = pixels
    return rows


def _write_chunk(file: IO[bytes], kind: bytes, content: bytes) -> None:
    if content or kind == b"IEND":
        file.write(struct.pack(">I", len(content)) + kind + content)
        file.write(struct.pack(">I", zlib.crc32(content, zlib.crc32(kind))))
