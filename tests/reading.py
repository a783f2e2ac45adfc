"""What a file says, for tests: it is opened and closed again."""

from __future__ import annotations

from pathlib import Path

from unet_ddp.data.readers.base import Header, ImageFormat, Pixels
from unet_ddp.data.readers.read import Source


def read_header(path: Path) -> Header:
    """Return size and format of the image at `path`."""
    with Source(path) as source:
        return source.header


def read_image(path: Path, wanted: ImageFormat, *, scale: float = 1.0) -> Pixels:
    """Return the image (H, W, C) as `wanted`, the data set's format, at `scale` of its size."""
    with Source(path) as source:
        return source.image(wanted, scale=scale)[0]
