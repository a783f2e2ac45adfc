"""A reader of the user's own: its exceptions, and what its methods say of one file, become a line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.data.readers.base import Header, OpenFile, storage_dtype
from unet_ddp.data.readers.masked import refuse_masked
from unet_ddp.errors import UserError, shorten, words_of
from unet_ddp.files.contents import explain_missing

_PACKAGE = __name__.partition(".")[0]


def is_own(reader: type[OpenFile]) -> bool:
    """Return whether a reader is not of this package."""
    return reader.__module__.partition(".")[0] != _PACKAGE


@contextmanager
def explaining(reader: type[OpenFile], path: Path) -> Iterator[None]:
    """Make an exception of a reader of the user's own a UserError that names its line.

    What only the file can be blamed for stays as it is: that it can't be opened, or has no content.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of code that is not ours
        is_of_file = isinstance(error, OSError) and error.filename in (path, os.fspath(path))
        if not is_own(reader) or is_of_file or explain_missing(path, "an image"):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        module = getattr(sys.modules.get(reader.__module__), "__file__", None)
        last = [frame for frame in frames if frame.filename == module] or frames
        place = f"{Path(last[-1].filename).name}, line {last[-1].lineno}"
        raise UserError(
            f"{_name(reader)} failed on {path} ({type(error).__name__}: {words_of(error)}; {place}); mend it, or "
            "replace the file if that is damaged"
        ) from error


def check_header(opened: OpenFile) -> Header:
    """Return the header of a file, or raise a UserError if a reader of the user's own gave none."""
    header: Any = opened.header
    if is_own(type(opened)) and not isinstance(header, Header):
        raise UserError(
            f"{_name(type(opened))}: {opened.path}: header gave {_show(header)}; return a "
            "unet_ddp.data.readers.base.Header"
        )
    found: Header = header
    return found


def check_pixels(opened: OpenFile, pixels: object, method: str, *, is_mask: bool = False) -> None:
    """Compare what a method of the user's own reader gave, pixels (H, W, C), with its header.

    The type of a mask's values means nothing.

    Raises:
        UserError: they are no such array, or of another size or type: both are named.
    """
    if not is_own(type(opened)):
        return
    start, header = f"{_name(type(opened))}: {opened.path}: ", check_header(opened)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3:
        raise UserError(
            f"{start}{method} gave {_show(pixels)}; return a NumPy array (height, width, channels)"
        )
    flag = "--ignore-index" if is_mask else "--nodata"
    refuse_masked(pixels, f"{start}{method} gave", f"and name the value by {flag}")
    height, width, channels = pixels.shape
    dtype, dtypes = pixels.dtype.name, (pixels.dtype.name, storage_dtype(pixels.dtype))
    bands = header.channels + header.has_alpha
    is_same_type = is_mask or header.dtype in dtypes
    if (*header.size, bands) != pixels.shape or not is_same_type:
        alpha = " and alpha" if header.has_alpha else ""
        raise UserError(
            f"{start}header says {header.width}x{header.height} with {header.channels} channels{alpha} of "
            f"{header.dtype}, {method} gave {width}x{height} with {channels} of {dtype}; mend one of them"
        )


def _name(reader: type[OpenFile]) -> str:
    return f"reader {reader.__module__}:{reader.__qualname__}"


def _show(value: object) -> str:
    shape = getattr(value, "shape", None)
    return shorten(value) if shape is None else f"a {type(value).__name__} {shape}"
