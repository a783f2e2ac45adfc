"""Images of every format that is read, and odd ones: changed bytes, and sizes that do not fit the file."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.fuzz.mutations import Dice, mutate_bytes

_PNG, _TIFF, _NPY = b"\x89PNG\r\n\x1a\n", b"II*\0", b"\x93NUMPY"
_SIDES = (0, 1, 24, 4000, 12_000, 30_000, 2**31 - 1)

Pixels = NDArray[Any]


class Kind(NamedTuple):
    """A format of images."""

    ending: str
    channels: int
    dtype: str
    encode: Callable[[Pixels], bytes]


def _pillow(name: str, **options: Any) -> Callable[[Pixels], bytes]:
    def encode(pixels: Pixels) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(
            file, name, **options
        )
        return file.getvalue()

    return encode


def _tifffile(**options: Any) -> Callable[[Pixels], bytes]:
    def encode(pixels: Pixels) -> bytes:
        import tifffile

        file = io.BytesIO()
        tifffile.imwrite(file, pixels[..., 0] if pixels.shape[2] == 1 else pixels, **options)
        return file.getvalue()

    return encode


def _numpy(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


KINDS = {
    "jpeg": Kind(".jpg", 3, "uint8", _pillow("JPEG")),
    "png": Kind(".png", 3, "uint8", _pillow("PNG")),
    "png 16 bit": Kind(".png", 1, "uint16", _pillow("PNG")),
    "gif": Kind(".gif", 3, "uint8", _pillow("GIF")),
    "bmp": Kind(".bmp", 3, "uint8", _pillow("BMP")),
    "webp": Kind(".webp", 3, "uint8", _pillow("WEBP", lossless=True)),
    "tiff": Kind(".tif", 3, "uint8", _pillow("TIFF")),
    "tiff 16 bit": Kind(".tif", 1, "uint16", _tifffile()),
    "tiff 5 bands": Kind(".tif", 5, "uint16", _tifffile(planarconfig="contig", photometric="minisblack")),
    "tiff deflate": Kind(".tif", 3, "uint8", _tifffile(compression="zlib", photometric="rgb")),
    "npy": Kind(".npy", 3, "float32", _numpy),
}  # fmt: skip


def mutate_image(data: bytes, dice: Dice) -> bytes:
    """Return an image file with changed bytes, sometimes with right checksums; or a small huge one."""
    if dice.is_calm:
        return data
    odd = {_PNG: _odd_png, _TIFF: _odd_tiff, _NPY: _odd_npy}
    for magic, make in odd.items():
        if data.startswith(magic) and dice.random() < 0.1:
            return make(dice)
    if data.startswith(_PNG) and dice.random() < 0.25:
        return _with_odd_chunk(data, dice)
    changed = mutate_bytes(data, dice)
    return _with_checksums(changed) if data.startswith(_PNG) and dice.random() < 0.6 else changed


def _with_checksums(data: bytes) -> bytes:
    """Return the bytes of a PNG with the right checksum of each chunk."""
    changed, at = bytearray(data), len(_PNG)
    while at + 12 <= len(changed):
        end = at + 8 + int.from_bytes(changed[at : at + 4], "big")
        if end + 4 > len(changed):
            break
        changed[end : end + 4] = zlib.crc32(changed[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(changed)


def _with_odd_chunk(data: bytes, dice: Dice) -> bytes:
    """Return a PNG with one chunk more after its head."""
    name = dice.choice(
        (b"tRNS", b"PLTE", b"gAMA", b"iCCP", b"zTXt", b"eXIf", b"acTL", b"bKGD", b"IHDR")
    )
    packed = b"name\0\0" + _zeros(dice.choice((10, 3 * 10**9)))
    exif = (
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([dice.randrange(12)]) + bytes(6)
    )
    body = dice.choice((b"", bytes(2), bytes(13), b"\xff" * 700, packed, exif))
    chunk = struct.pack(">I", len(body)) + name + body + bytes(4)
    return _with_checksums(data[:33] + chunk + data[33:])


def _zeros(size: int) -> bytes:
    """Return a zlib stream of about `size` zero bytes, at most 3 GB, without making them."""
    packer = zlib.compressobj()
    first = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    head, block = first[:2], first[2:]
    return head + block * min(3000, size // 2**20 + 1) + packer.flush()


def _odd_png(dice: Dice) -> bytes:
    """Return a small file of an image of odd size, 16 bits per colour."""
    width, height = dice.choice(_SIDES), dice.choice(_SIDES)
    bits, colour = dice.choice((1, 8, 16, 16, 255)), dice.choice((0, 2, 2, 3, 4, 6, 7))
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, dice.choice((0, 0, 1)))
    chunks = ((b"IHDR", head), (b"IDAT", _zeros(width * height * 6)), (b"IEND", b""))
    sized = (struct.pack(">I", len(data)) + name + data + bytes(4) for name, data in chunks)
    return _with_checksums(_PNG + b"".join(sized))


def _odd_tiff(dice: Dice) -> bytes:
    """Return a small file with odd sizes, or with more in its strip than they say."""
    bands, side = dice.choice((1, 3, 5, 200, 65535)), dice.choice(_SIDES)
    packed = dice.random() < 0.5
    data = _zeros(dice.choice((10**4, 3 * 10**9))) if packed else bytes(100)
    tags = {
        256: side, 257: dice.choice((side, 24, 1)), 258: dice.choice((8, 16, 32, 64, 1)), 259: 8 if packed else 1,
        262: dice.choice((1, 2, 3)), 273: 400, 277: bands, 278: dice.choice((side, 1, 2**32 - 1)),
        279: len(data), 284: dice.choice((1, 2)), 339: dice.choice((1, 2, 3, 9)),
    }  # fmt: skip
    if dice.random() < 0.3:
        tags[dice.choice(list(tags))] = dice.choice((0, 2**16, 2**31, 2**32 - 1))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return (_TIFF + struct.pack("<I", 8) + directory).ljust(400, b"\0") + data


def _odd_npy(dice: Dice) -> bytes:
    """Return an array file of odd shape or type."""
    side = dice.choice(_SIDES)
    shape = dice.choice(
        ((side, side), (side, side, 3), (3, side, side), (24, 32, side), (-1, 3), (), (side,) * 9)
    )
    dtype = dice.choice(
        ("<f4", "|O", "<f8", "<c16", "<U9", "<M8[s]", "|V5", "|b1", ">u2", "<i8", "x", "<f2")
    )
    order = dice.choice((True, False))
    text = f"{{'descr': {dtype!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    head = dice.choice((text, text.replace("'", ""), "[" * 9000, text * 2, text.ljust(200, "\0")))
    return (
        _NPY
        + b"\1\0"
        + struct.pack("<H", len(head))
        + head.encode()
        + bytes(dice.choice((0, 9216)))
    )
