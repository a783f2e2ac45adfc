"""TIFF files that may be maps: GDAL gives the place, and rows.

Pillow and tifffile, which open a file in less time, give the whole image. Each library opens a file
when it is asked for something that no library which has it open can say.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import (
    Header,
    ImageFormat,
    Pixels,
    Scene,
    refuse_bomb,
    storage_dtype,
    upright,
)
from unet_ddp.data.readers.resize import fit_pixels
from unet_ddp.errors import check_installed, install_command
from unet_ddp.extras.formats.tiff import TiffFile
from unet_ddp.extras.geo import checks, sides
from unet_ddp.extras.geo.maps import Place, find_place, gdal, open_map

_AT_ONCE = 512  # rows of which no-data pixels are read


class MapFile(TiffFile, Scene):
    """An open TIFF, with its place on a map if it has one."""

    find_places = staticmethod(checks.find_places)
    check_pairs = staticmethod(checks.check_pairs)
    check_kinds = staticmethod(checks.check_kinds)
    check_sides = staticmethod(sides.check_sides)

    @classmethod
    def missing(cls) -> str:
        """Return how to install rasterio, if it is not there."""
        return install_command("rasterio", "geo")

    @cached_property
    def _dataset(self) -> Any:
        """The file as GDAL opens it; None without rasterio, or if it can't."""
        if self.missing():
            return None
        with suppress(Exception):
            return open_map(self.path)
        return None

    @property
    def _is_open(self) -> bool:
        """True if GDAL has opened the file."""
        return self.__dict__.get("_dataset") is not None

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._is_open:
            self._dataset.close()

    @cached_property
    def place(self) -> Place | None:
        """Place on a map; GDAL is only asked about files with coordinates."""
        if not self.layout.is_on_map or self._dataset is None:
            return None
        with suppress(Exception):  # of an odd CRS
            return find_place(self._dataset, self.layout.orientation)
        return None

    @property
    def resolution(self) -> float | None:
        """Metres of a pixel on the ground; None if the file has no place on a map."""
        return self.place.resolution if self.place else None

    @property
    def header(self) -> Header:
        """Properties of the file."""
        return replace(super().header, ground_resolution=self.resolution)

    def find_scale(self, wanted: ImageFormat, scale: float) -> float:
        """Return the scale that brings the image to the wanted ground resolution, if there is one."""
        if wanted.ground_resolution is None:
            return scale
        if self.missing():
            check_installed("rasterio", "geo", f"{self.path}: its ground resolution")
        return checks.ground_scale(self.path, self.resolution, scale, wanted.ground_resolution)

    def find_format(self, wanted: ImageFormat) -> ImageFormat:
        """Return the format as which a map is predicted: with its own value of no data."""
        nodata = self.nodata if self.place else None
        return wanted if nodata is None else replace(wanted, nodata=nodata)

    def decode(self, page: int) -> NDArray[Any] | None:
        """Return the pixels (H, W, C) of a page, from 1, by GDAL; None if it can't."""
        if self._dataset is None:
            return None
        with open_map(self.path, page=page) as dataset, gdal(self.path):
            return np.ascontiguousarray(np.moveaxis(dataset.read(), 0, -1))

    def read_bands(self, bands: list[int] | None = None, window: Any = None) -> NDArray[Any]:
        """Return bands of the image, or all, (H, W, C), in the file's own type."""
        with gdal(self.path):
            stored = self._dataset.read(bands, window=window)
        return np.ascontiguousarray(np.moveaxis(stored, 0, -1))

    def rows(self, wanted: ImageFormat, at_least: int) -> MapRows | None:
        """Return the image by rows; None if only the whole can be read.

        One of fewer pixels is read by rows only if GDAL is open, and decodes what the others do.
        """
        is_small = self.layout.pixels < at_least
        if is_small and not (self.layout.is_exact and self._is_open):
            return None
        bands = self._choose_bands(wanted)
        if not bands:
            return None
        rows = MapRows(self, self._dataset, wanted, bands)
        if is_small:
            self.check_rows(rows.height)
        rows.read(0, 1)  # can it be decoded? If not, the reader of whole images says why
        return rows

    def check_rows(self, count: int) -> None:
        """Raise a TooLargeError if so many rows of so small a file are no real image."""
        pixel_bytes = sum(np.dtype(name).itemsize for name in self._dataset.dtypes)
        size, file = (self._dataset.width, count), self._file.fileno()
        refuse_bomb(self.path, *size, file=file, pixel_bytes=pixel_bytes)

    def _choose_bands(self, wanted: ImageFormat) -> list[int]:
        """Return GDAL's bands that are the wanted channels; none if the image must be converted."""
        dataset = self._dataset
        if dataset is None or not self.layout.is_plain:
            return []
        if {storage_dtype(np.dtype(name)) for name in dataset.dtypes} != {wanted.dtype}:
            return []
        if dataset.count == 1 and wanted.channels == 3:
            return [1, 1, 1]
        bands = list(range(1, dataset.count + 1))
        if self.layout.alpha is not None:
            del bands[self.layout.alpha]
        return bands if len(bands) == wanted.channels else []

    def mark_nodata(self, ids: NDArray[Any], mark: int, at: tuple[int, int] = (0, 0)) -> int:
        """Set `ids` (H, W) to `mark` where the image is transparent or without data; return how often.

        They may be a part of the image, which begins `at` a row and a column.
        """
        dataset = self._dataset
        count, (first, left) = 0, at
        with gdal(self.path):
            flags = enumerate(dataset.mask_flag_enums, start=1)
            bands = [band for band, kinds in flags if kinds[0].name != "all_valid"]
            if not bands:
                return 0
            if self.layout.orientation > 1:  # whole, as its pixels are read
                turned = upright(self._find_empty(bands), self.layout.orientation)
                ids[turned] = mark
                return int(np.count_nonzero(turned))
            for top in range(0, len(ids), _AT_ONCE):
                part = ids[top : top + _AT_ONCE]
                row = first + top
                window = (row, row + len(part)), (left, left + ids.shape[1])
                empty = self._find_empty(bands, window)
                part[empty] = mark
                count += int(np.count_nonzero(empty))
        return count

    def _find_empty(self, bands: list[int], window: Any = None) -> NDArray[np.bool_]:
        """Return which pixels of a part (h, w) are transparent or without data, as `find_nodata` has it."""
        dataset = self._dataset
        in_bands = np.all if dataset.dtypes[0] == "uint8" else np.any
        empty: NDArray[np.bool_] = in_bands(dataset.read_masks(bands, window=window) == 0, axis=0)
        if dataset.nodata is not None and dataset.dtypes[0].startswith("float"):
            # GDAL takes nan for data beside a value of no data.
            empty |= np.isnan(dataset.read(bands, window=window)).any(axis=0)
        return empty


class MapRows:
    """A TIFF, read when its rows are asked for."""

    def __init__(self, file: MapFile, dataset: Any, wanted: ImageFormat, bands: list[int]) -> None:
        self.height, self.width = dataset.height, dataset.width
        self._file = file
        self._wanted = wanted
        self._bands = bands

    def read(self, top: int, bottom: int, columns: range | None = None) -> Pixels:
        """Return the rows `top` to `bottom`, or some columns of them, with no-data pixels filled; see `MapFile.check_rows`."""
        self._file.check_rows(bottom - top)
        columns = columns or range(self.width)
        window = (top, bottom), (columns.start, columns.stop)
        pixels = self._file.read_bands(self._bands, window).astype(self._wanted.dtype, copy=False)
        return fit_pixels(pixels, self._wanted, (bottom - top, len(columns)), self._file.path)[0]
