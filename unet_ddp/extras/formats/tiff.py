"""TIFF files: Pillow reads the usual ones, and tifffile the ones of which Pillow loses a part."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from unet_ddp.data.readers.base import Header, ImageFormat, OpenFile, Pixels
from unet_ddp.data.readers.pillow import PillowFile, identify
from unet_ddp.extras.formats.tiff_bands import (
    GDAL_NODATA,
    MIN_IS_WHITE,
    NO_IMAGE,
    ORIENTATION,
    SEPARATE,
    TiffBandsFile,
    find_alpha,
    find_orientation,
    parse_nodata,
)

_KIND, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_DESCRIPTION = 270
_SAMPLES, _PLANES, _EXTRA, _SAMPLE_FORMAT, _DEPTH = 277, 284, 338, 339, 32997
_STRIP_PLACES, _STRIP_ROWS, _TILE_WIDTH, _TILE_HEIGHT, _TILE_PLACES = 273, 278, 322, 323, 324
_PIXEL_SCALE, _TRANSFORM = 33550, 34264
_POINTS, _OF_POINT = 33922, 6  # points of the ground, each with so many numbers
_GREY, _RGB, _PALETTE, _YCBCR, _GREYS, _UNSIGNED = 1, 2, 3, 6, (0, 1), 1  # of their values
_JPEG, _WEBP = 7, 50001
_APART = 2  # alpha that colours are not multiplied with, as Pillow would undo for 8 bit alone
_BIG_OF_MOTOROLA = b"MM\0\x2b"  # BigTIFF in an order of bytes that Pillow takes for another TIFF
_READ_BY_PILLOW = frozenset(
    {"1", "L", "LA", "RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "I;16", "I;16B"}
)


def _loses_a_part(tags: Mapping[int, Any]) -> bool:
    """Return whether Pillow would lose a part of the pixels of a TIFF with these tags."""
    samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
    is_grey, is_rgb = (tags.get(_PHOTOMETRIC) in kind for kind in (_GREYS, (_RGB,)))
    has_extra = (is_grey and samples > 1) or (is_rgb and samples > 3)
    has_alpha_alone = samples in (2, 4) and tags.get(_EXTRA) == (_APART,)
    is_split = tags.get(_PLANES) == SEPARATE  # band after band
    return (
        (samples > 1 and bits != 8)
        or (is_split and (bits > 8 or (samples > 1 and is_grey)))
        or (has_extra and not has_alpha_alone)
        or (bits > 8 and tags.get(_PHOTOMETRIC) == MIN_IS_WHITE)  # it turns those of 8 bit alone
        or re.search(r"^images=(?!1$)", str(tags.get(_DESCRIPTION, "")), re.MULTILINE) is not None
        or any(sign != _UNSIGNED for sign in tags.get(_SAMPLE_FORMAT, ()))
        or tags.get(_COMPRESSION) == _WEBP  # which its libtiff can't decode
    )


def _find_nodata(tags: Mapping[int, Any]) -> float | None:
    """Return GDAL's value of no data as Pillow's pixels have it; None for palettes and CMYK."""
    if tags.get(_PHOTOMETRIC) not in (*_GREYS, _RGB, _YCBCR):
        return None
    bits = max(tags.get(_BITS, (1,)))
    is_inverted = tags.get(_PHOTOMETRIC) == MIN_IS_WHITE
    value = parse_nodata(tags.get(GDAL_NODATA), (1 << bits) - 1 if is_inverted else None)
    return value * (255 // ((1 << bits) - 1)) if value is not None and bits < 8 else value


class Layout(NamedTuple):
    """The tags of a TIFF that decide which library reads it; these are of one that nobody knows."""

    pixels: int = 0
    is_on_map: bool = True  # True if it may have map coordinates
    is_plain: bool = False  # True if GDAL's bands are the pixels: upright, not packed, no palette
    has_palette: bool = False  # True if its values are indices; GDAL shows one where 0 is white
    is_exact: bool = False  # True if all libraries decode them equally
    alpha: int | None = None  # the sample that is alpha, from 0
    is_bands: bool = False  # True if it is surely no image of Pillow's
    has_overviews: bool = False  # True if pages after the image are overviews or masks of it
    nodata: float | None = None  # as Pillow's pixels have the value
    orientation: int = 1  # of EXIF
    has_points: bool = False  # True if several control points alone give its place on a map

    @classmethod
    def read(cls, file: IO[bytes]) -> Layout:
        """Return the layout of an open file's one image, overviews aside."""
        with suppress(Exception):
            directories = _read_directories(file)
            tags, *others = [tags for tags in directories if not tags.get(_KIND, 0) & NO_IMAGE]
            if others:  # pages, which Pillow refuses even in masks
                return cls(is_bands=True)
            is_jpeg = tags.get(_COMPRESSION) == _JPEG
            # Pillow's image of few bits or a palette has values up to 255, or colours.
            has_palette = tags.get(_PHOTOMETRIC) == _PALETTE
            is_pillow_s = directories[0] is tags and (max(tags.get(_BITS, (1,))) < 8 or has_palette)
            file.seek(0)
            is_odd = file.read(4) == _BIG_OF_MOTOROLA or _loses_a_part(tags)
            is_plain = (
                tags.get(_PHOTOMETRIC) in (_GREY, _RGB, *([_YCBCR] if is_jpeg else []))
                and tags.get(ORIENTATION, 1) == 1
                and tags.get(_DEPTH, 1) in (1, (1,))
                and not any(bits % 8 for bits in tags.get(_BITS, (1,)))
            )
            is_on_map = _PIXEL_SCALE in tags or _TRANSFORM in tags
            return cls(
                tags[_WIDTH] * tags[_HEIGHT],
                is_on_map=is_on_map,
                is_plain=is_plain,
                has_palette=has_palette,
                is_exact=is_plain and not is_jpeg,
                alpha=find_alpha(tags.get(_EXTRA, ()), tags.get(_SAMPLES, 1)),
                is_bands=is_odd or (len(directories) > 1 and not is_pillow_s),
                has_overviews=len(directories) > 1,
                nodata=_find_nodata(tags),
                orientation=find_orientation(tags.get(ORIENTATION, 1)),
                has_points=not is_on_map and len(tags.get(_POINTS, ())) > _OF_POINT,
            )
        return cls()


