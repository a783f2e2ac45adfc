"""Readers of image files: what one must have, so that its files are trained on and predicted.

A reader is a class of open files; it takes a path. It is found by the file's suffix: in
plugins/built_in/, as the entry point of an installed package (group `unet_ddp.readers`, named as the
suffix without its dot), or at the import path that --reader names. One with all of its pixels in
memory needs two methods:

    class XyzFile(BandsFile):
        suffixes = (".xyz",)

        @property
        def header(self) -> Header:
            return Header(width, height, channels, "uint8")

        def read_bands(self) -> NDArray[Any]:
            return pixels  # (height, width, channels)

Its exceptions become one line with the file's name; a UserError stays as it is.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from unet_ddp.data.readers.microscopes import advise_export
from unet_ddp.errors import UserError, words_of
from unet_ddp.files import refuse_special
from unet_ddp.files.contents import advise_on, describe_content, explain_missing

Pixels = NDArray[Any]
"""(H, W, C)"""

Codes = NDArray[Any]
"""(H, W): the values of a mask."""

DTYPES = ("uint8", "uint16", "int16", "float32")
_STORED_AS = {"float64": "float32", "float16": "float32", "int8": "int16", "bool": "uint8"}
MOST_BYTES = 300_000_000
"""Largest size of the pixels of a small file: 100 million of 8-bit colour, a data set's most."""
MOST_RATIO = 32
"""Of pixels to file, in larger ones: real images have up to about 20."""

_NO_MEMORY = "not enough memory to read it; use fewer --workers, or cut it into tiles"
_REASONS = {
    FileNotFoundError: "not found",
    PermissionError: "no permission to read it",
    IsADirectoryError: "is a folder, not an image; give its images, or rename or remove it",
    MemoryError: _NO_MEMORY,
}

# The libraries report damage, odd tags and large images once per reading. What matters is an error
# of ours. Set once: a filter set by one of several threads for a while is not restored as it was.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Python prints to stderr


class TooLargeError(UserError):
    """An image with more pixels than are read at once from so small a file."""


@dataclass(frozen=True)
class ImageFormat:
    """The common format of a data set's images, never decided per image."""

    channels: int  # 1 for grey, 3 for colour, 4 with alpha, any number for bands
    dtype: str = "uint8"  # one of DTYPES
    nodata: float | None = None  # the value of pixels without data; may be nan
    fill: tuple[float, ...] = ()  # the value for each channel that replaces it
    ground_resolution: float | None = None  # metres of a pixel at scale 1; see `ground_scale`

    def bytes_with_mask(self, height: int, width: int, id_bytes: int = 1) -> int:
        """Return the bytes of an image of this size together with its class ids."""
        return height * width * (self.channels * np.dtype(self.dtype).itemsize + id_bytes)


@dataclass(frozen=True)
class Header:
    """Properties of an image file, its orientation applied."""

    width: int
    height: int
    channels: int  # without alpha
    dtype: str
    has_alpha: bool = False
    is_colour: bool = False  # False for grey values and palette indices
    is_lossy: bool = False
    palette: tuple[tuple[int, int, int], ...] | None = None  # colours of the indices
    nodata: float | None = None  # GDAL's tag in a TIFF
    ground_resolution: float | None = None  # metres of a pixel; 0 for a map without CRS
    bits: int = 8  # of a grey value, if it has fewer: white is 1, 3 or 15 in a mask of 1, 2 or 4
    is_array: bool = False  # True if grey, colour and alpha are not to be converted to each other

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width

    @property
    def has_colour_values(self) -> bool:
        """True if the values of a mask are colours."""
        return self.is_colour or (self.channels == 3 and self.palette is None)


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return a view of `pixels` (H, W, …) turned by EXIF's orientation, 1 to 8."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return pixels[::rows, ::columns]


def storage_dtype(dtype: np.dtype[Any]) -> str:
    """Return the type that pixels are kept in: the file's own, or a larger one of ours."""
    return _STORED_AS.get(dtype.name, dtype.name)


def bits_of(dtype: str) -> str:
    """Return a pixel type as people call it."""
    return {"uint8": "8 bit", "uint16": "16 bit"}.get(dtype, dtype)


def refuse_bomb(
    path: Path, width: int, height: int, *, file: Path | int, pixel_bytes: int, copies: int = 1
) -> None:
    """Raise a TooLargeError if so many pixels in so small a file are no real image.

    `path` is for messages, `file` the number or the path of the file itself.
    """
    size = width * height * pixel_bytes
    if size * copies > MOST_BYTES and size > MOST_RATIO * os.stat(file).st_size:  # noqa: PTH116
        raise TooLargeError(
            f"{path}: {width}x{height} pixels of {pixel_bytes} bytes in a small file: too large to "
            "open safely; cut it into tiles, or save it uncompressed"
        )


