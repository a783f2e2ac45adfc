"""A reader of .field files: two sizes of 4 bytes, then the pixels of three channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.bands import BandsFile
from unet_ddp.data.readers.base import Header


class FieldFile(BandsFile):
    """An open file."""

    suffixes = (".field",)

    @property
    def header(self) -> Header:
        """Its size; always three channels of 8 bits."""
        height, width = np.fromfile(self.path, "<u4", count=2)
        return Header(int(width), int(height), 3, "uint8")

    def read_bands(self) -> NDArray[Any]:
        """Return the pixels (H, W, 3)."""
        pixels = np.fromfile(self.path, np.uint8, offset=8)
        return pixels.reshape(self.header.height, self.header.width, 3)
