"""An existing file: whether it is whole, its size, and the mark of how a mask was made."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.pillow import PillowFile, identify, read_orientation
from unet_ddp.data.readers.read import Source, find_reader
from unet_ddp.errors import UnreachableError, UserError
from unet_ddp.files import is_address
from unet_ddp.storage import open_parts

_START, _TAIL = 64, 4096  # bytes of a file, which is read no further
_PNG, _TIFF = b"\x89PNG", (b"II", b"MM")  # first bytes
_PICTURES = (".png", ".tif", ".tiff")
_SOFTWARE = 305  # tag of a TIFF
_PARTS = ((273, 279), (324, 325))  # tags of the places and sizes of its strips, and of its tiles
_MARK = re.compile(r"unet_ddp ([0-9a-f]+\.[0-9a-f]+(?: [a-z]+=[a-z0-9.+-]{1,24})*)")
_DAMAGE = "corrupt or truncated", "not a readable image"  # in the messages of readers


class Look(NamedTuple):
    """Facts of a whole file; its pixels are not decoded."""

    size: Size | None = None  # of a picture, if it is known
    mark: str = ""  # of the network and settings that made a mask; empty for one of a person or another program


def look(path: Path) -> Look | None:
    """Return what an existing file says; None if it is cut off, or is no picture in spite of its name."""
    try:
        with open_parts(path) as file:
            return _look_into(file, path)
    except UnreachableError:  # the others would wait for it, too
        raise
    except (OSError, UserError):  # who reads or replaces it says why
        return Look()


def _look_into(file: IO[bytes], path: Path) -> Look | None:
    start = file.read(_START)
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - _TAIL))
    end = file.read()
    if not any(start) or (start.startswith(_PNG) and b"IEND" not in end):
        return None
    if path.suffix.lower() == ".npy":
        return _look_at_array(path)
    if path.suffix.lower() not in _PICTURES:
        return Look()
    try:
        with identify(file) as picture:
            return _look_at_picture(picture, length)
    except UnreachableError:
        raise
    except Image.DecompressionBombError:
        return Look()
    except Exception:  # Pillow's are of many kinds
        return _look_at_tiff(path) if start.startswith(_TIFF) else None


def _look_at_array(path: Path) -> Look | None:
    """Return what a NumPy file says; None if it is shorter than its header says."""
    try:
        np.load(path, mmap_mode="r")
    except Exception:  # of many kinds
        return None
    return Look()


def _look_at_picture(picture: Image.Image, length: int) -> Look | None:
    """Return what a picture in a file of that length says; None if its last pixels are missing."""
    tags: Any = getattr(picture, "tag_v2", {})
    for place, count in _PARTS:
        parts = zip(tags.get(place, ()), tags.get(count, ()), strict=False)
        if any(start + size > length for start, size in parts):
            return None
    mark = _MARK.fullmatch(str(tags.get(_SOFTWARE) or picture.info.get("Software", "")))
    return Look((picture.height, picture.width), mark[1] if mark else "")


def _look_at_tiff(path: Path) -> Look | None:
    """Return what a TIFF that Pillow does not know says; one at an address is not fetched."""
    if is_address(path):
        return Look()
    try:
        with Source(path) as source:
            return Look(source.header.size)
    except UserError as error:
        return None if is_damage(error) else Look()


def find_size(image: Path) -> Size | None:
    """Return an image's size; None if it can't be read, or if it would have to be fetched as a whole."""
    if not is_address(image):
        with suppress(UserError), Source(image) as source:
            return source.header.size
    elif find_reader(image) is PillowFile:
        with suppress(Exception), open_parts(image) as file, identify(file) as picture:
            size = picture.height, picture.width
            return size[::-1] if read_orientation(picture) >= 5 else size
    return None


def is_damage(error: UserError) -> bool:
    """Return whether a file could not be read because it is damaged."""
    return any(words in str(error) for words in _DAMAGE)
