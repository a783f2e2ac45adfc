"""What an image file can be, and how what is wrong with one is told."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from unet_ddp.errors import UserError

Pixels = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.int16] | NDArray[np.float32]
"""(H, W, C)"""

Codes = NDArray[np.uint8] | NDArray[np.int32]
"""(H, W): the values of a mask."""

PICTURES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"})
TIFFS = frozenset({".tif", ".tiff"})
SUFFIXES = PICTURES | TIFFS | {".npy"}
# Large images are read, too large ones are an error. Once and for all: files are read by several
# threads, and a filter that one of them sets for a time is not restored as it was.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

DTYPES = ("uint8", "uint16", "int16", "float32")


@dataclass(frozen=True)
class ImageFormat:
    """What all images of a data set have in common; never decided per image."""

    channels: int
    """1 for grey, 3 for colour, 4 with alpha, any number for bands."""
    dtype: str = "uint8"
    """uint8, uint16, int16 or float32."""
    nodata: float | None = None
    """The value of pixels that hold nothing; nan can be one."""
    fill: tuple[float, ...] = ()
    """What such pixels are given instead: a value for each channel."""

    def bytes_with_mask(self, height: int, width: int) -> int:
        """Bytes of an image of that size and its class ids."""
        return height * width * (self.channels * np.dtype(self.dtype).itemsize + 1)


@dataclass(frozen=True)
class Header:
    """What a file says of itself, orientation applied."""

    width: int
    height: int
    channels: int
    """Alpha is not counted."""
    dtype: str
    has_alpha: bool = False
    is_colour: bool = False
    """Whether pixels are colours, rather than values or palette indices."""
    is_lossy: bool = False
    palette: tuple[tuple[int, int, int], ...] | None = None
    """Colours of the indices, for palette files."""
    nodata: float | None = None
    """As GDAL notes it in a TIFF."""

    @property
    def format(self) -> ImageFormat:
        """That of a data set of such images."""
        return ImageFormat(self.channels, self.dtype, self.nodata)


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """`pixels` (H, W, …) turned as EXIF's orientation, 1 to 8, asks for."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return pixels[::rows, ::columns]


def bits_of(dtype: str) -> str:
    """A type of pixels as people call it."""
    return {"uint8": "8 bit", "uint16": "16 bit"}.get(dtype, dtype)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Whatever goes wrong with reading `path`, as one line that names it."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, not an image; rename or remove it") from None
    except Image.DecompressionBombError:
        raise UserError(f"{path}: too large to be safe to open; cut it into tiles") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: {_not_an_image(path)}") from None
    except Exception as error:  # decoders raise all kinds for damaged files
        reason = " ".join(str(error).split()) or type(error).__name__
        if "imagecodecs" in reason:
            raise UserError(
                f"{path}: its compression needs 'pip install imagecodecs'; or save it uncompressed"
            ) from None
        raise UserError(f"{path}: damaged or cut short ({reason}); replace it") from None


def _not_an_image(path: Path) -> str:
    """Why a file could not be taken for an image, as far as its first bytes tell."""
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError:
        start = b"?"
    if not start:
        return "is empty (0 bytes); replace or remove it"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "is a web page, not an image, as a failed download leaves; fetch it again"
    return "no image that can be read; replace or remove it"
