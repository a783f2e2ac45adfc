"""PNG files, read by Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unet_ddp.prediction.outputs.image_files import write_png

PALETTE = bytes(range(9)) + bytes(759)


def encode(pixels: np.ndarray, height: int, **kind: Any) -> bytes:
    file = io.BytesIO()
    bands = (pixels[top : top + height] for top in range(0, len(pixels), height))
    write_png(file, bands, pixels.shape, **kind)
    return file.getvalue()


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    found, at = [], 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length])[0] == zlib.crc32(
            name + data
        )
        found.append((name, data))
        at += 12 + length
    return found


@pytest.mark.parametrize("height", [1, 7, 100])
@pytest.mark.parametrize(
    ("dtype", "shape", "largest", "palette", "header", "mode"),
    [
        (np.uint8, (), 255, b"", (8, 0), "L"),
        (np.uint16, (), 65535, b"", (16, 0), "I;16"),
        (np.uint8, (3,), 255, b"", (8, 2), "RGB"),
        (np.uint8, (), 1, PALETTE, (1, 3), "P"),
        (np.uint8, (), 2, PALETTE, (8, 3), "P"),
    ],
)
def test_pillow_reads_what_was_written(
    rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], largest: int,
    palette: bytes, header: tuple[int, int], mode: str, height: int,
) -> None:  # fmt: skip
    pixels = rng.integers(0, largest, (23, 13, *shape), dtype, endpoint=True)
    content = encode(pixels, height, depth=header[0], palette=palette)
    image = Image.open(io.BytesIO(content))
    assert image.mode == mode and image.size == (13, 23)
    assert np.array_equal(np.asarray(image), pixels)
    names = [name for name, _ in chunks(content)]
    assert names[0] == b"IHDR" and names[-1] == b"IEND" and names.count(b"IEND") == 1
    assert all(data for name, data in chunks(content) if name == b"IDAT")
    fields = struct.unpack(">IIBBBBB", chunks(content)[0][1])
    assert fields == (13, 23, *header, 0, 0, 0)
    stored = dict(chunks(content)).get(b"PLTE")
    assert stored == (palette[: 3 << header[0]] or None)


@pytest.mark.parametrize(
    ("channels", "strategy"), [((), zlib.Z_RLE), ((3,), zlib.Z_DEFAULT_STRATEGY)]
)
def test_runs_are_found_in_pixels_of_one_byte(
    rng: np.random.Generator, channels: tuple[int, ...], strategy: int
) -> None:
    """What zlib finds else takes it longer."""
    pixels = rng.integers(0, 2, (20, 30, *channels), np.uint8).repeat(5, 1)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    compressor = zlib.compressobj(1, strategy=strategy)
    expected = compressor.compress(raw) + compressor.flush()
    parts = [data for name, data in chunks(encode(pixels, 20)) if name == b"IDAT"]
    assert b"".join(parts) == expected


def test_runs_of_one_value_are_small() -> None:
    pixels = np.zeros((400, 400), np.uint8)
    pixels[100:300, 100:300] = 255
    assert len(encode(pixels, 50)) < 2500
    colours = np.stack([pixels, 255 - pixels, pixels + 9], axis=2)
    assert len(encode(colours, 50)) < 2 * 2500
