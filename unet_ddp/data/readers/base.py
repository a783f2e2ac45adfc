"""Readers of image files: what one must have, so that its files are trained on and predicted.

A reader is a class of open files; it takes a path. It is found by the file's suffix: in
plugins.py, as the entry point of an installed package (group `unet_ddp.readers`, named as the
suffix without its dot), or at the import path that --reader names. One with all of its pixels in
memory needs two methods:

    class XyzFile(BandsFile):
        suffixes = (".xyz",)

        @property
        def header(self) -> Header:
            return Header(width, height, channels, "uint8")

        def read_bands(self) -> NDArray[Any]:
            return pixels  # (height, width, channels)

What it raises becomes one line with the file's name; a UserError stays as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.header import Header, ImageFormat, Pixels
from unet_ddp.errors import UserError


class Rows(Protocol):
    """An image of which some rows are read at a time."""

    height: int
    width: int

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom` (exclusive), (rows, W, C)."""


class Place(Protocol):
    """The place of an image on a map; what else it has is its reader's."""

    def write_to(self, mask: Path, nodata: int | None) -> None:
        """Give a new TIFF this place, and its value of no data."""


class OpenFile(ABC):
    """An open image file, and what is known of all files of its suffixes."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Those of its files, in lower case with a dot."""
    may_be_scenes: ClassVar[bool] = False
    """True if such files may exceed the memory, or have a place on a map."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:  # noqa: B027  # not all need it
        """Close the file."""

    # -- one file ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def header(self) -> Header:
        """Properties of the file; pixels are not decoded."""

    @abstractmethod
    def read(self, wanted: ImageFormat, scale: float) -> tuple[Pixels, tuple[int, int]]:
        """Return the pixels (H, W, C), perhaps reduced, and the size that `scale` asks for."""

    @abstractmethod
    def read_mask(self, scale: float) -> NDArray[Any]:
        """Return a mask's values (H, W), or its colours (H, W, 3), at `scale`."""

    @abstractmethod
    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size)."""

    def rows(self, wanted: ImageFormat, at_least: int) -> Rows | None:
        """Return the image by rows, if it has so many pixels; None if only the whole can be read."""
        return None

    @property
    def place(self) -> Any:
        """Place on a map: a `Place` that is a tuple of plain values; None without map coordinates."""
        return None

    def mark_nodata(self, ids: NDArray[Any], mark: int) -> int:
        """Set `ids` (H, W) to `mark` where the file says that it has no data; return how often."""
        return 0

    def find_scale(self, wanted: ImageFormat, scale: float) -> float:
        """Return the scale of this file, where images are `wanted` at one ground resolution."""
        return scale

    def find_format(self, wanted: ImageFormat) -> ImageFormat:
        """Return the format as which this file is predicted: with its own value of no data."""
        return wanted

    # -- many files --------------------------------------------------------------------------

    @classmethod
    def missing(cls) -> str:
        """Return what to install so that all is read of such files; empty if all is."""
        return ""

    @staticmethod
    def find_places(sources: Sequence[Any], metres: float | None) -> set[Any]:
        """Return those of the images to predict, each a `Source`, that have map coordinates.

        Raises:
            UserError: their ground resolutions differ and the network's, `metres`, is None.
        """
        return set()

    @staticmethod
    def check_pairs(scanned: Sequence[Any]) -> list[str]:
        """Return the faults of a set of `ScannedPair`s with such files, a line each."""
        return []

    @staticmethod
    def check_kinds(config: Any, table: Any) -> Any:
        """Return the `Table` of a set with such images, as a `DataConfig` has them read.

        Raises:
            UserError: they do not fit together.
        """
        if config.ground_resolution is not None:
            raise UserError(
                f"--ground-resolution: {table.groups[0][2].image} has no map coordinates with "
                "a CRS; to read them needs pip install 'unet-ddp[geo]'"
            )
        return table
