"""An open image file as its library reads it: the part of a `Source` that each format has its own of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.header import Header, ImageFormat, Pixels
from unet_ddp.data.readers.maps import MapRows, Place


class OpenFile(ABC):
    """An open file; `path` is its name in messages. `Source` makes what is raised one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def whole(self) -> Reader:
        """The reader of the header and of all pixels."""

    @property
    def place(self) -> Place | None:
        """Place on a map; None if it has no map coordinates."""
        return None

    def rows(self, wanted: ImageFormat, at_least: int) -> MapRows | None:
        """Return the image by rows, if it has so many pixels; None if only the whole can be read."""
        return None

    def mark_nodata(self, ids: NDArray[Any], mark: int) -> int:
        """Set `ids` (H, W) to `mark` where the file says that it has no data; return how often."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class Reader(OpenFile):
    """An open file that one library reads."""

    @property
    def whole(self) -> Reader:
        """The reader itself."""
        return self

    @property
    @abstractmethod
    def header(self) -> Header:
        """Properties of the file but the ground resolution; pixels are not decoded."""

    @abstractmethod
    def read(self, wanted: ImageFormat, scale: float) -> tuple[Pixels, tuple[int, int]]:
        """Return the pixels (H, W, C), perhaps reduced, and the size that `scale` asks for."""

    @abstractmethod
    def read_mask(self, scale: float) -> NDArray[Any]:
        """Return a mask's values (H, W), or its colours (H, W, 3), at `scale`."""

    @abstractmethod
    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size)."""
