"""The reader of windows: of TIFFs by GDAL, of NPY by mapping it into memory, of others from a copy in the cache."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.checks.metadata import ScannedPair
from unet_ddp.data.memory import remove_unused
from unet_ddp.data.pairs import Pairs, Stamp, find_stamp
from unet_ddp.data.readers.bands import BandsFile, ByWindows
from unet_ddp.data.readers.base import Codes, Header, ImageFormat, OpenFile, Pixels, as_user_error
from unet_ddp.data.readers.pillow import decode
from unet_ddp.data.readers.read import READERS, Source, describe_readers, find_reader
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.geo.reader import MapFile
from unet_ddp.extras.geo.sides import Placed, find_neighbours
from unet_ddp.extras.geo.windows import MapWindows, open_windows
from unet_ddp.extras.windows.paths import split_window
from unet_ddp.files import cache_folder, is_address, replacing, write_errors
from unet_ddp.storage import real_file

_MOST_OPEN = 256  # scenes, of all threads
_ADVICE = "make room, or name another folder with XDG_CACHE_HOME, or save scenes as TIFF, which needs no copy"


def _check_sides(scanned: Sequence[ScannedPair], split: Split) -> list[str]:
    """Return a warning if scenes on two sides of a split lie next to each other on the map."""
    known = {pair.name for pair, *_ in scanned}

    def place(pairs: Pairs) -> list[Placed]:
        files = dict.fromkeys(split_window(pair.image)[0] for pair in pairs if pair.name in known)
        maps = (each for each in map(open_scene, files) if isinstance(each, MapWindows))
        return [(each.path, each.place, each.header.size) for each in maps if each.place]

    return find_neighbours(place(split.training), place(split.validation))


class WindowFile(BandsFile, MapFile):
    """A part of an image or of a mask."""

    place = None  # the grid of windows was found with it
    check_sides = staticmethod(_check_sides)
    _is_mask = False

    def __init__(self, path: Path) -> None:
        OpenFile.__init__(self, path)
        self.file, self.window = split_window(path)
        with as_user_error(self.file):
            self._scene = open_scene(self.file)

    def close(self) -> None:
        """Do nothing: the scene stays open."""

    @property
    def resolution(self) -> float | None:
        """Metres of a pixel of the scene on the ground."""
        return self._scene.header.ground_resolution

    @property
    def header(self) -> Header:
        """Properties of the part."""
        return replace(self._scene.header, height=self.window.height, width=self.window.width)

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all pixels (h, w, C)."""
        header, pixels = self.header, super().read(wanted)
        count = pixels.shape[2]
        if header.palette is not None and count == 1:
            pixels, count = np.array(header.palette, np.uint8)[pixels[..., 0]], 3
        if count == wanted.channels or header.is_array or pixels.dtype != np.uint8:
            return pixels
        stored = Image.fromarray(pixels if count > 1 else pixels[..., 0])
        return decode(stored, wanted, self.path)  # as a whole image is converted

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the part in grey, (size, size); of a palette, its colours."""
        if self.header.palette is None:
            return super().read_thumbnail(size)
        return resize_area(self.read(ImageFormat(1)).astype(np.float32), (size, size))[..., 0]

    def read_mask(self) -> Codes:
        """Return the values of a mask (h, w), or its colours (h, w, 3)."""
        self._is_mask = True
        return super().read_mask()

    def rows(self, wanted: ImageFormat, at_least: int) -> None:
        """Return None: it is read whole."""

    def read_bands(self) -> NDArray[Any]:  # type: ignore[override]  # all of them
        """Return the part of the image or the mask (h, w, C); what is wrong with it names its place."""
        scene, (top, left, height, width) = self._scene, self.window
        rows, columns = self.window.rows, self.window.columns
        try:
            with as_user_error(self.file):
                if isinstance(scene, Decoded):
                    part = np.array(scene.array(self._is_mask, self.planes)[rows, columns])
                else:
                    part = scene.read_window(rows, columns)
                return np.atleast_3d(part)
        except UserError as error:
            name = str(real_file(self.file))
            where = f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
            raise type(error)(str(error).replace(name, f"{name} ({where})", 1)) from None


def open_scene(path: Path) -> ByWindows | Decoded:
    """Return an image or mask, open; the last ones stay so, each for one thread."""
    stamp = None if is_address(path) else find_stamp(path)
    return _open(path, stamp, os.getpid(), threading.get_ident())


@lru_cache(_MOST_OPEN)
def _open(path: Path, stamp: Stamp | None, process: int, thread: int) -> ByWindows | Decoded:
    reader = find_reader(path)
    if issubclass(reader, MapFile):
        found = _open_object(path) if stamp is None else open_windows(path)
        if found is not None:
            return found
    if stamp is None:
        advice = "read of TIFFs alone; save it as one, in tiles"
        if issubclass(reader, MapFile):
            advice = (
                "not read of TIFFs of 1 to 4 bits, that are turned, or where 0 is white; convert it"
            )
        raise UserError(f"{path}: windows of objects are {advice}")
    opened = reader(path)
    if isinstance(opened, ByWindows):
        return opened
    opened.close()
    return Decoded(path)


def _open_object(path: Path) -> MapWindows | None:
    from unet_ddp.extras.cloud.objects import find_stamp as find_object
    from unet_ddp.extras.cloud.ranges import RangeFile

    return open_windows(path, partial(RangeFile, path, find_object(path)))


class Decoded:
    """A scene of a format that can't be read by parts: it is decoded into the user's cache once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Source(path) as source:
            self.header = source.header
        self.array = cache(self._map)

    def _map(self, is_mask: bool, planes: bool) -> NDArray[Any]:
        """Return the image (H, W, C) with alpha, or the values of a mask, mapped into memory."""
        from filelock import FileLock

        caches = cache_folder()
        if caches is None:
            raise UserError(f"{self.path}: needs a cache folder; name one with XDG_CACHE_HOME")
        about = f"{self.path.absolute()!s} {find_stamp(self.path)} {is_mask} {planes} {READERS} {describe_readers([self.path])}"
        file = caches / "scenes" / f"{hashlib.sha256(os.fsencode(about)).hexdigest()[:32]}.npy"
        with write_errors(file.parent, _ADVICE):
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock")):  # other processes wait
                if not file.exists():
                    remove_unused(file.parent.iterdir())
                    with replacing(file) as temporary, temporary.open("wb") as written:
                        np.save(written, self._decode(is_mask, planes))
            os.utime(file)
        array: NDArray[Any] = np.load(file, mmap_mode="r")
        return array

    def _decode(self, is_mask: bool, planes: bool) -> NDArray[Any]:
        header = self.header
        with Source(self.path, planes) as source, source.reading() as opened:
            if is_mask:
                return opened.read_mask()
            has_alpha = header.has_alpha or header.palette is not None  # of some colours
            return opened.read(ImageFormat(header.channels + has_alpha, header.dtype))
