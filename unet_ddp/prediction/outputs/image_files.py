"""PNG and TIFF files of masks, written in bands.

The PNG is kept as our own: Pillow and OpenCV take 14 to 25 ms where this takes 1.5 to 5, and need the whole
image in memory. They try filters and match strings; a mask is runs of one value.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PROGRAM = "unet_ddp"
"""The name of the software in a file, before a mark."""
_NO_FILTER = 0
_TILE = 256
_GREY, _COLOUR, _INDEXED = 0, 2, 3


def write_png(
    file: IO[bytes],
    bands: Iterable[NDArray[np.generic]],
    shape: Sequence[int],
    *,
    depth: int = 8,
    palette: bytes = b"",
    mark: str = "",
) -> None:
    """Write a PNG of a `shape` (H, W), or (H, W, 3) for colours, from its bands, top first.

    `depth` is the bits of a value: 1 for indices 0 and 1, 8, or 16 for grey, of which programs disagree
    on what 1 bit means. `palette` has red, green and blue of each index. A `mark` is written after the
    name of the software.
    """
    height, width, *colours = shape
    kind = _COLOUR if colours else _GREY
    if palette:
        kind = _INDEXED
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    file.write(_SIGNATURE)
    _write_chunk(file, b"IHDR", header)
    if mark:
        _write_chunk(file, b"tEXt", f"Software\0{PROGRAM} {mark}".encode())
    if palette:
        _write_chunk(file, b"PLTE", palette[: 3 << depth])
    # Z_RLE finds runs of equal bytes: equal pixels, unless a pixel has three.
    compressor = zlib.compressobj(1, strategy=zlib.Z_DEFAULT_STRATEGY if colours else zlib.Z_RLE)
    for band in bands:
        compressed = compressor.compress(_pack(band, depth).data)
        if compressed:
            _write_chunk(file, b"IDAT", compressed)
    _write_chunk(file, b"IDAT", compressor.flush())
    _write_chunk(file, b"IEND", b"")


def _pack(band: NDArray[np.generic], depth: int) -> NDArray[np.uint8]:
    """Return the bytes of rows, each after that of its filter."""
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
    file.write(struct.pack(">I", len(content)) + kind + content)
    file.write(struct.pack(">I", zlib.crc32(content, zlib.crc32(kind))))


def write_tiff(path: Path, ids: Mask, labels: Labels, mark: str, *, has_colours: bool) -> None:
    """Write a TIFF of class ids, with the pixels of `labels.to_image`, in tiles: the mask may exceed the memory.

    With `has_colours`, grey values of 8 bit have a colour table too.
    """
    import tifffile

    sample = labels.to_image(ids[:1])
    pixels = np.asarray(sample)
    photometric, colormap = "rgb" if pixels.ndim == 3 else "minisblack", None
    if sample.mode == "P" or (has_colours and sample.mode == "L"):
        photometric, colormap = "palette", np.zeros((3, 256), np.uint16)
        colormap[:, labels.values] = np.array(labels.colours, np.uint16).T * 257
    tifffile.imwrite(
        path,
        _tiles(ids, labels),
        shape=(*ids.shape, *pixels.shape[2:]),
        dtype=pixels.dtype,
        photometric=photometric,
        colormap=colormap,
        tile=(_TILE, _TILE),
        compression="zlib",
        buffersize=1 << 26,  # bytes of tiles at once; the default holds 512 MB
        metadata=None,
        software=f"{PROGRAM} {mark}" if mark else None,
    )


def _tiles(ids: Mask, labels: Labels) -> Iterator[NDArray[Any]]:
    """Yield the tiles row by row, padded to full size."""
    for top in range(0, len(ids), _TILE):
        band = labels.to_values(ids[top : top + _TILE])
        for left in range(0, band.shape[1], _TILE):
            tile = band[:, left : left + _TILE]
            height, width, *channels = tile.shape
            padded = np.zeros((_TILE, _TILE, *channels), tile.dtype)
            padded[:height, :width] = tile
            yield padded