@contextmanager
def as_user_error(path: Path) -> Iterator[None]:
    """Turn any error of reading `path` into a UserError of one line; refuse pipes and devices."""
    try:
        refuse_special(path)
        yield
    except UserError:
        raise
    except Image.DecompressionBombError:
        raise TooLargeError(f"{path}: too large to open safely; cut it into tiles") from None
    except Exception as error:  # decoders raise all kinds for corrupt files
        raise UserError(f"{path}: {_explain(error, path)}") from None


def _explain(error: Exception, path: Path) -> str:
    """Return why a file can't be read, and what to do about it."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    if missing := explain_missing(path, "an image"):
        return missing
    is_other = isinstance(error, UnidentifiedImageError) or "not a TIFF file" in str(error)
    if not is_other:
        reason = words_of(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:  # the system's, not a decoder's
            return f"can't be read ({error.strerror})"
        if "out of memory" in reason or "Insufficient memory" in reason:  # Pillow, OpenCV
            return _NO_MEMORY
        return f"corrupt or truncated ({reason}); replace it"
    content = describe_content(path)
    advice = advise_on(content, "replace or remove it")
    return advise_export([path], f"is {content}, not a readable image; {advice}")


# -- what a reader is ----------------------------------------------------------------------


class Rows(Protocol):
    """An image of which some rows are read at a time."""

    height: int
    width: int

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom` (exclusive), (rows, W, C)."""


class Place(Protocol):
    """The place of an image on a map; what else it has is its reader's, as in extras/geo/maps.py."""

    def write_to(self, mask: Path, nodata: int | None) -> None:
        """Give a new TIFF this place, and its value of no data."""


class OpenFile(ABC):
    """An open image file, and what is known of all files of its suffixes.

    READERS (plugins/built_in/of_data.py) has the reader of each suffix.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Of a reader of the user's own: suffixes of its files, with a dot."""
    planes = False
    """True for a mask whose bands or pages may each be a class: bit k of its values is the k-th one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:  # noqa: B027  # not all need it
        """Close the file."""

    @property
    @abstractmethod
    def header(self) -> Header:
        """Properties of the file; pixels are not decoded."""

    @abstractmethod
    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all pixels (H, W, C): a decoder that reduces them would make another mask of them."""

    @abstractmethod
    def read_mask(self) -> NDArray[Any]:
        """Return all of a mask's values (H, W), or its colours (H, W, 3)."""

    @abstractmethod
    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size)."""


class Scene(OpenFile):
    """An open file that may exceed the memory, or that may lie on a map: a `MapFile` of extras/geo/reader.py."""

    @abstractmethod
    def rows(self, wanted: ImageFormat, at_least: int) -> Rows | None:
        """Return the image by rows, if it has so many pixels; None if only the whole can be read."""

    @property
    @abstractmethod
    def place(self) -> Any:
        """Place on a map: a `Place` that is a tuple of plain values; None without map coordinates."""

    @abstractmethod
    def mark_nodata(self, ids: NDArray[Any], mark: int) -> int:
        """Set `ids` (H, W) to `mark` where the file says that it has no data; return how often."""

    @abstractmethod
    def find_scale(self, wanted: ImageFormat, scale: float) -> float:
        """Return the scale of this file, where images are `wanted` at one ground resolution."""

    @abstractmethod
    def find_format(self, wanted: ImageFormat) -> ImageFormat:
        """Return the format as which this file is predicted: with its own value of no data."""

    # -- many files --------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def missing(cls) -> str:
        """Return what to install so that all is read of such files; empty if all is."""

    @staticmethod
    @abstractmethod
    def find_places(sources: Sequence[Any], metres: float | None) -> set[Any]:
        """Return the images to predict, each a `Source`, that have map coordinates.

        Raises:
            UserError: their ground resolutions differ and the network's, `metres`, is None.
        """

    @staticmethod
    @abstractmethod
    def check_pairs(scanned: Sequence[Any]) -> list[str]:
        """Return the faults of a set of `ScannedPair`s with such files, a line each."""

    @staticmethod
    @abstractmethod
    def check_sides(scanned: Sequence[Any], split: Any) -> list[str]:
        """Return warnings of images on two sides of a `Split` that lie next to each other, a line each."""

    @staticmethod
    @abstractmethod
    def check_kinds(config: Any, table: Any) -> Any:
        """Return the `Table` of a set with such images, as a `DataConfig` has them read.

        Raises:
            UserError: they do not fit together.
        """