class _WithOverviews(PillowFile):
    one_of_frames = ("TIFF",)


class TiffFile(OpenFile):
    """An open TIFF, which Pillow or tifffile reads."""

    suffixes = (".tif", ".tiff")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = path.open("rb")
        if not os.fstat(self._file.fileno()).st_size:
            self._file.close()
            raise UnidentifiedImageError

    @cached_property
    def layout(self) -> Layout:
        """The tags that decide which library reads it."""
        return Layout.read(self._file)

    @cached_property
    def _whole(self) -> OpenFile:
        """The reader of whole images: one that says what is wrong with a file."""
        self._file.seek(0)
        with suppress(UnidentifiedImageError):
            image = None if self.layout.is_bands else identify(self._file)
            if image and image.mode in _READ_BY_PILLOW:
                kind = _WithOverviews if self.layout.has_overviews else PillowFile
                return kind(self.path, self._file, image)
        bands = TiffBandsFile(self.path, self._file, self.decode)
        bands.planes = self.planes
        return bands

    @property
    def header(self) -> Header:
        """Properties of the file."""
        return replace(self._whole.header, nodata=self.nodata)

    @property
    def nodata(self) -> float | None:
        """GDAL's value of no data, as `read` returns it; None if the file names none."""
        return self._whole.header.nodata if self.layout.is_bands else self.layout.nodata

    def read(self, wanted: ImageFormat) -> Pixels:
        """Return all pixels (H, W, C)."""
        return self._whole.read(wanted)

    def read_mask(self) -> NDArray[Any]:
        """Return all of a mask's values (H, W), or its colours (H, W, 3)."""
        return self._whole.read_mask()

    def read_thumbnail(self, size: int) -> NDArray[np.float32]:
        """Return the image in grey, (size, size)."""
        return self._whole.read_thumbnail(size)

    def decode(self, page: int) -> NDArray[Any] | None:
        """Return the pixels (H, W, C) of a page, from 1, which tifffile can't; None if nothing can."""
        return None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self.__dict__.pop("_whole", None)  # which refers to this: the copy of an object goes now


def lacks_parts(path: Path) -> bool:
    """Return whether a TIFF names fewer strips or tiles than its first image has.

    One that GDAL leaves empty is named as well, with the place 0. False of tags that Pillow can't read.
    """
    with suppress(Exception), path.open("rb") as file:
        tags = _read_directories(file)[0]
        width, height = tags[_WIDTH], tags[_HEIGHT]
        across = -(-width // (tags.get(_TILE_WIDTH) or width))
        down = -(-height // (tags.get(_TILE_HEIGHT) or tags.get(_STRIP_ROWS) or height))
        planes = tags.get(_SAMPLES, 1) if tags.get(_PLANES) == SEPARATE else 1
        named = tags.get(_TILE_PLACES) or tags.get(_STRIP_PLACES) or ()
        return bool(len(named) < across * down * planes)
    return False


def _read_directories(file: IO[bytes]) -> list[Mapping[int, Any]]:
    """Return the tags of each image in an open TIFF, up to one that can't be read."""
    file.seek(0)
    start = file.read(8)
    order = start[:2]
    if 43 in start[2:4]:  # BigTIFF, which Pillow knows in Intel's order alone
        start = b"II\x2b\0" + start[4:] + file.read(8)
    directory = ImageFileDirectory_v2(start, prefix=order)
    found: dict[int, Mapping[int, Any]] = {}
    with suppress(Exception):
        while directory.next and directory.next not in found:
            offset = directory.next
            file.seek(offset)
            directory = ImageFileDirectory_v2(start, prefix=order)
            directory.load(file)
            found[offset] = directory
    return list(found.values())
