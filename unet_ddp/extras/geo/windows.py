"""TIFFs by windows, as GDAL reads them: of this machine, or objects of which it fetches the tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import Header, storage_dtype
from unet_ddp.errors import install_command
from unet_ddp.extras.formats.tiff import Layout
from unet_ddp.extras.geo.maps import Place, find_place, gdal, open_map


def open_windows(
    path: Path, opener: Callable[[Path], IO[bytes]] | None = None
) -> MapWindows | None:
    """Return a TIFF by windows; None if that needs rasterio, or its pixels are stored in other ways.

    `opener` opens an object in storage.
    """
    if install_command("rasterio", "geo"):
        return None
    with opener(path) if opener else path.open("rb") as file:
        layout = Layout.read(file)
    dataset = open_map(path, opener=opener and (lambda *_, **__: opener(path)))
    kinds = [kind.name for kind in dataset.colorinterp]
    is_indexed = kinds == ["palette"] and dataset.dtypes == ("uint8",)
    is_packed = "NBITS" in dataset.tags(1, ns="IMAGE_STRUCTURE")
    is_stack = "\nimages=" in dataset.tags().get("TIFFTAG_IMAGEDESCRIPTION", "")  # ImageJ's
    if layout.orientation > 1 or is_packed or is_stack or not (layout.is_plain or is_indexed):
        return None
    bands = list(range(1, dataset.count + 1))
    if layout.alpha is not None:
        bands.append(bands.pop(layout.alpha))
    channels = 3 if is_indexed else len(bands)
    if layout.alpha is not None:
        channels -= 1
    place = None
    with suppress(Exception):  # of an odd CRS
        place = find_place(dataset)
    nodata = None if is_indexed else dataset.nodata
    header = Header(
        dataset.width,
        dataset.height,
        channels,
        storage_dtype(np.dtype(dataset.dtypes[0])),
        has_alpha=layout.alpha is not None,
        palette=_read_palette(dataset) if is_indexed else None,
        nodata=math.nan if nodata is not None and math.isnan(nodata) else nodata,
        ground_resolution=place.resolution if place else None,
        is_array=True,
    )
    return MapWindows(path, dataset, bands, header, place)


def _read_palette(dataset: Any) -> tuple[tuple[int, int, int], ...]:
    colours = dataset.colormap(1)
    return tuple(colours.get(index, (0, 0, 0))[:3] for index in range(256))


class MapWindows:
    """An open TIFF. One thread uses it at a time."""

    def __init__(
        self, path: Path, dataset: Any, bands: list[int], header: Header, place: Place | None
    ) -> None:
        self.path, self.header, self.place = path, header, place
        self._dataset, self._bands = dataset, bands

    def read_window(self, rows: slice, columns: slice) -> NDArray[Any]:
        """Return the bands (h, w, C) of a part; alpha is the last."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self.path):
            stored = self._dataset.read(self._bands, window=window)
        return np.ascontiguousarray(np.moveaxis(stored, 0, -1))

    def peek(self, rows: slice, columns: slice, side: int) -> NDArray[Any]:
        """Return some of the pixels of a part, (side, side, C): of overviews, where the file has them."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self.path):
            shape = len(self._bands), side, side
            stored = self._dataset.read(self._bands, window=window, out_shape=shape)
        return np.moveaxis(stored, 0, -1)

    def covers(self, rows: slice, columns: slice) -> bool:
        """Return whether a warped map has all pixels of a part."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self.path):
            return bool(self._dataset.dataset_mask(window=window).all())

    def warped_to(self, other: MapWindows) -> MapWindows:
        """Return this map on the grid of another one, by the nearest pixel; both have a CRS.

        Raises:
            UserError: there is no way from one CRS to the other.
        """
        place, (height, width) = other.place, other.header.size
        assert place is not None
        with gdal(self.path):
            from rasterio import Affine
            from rasterio.vrt import WarpedVRT

            grid = {"crs": place.crs, "transform": Affine(*place.transform)}
            warped = WarpedVRT(self._dataset, **grid, width=width, height=height, add_alpha=True)
        header = replace(
            self.header, width=width, height=height, ground_resolution=place.resolution
        )
        return MapWindows(self.path, warped, self._bands, header, place)
