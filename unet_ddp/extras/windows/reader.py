"""The reader of windows: of TIFFs by GDAL, of NPY by mapping it into memory, of others from a copy in the cache."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.metadata import ScannedPair
from unet_ddp.data.memory import remove_unused
from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.bands import BandsFile, ByWindows, as_pixels
from unet_ddp.data.readers.base import (
    Header,
    ImageFormat,
    OpenFile,
    Pixels,
    as_user_error,
)
from unet_ddp.data.readers.read import READERS, Source, describe_readers, find_reader
from unet_ddp.data.readers.resize import resize_area
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.geo.checks import ground_scale
from unet_ddp.extras.geo.reader import MapFile
from unet_ddp.extras.geo.sides import find_neighbours
from unet_ddp.extras.geo.windows import MapWindows, open_windows
from unet_ddp.extras.windows.paths import split_warped, split_window
from unet_ddp.files import cache_folder, is_address, replacing, write_errors
from unet_ddp.storage import real_file

_MOST_OPEN = 256  # scenes, of all threads


def _check_sides(scanned: Sequence[ScannedPair], split: Split) -> list[str]:
    """Return a warning if scenes on two sides of a split lie next to each other on the map."""
    known, sides = {pair.name for pair, *_ in scanned}, []
    for side in (split.training, split.validation):
        files = dict.fromkeys(split_window(pair.image)[0] for pair in side if pair.name in known)
        scenes = ((path, open_scene(path)) for path in files)
        maps = {path: each for path, each in scenes if isinstance(each, MapWindows)}
        sides.append({path: (each.place, each.header.size) for path, each in maps.items()})
    return find_neighbours(sides[0], sides[1])


class WindowFile(BandsFile, MapFile):
    """A part of an image or of a mask."""

    place = None  # the grid of windows was found with it
    check_sides = staticmethod(_check_sides)

    def __init__(self, path: Path) -> None:
        OpenFile.__init__(self, path)
        self.file, self.window = split_window(path)
        with as_user_error(self.file):
            self._scene = open_scene(self.file)

    def close(self) -> None:
        """Do nothing: the scene stays open."""

    @property
    def header(self) -> Header:
        """Properties of the part."""
        return replace(self._scene.header, height=self.window.height, width=self.window.width)

    def read_bands(self) -> NDArray[Any]:  # type: ignore[override]  # all of them
        """Return a mask's values or colours, (h, w, C)."""
        return self._read(None)

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all pixels (h, w, C)."""
        palette, pixels = self.header.palette, self._read(wanted.channels)
        is_decoded = isinstance(self._scene, Decoded)  # to colours, or to the grey that is wanted
        if palette is not None and pixels.shape[2] == 1 and not is_decoded:
            pixels = np.array(palette, np.uint8)[pixels[..., 0]]
        return as_pixels(pixels, self.path)

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the mean of all bands, (size, size)."""
        header = self.header
        pixels = self.read(ImageFormat(header.channels, header.dtype))[..., : header.channels]
        grey = pixels.mean(axis=2, dtype=np.float32, keepdims=True)
        return resize_area(grey, (size, size))[..., 0]

    def find_scale(self, wanted: ImageFormat, scale: float) -> float:
        """Return the scale that brings the image to the wanted ground resolution, if there is one."""
        own, metres = self.header.ground_resolution, wanted.ground_resolution
        return scale if metres is None else ground_scale(self.file, own, scale, metres)

    def rows(self, wanted: ImageFormat, at_least: int) -> None:
        """Return None: it is read whole."""

    def _read(self, channels: int | None) -> NDArray[Any]:
        """Return the part of an image with so many channels, or of a mask; what is wrong with it names its place."""
        scene, window = self._scene, self.window
        try:
            with as_user_error(self.file):
                if isinstance(scene, Decoded):
                    whole = scene.array(channels, planes=self.planes)
                    part = whole[window.rows, window.columns]
                else:
                    part = scene.read_window(window.rows, window.columns)
                return np.atleast_3d(np.array(part))
        except UserError as error:
            name = str(real_file(self.file))
            last, right = window.rows.stop - 1, window.columns.stop - 1
            where = f"rows {window.top} to {last}, columns {window.left} to {right}"
            raise type(error)(str(error).replace(name, f"{name} ({where})", 1)) from None


def open_scene(path: Path) -> ByWindows | Decoded:
    """Return an image or mask, open; the last ones stay so, each for one thread."""
    stamp = None if is_address(path) else find_stamp(path)
    return _open(path, stamp, os.getpid(), threading.get_ident())


@lru_cache(_MOST_OPEN)
def _open(path: Path, stamp: Stamp | None, process: int, thread: int) -> ByWindows | Decoded:
    if pair := split_warped(path):
        mask, image = map(open_scene, pair)
        assert isinstance(mask, MapWindows) and isinstance(image, MapWindows)
        return mask.warped_to(image)
    reader = find_reader(path)
    if issubclass(reader, MapFile):
        found = open_windows(path, _open_ranges(path) if is_address(path) else None)
        if found is not None:
            return found
    if is_address(path):
        raise UserError(
            f"{path}: windows of objects are read of TIFFs alone; save it as one, in tiles"
        )
    opened = reader(path)
    if isinstance(opened, ByWindows):
        return opened
    opened.close()
    return Decoded(path)


def _open_ranges(path: Path) -> Callable[[], IO[bytes]]:
    """Return what opens an object, of which only the parts that are read are fetched."""
    from unet_ddp.extras.cloud.ranges import RangeFile, Ranges

    ranges = Ranges(path)
    return lambda: RangeFile(ranges)  # type: ignore[return-value]  # as much as GDAL and Pillow need


class Decoded:
    """A scene of a format that can't be read by parts: it is decoded into the user's cache once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Source(path) as source:
            self.header = source.header

    def array(self, channels: int | None, *, planes: bool) -> NDArray[Any]:
        """Return the image with so many channels, or the values of a mask, mapped into memory."""
        from filelock import FileLock

        caches = cache_folder()
        if caches is None:
            raise UserError(f"{self.path}: needs a cache folder; name one with XDG_CACHE_HOME")
        about = f"{self.path.absolute()!s} {find_stamp(self.path)} {channels} {planes} {READERS} {describe_readers([self.path])}"
        file = caches / "scenes" / f"{hashlib.sha256(os.fsencode(about)).hexdigest()[:32]}.npy"
        with write_errors(file.parent, "make room, or save scenes as TIFF, which needs no copy"):
            file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(file.with_suffix(".lock")):  # other processes wait
                if not file.exists():
                    remove_unused(file.parent.iterdir())
                    self._decode(file, channels, planes=planes)
            os.utime(file)
        array: NDArray[Any] = np.load(file, mmap_mode="r")
        return array

    def _decode(self, file: Path, channels: int | None, *, planes: bool) -> None:
        with Source(self.path, planes) as source, source.reading() as opened:
            if channels is None:
                pixels = opened.read_mask()
            else:
                pixels = opened.read(ImageFormat(channels, self.header.dtype))
        with replacing(file) as temporary, temporary.open("wb") as written:
            np.save(written, pixels)
