"""TIFF files: Pillow reads the usual ones, tifffile those of which Pillow loses a part, GDAL maps.

Each library opens a file when it is asked for something that no library which has it open can say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from unet_ddp.data.readers import maps
from unet_ddp.data.readers.base import OpenFile, Reader
from unet_ddp.data.readers.header import (
    TIFFS,
    ImageFormat,
    refuse_bomb,
    storage_dtype,
)
from unet_ddp.data.readers.maps import Place
from unet_ddp.data.readers.pillow import PillowReader, identify
from unet_ddp.data.readers.tiff_bands import (
    ALPHA,
    GDAL_NODATA,
    ORIENTATION,
    SEPARATE,
    TiffBandsReader,
)

_KIND, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_SAMPLES, _PLANES, _EXTRA, _SAMPLE_FORMAT, _DEPTH = 277, 284, 338, 339, 32997
_PIXEL_SCALE, _TRANSFORM = 33550, 34264
_RGB, _GREY, _GREYS, _JPEG, _UNSIGNED = 2, 1, (0, 1), 7, 1  # of their values
_ASSOCIATED = 1  # colours that are multiplied with alpha
_READ_BY_PILLOW = frozenset(
    {"1", "L", "LA", "RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "I;16", "I;16B"}
)


def is_array(path: Path) -> bool:
    """Return whether a file is an array of bands: no image of Pillow's, or one of which it loses a part."""
    suffix = path.suffix.lower()
    if suffix not in TIFFS:
        return suffix == ".npy"
    with path.open("rb") as file:
        return _identify(file) is None


def _loses_a_part(tags: Mapping[int, Any]) -> bool:
    """Return whether Pillow would lose a part of the pixels of a TIFF with these tags."""
    samples, bits = tags.get(_SAMPLES, 1), max(tags.get(_BITS, (1,)))
    has_extra = samples == 2 or (samples == 4 and tags.get(_PHOTOMETRIC) == _RGB)
    is_split = tags.get(_PLANES) == SEPARATE  # band after band
    return (
        (samples > 1 and bits != 8)
        or (is_split and (bits > 8 or (samples > 1 and tags.get(_PHOTOMETRIC) in _GREYS)))
        or (has_extra and not any(kind in ALPHA for kind in tags.get(_EXTRA, ())))
        or any(sign != _UNSIGNED for sign in tags.get(_SAMPLE_FORMAT, ()))
        or GDAL_NODATA in tags
    )


def _identify(file: IO[bytes]) -> Image.Image | None:
    """Return an open TIFF as Pillow's image; None if Pillow can't read it, or only a part."""
    file.seek(0)
    try:
        image = identify(file)
    except UnidentifiedImageError:
        return None
    with suppress(OSError, ValueError, TypeError):  # of odd tags
        if _loses_a_part(getattr(image, "tag_v2", {})):
            return None
        if getattr(image, "n_frames", 1) > 1:  # overviews, perhaps
            return None
    return image if image.mode in _READ_BY_PILLOW else None


class _Layout(NamedTuple):
    """The tags of a TIFF that decide which library reads it; these are of one that nobody knows."""

    pixels: int = 0
    is_on_map: bool = True  # True if it may have map coordinates
    is_plain: bool = False  # True if GDAL's bands are the pixels: upright, not packed, no palette
    is_exact: bool = False  # True if all libraries decode them equally
    has_alpha: bool = False
    is_bands: bool = False  # True if it is surely no image of Pillow's

    @classmethod
    def read(cls, file: IO[bytes]) -> _Layout:
        """Return those of an open file's one image, overviews aside."""
        with suppress(Exception):
            (tags,) = [tags for tags in _read_directories(file) if not tags.get(_KIND, 0) & 1]
            is_jpeg, extra = tags.get(_COMPRESSION) == _JPEG, tags.get(_EXTRA, ())
            is_plain = (
                (is_jpeg or tags.get(_PHOTOMETRIC) in (_GREY, _RGB))
                and tags.get(ORIENTATION, 1) == 1
                and tags.get(_DEPTH, 1) in (1, (1,))
                and not any(bits % 8 for bits in tags.get(_BITS, (1,)))
            )
            return cls(
                tags[_WIDTH] * tags[_HEIGHT],
                is_on_map=_PIXEL_SCALE in tags or _TRANSFORM in tags,
                is_plain=is_plain,
                is_exact=is_plain and not is_jpeg and _ASSOCIATED not in extra,
                has_alpha=bool(extra) and extra[-1] in ALPHA,
                is_bands=_loses_a_part(tags),
            )
        return cls()


