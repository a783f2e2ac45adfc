"""A command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source


def measure(argv: Sequence[str] | None) -> int:
    """Print the brightness of the images that are named; return the exit status."""
    for name in argv or ():
        with Source(Path(name)) as source:
            pixels, _ = source.image(ImageFormat(3, "uint8"))
            print(f"{name}: {pixels.mean():.1f}")
    return 0