class OpenTiff(OpenFile):
    """An open TIFF.

    GDAL gives the place on a map, and rows. Pillow and tifffile, which open a file in less time, give
    the whole image.
    """

    def __init__(self, path: Path, local: Path, file: IO[bytes]) -> None:
        super().__init__(path)
        self._local, self._file = local, file
        if not os.fstat(file.fileno()).st_size:
            raise UnidentifiedImageError
        if path is not local:  # the copy of an object is about to lose its name
            _ = self._dataset

    @cached_property
    def _layout(self) -> _Layout:
        return _Layout.read(self._file)

    @cached_property
    def _dataset(self) -> Any:
        """The file as GDAL opens it; None without rasterio, or if it can't."""
        if not maps.is_readable(self._local):
            return None
        with suppress(Exception):
            return maps.open_map(self._local)
        return None

    @property
    def _is_open(self) -> bool:
        """True if GDAL has opened the file."""
        return self.__dict__.get("_dataset") is not None

    @property
    def place(self) -> Place | None:
        """Place on a map; GDAL is only asked about files with coordinates."""
        if not self._layout.is_on_map or self._dataset is None:
            return None
        return maps.find_place(self._dataset)

    @cached_property
    def whole(self) -> Reader:
        """The reader of whole images: one that says what is wrong with a file."""
        image = None if self._layout.is_bands else _identify(self._file)
        if image is None:
            return TiffBandsReader(self.path, self._file, lambda: self._dataset)
        return PillowReader(self.path, self._file, image)

    def _choose_bands(self, wanted: ImageFormat) -> list[int]:
        """Return GDAL's bands that are the wanted channels; none if the image must be converted."""
        dataset = self._dataset
        if dataset is None or not self._layout.is_plain:
            return []
        if {storage_dtype(np.dtype(name)) for name in dataset.dtypes} != {wanted.dtype}:
            return []
        if dataset.count == 1 and wanted.channels == 3:
            return [1, 1, 1]
        if dataset.count != wanted.channels + self._layout.has_alpha:
            return []
        return list(range(1, wanted.channels + 1))

    def rows(self, wanted: ImageFormat, at_least: int) -> maps.MapRows | None:
        """Return the image by rows; None if only the whole can be read.

        One of fewer pixels is read by rows only if GDAL is open, and decodes what the others do.
        """
        is_small = self._layout.pixels < at_least
        if is_small and not (self._layout.is_exact and self._is_open):
            return None
        bands = self._choose_bands(wanted)
        if not bands:
            return None
        rows = maps.MapRows(self.path, self._dataset, wanted, bands)
        if is_small:
            refuse_bomb(
                self.path,
                rows.width,
                rows.height,
                file=self._file.fileno(),
                pixel_bytes=sum(np.dtype(name).itemsize for name in self._dataset.dtypes),
            )
        rows.read(0, 1)  # can it be decoded? If not, the reader of whole images says why
        return rows

    def mark_nodata(self, ids: NDArray[Any], mark: int) -> int:
        """Set `ids` (H, W) to `mark` where the image is transparent or without data; return how often."""
        return maps.mark_nodata(ids, self.path, self._dataset, mark)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        if self._is_open:
            self._dataset.close()


def _read_directories(file: IO[bytes]) -> Iterable[Mapping[int, Any]]:
    """Return the tags of each image in an open TIFF."""
    file.seek(0)
    start = file.read(8)
    if start[2] == 43:  # BigTIFF
        start += file.read(8)
    directory = ImageFileDirectory_v2(start)
    found: dict[int, ImageFileDirectory_v2] = {}
    while directory.next and directory.next not in found:
        offset = directory.next
        file.seek(offset)
        directory = found[offset] = ImageFileDirectory_v2(start)
        directory.load(file)
    return found.values()
