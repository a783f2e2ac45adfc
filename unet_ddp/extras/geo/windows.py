"""TIFFs by windows, as GDAL reads them: of this machine, or objects of which it fetches the tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import Header, storage_dtype
from unet_ddp.errors import install_command
from unet_ddp.extras.formats.tiff import Layout
from unet_ddp.extras.geo.maps import Place, find_place, gdal, open_map

Open = Callable[[], AbstractContextManager[Any]]
"""Returns a context of rasterio's dataset."""


def open_windows(path: Path, opener: Callable[[], IO[bytes]] | None = None) -> MapWindows | None:
    """Return a TIFF by windows; None if that needs rasterio, or its pixels are stored in other ways.

    `opener` opens an object in storage, for each window: closed by another thread, or by the garbage collector,
    GDAL crashes with it.
    """
    if install_command("rasterio", "geo"):
        return None
    with opener() if opener else path.open("rb") as file:
        layout = Layout.read(file)
    if opener is not None:
        open_again = partial(open_map, path, opener=lambda *_, **__: opener())
        with open_again() as dataset:
            return _describe(path, layout, dataset, open_again)
    dataset = open_map(path)
    return _describe(path, layout, dataset, lambda: nullcontext(dataset))


def _describe(path: Path, layout: Layout, dataset: Any, opened: Open) -> MapWindows | None:
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
    return MapWindows(path, opened, bands, header, place)


def _read_palette(dataset: Any) -> tuple[tuple[int, int, int], ...]:
    colours = dataset.colormap(1)
    return tuple(colours.get(index, (0, 0, 0))[:3] for index in range(256))


class MapWindows:
    """An open TIFF. One thread uses it at a time."""

    def __init__(
        self, path: Path, opened: Open, bands: list[int], header: Header, place: Place | None
    ) -> None:
        self.path, self.header, self.place = path, header, place
        self._opened, self._bands = opened, bands

    def read_window(self, rows: slice, columns: slice, side: int | None = None) -> NDArray[Any]:
        """Return the bands (h, w, C) of a part; alpha is the last.

        With a `side`, some of the pixels, (side, side, C): of overviews, where the file has them.
        """
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        shape = None if side is None else (len(self._bands), side, side)
        with gdal(self.path), self._opened() as dataset:
            stored = dataset.read(self._bands, window=window, out_shape=shape)
        return np.ascontiguousarray(np.moveaxis(stored, 0, -1))

    def covers(self, rows: slice, columns: slice) -> bool:
        """Return whether a warped map has all pixels of a part."""
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self.path), self._opened() as dataset:
            # The last band is alpha, of any type of pixels; GDAL's mask looks at alpha of few types.
            return bool((dataset.read(dataset.count, window=window) > 0).all())

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

        # A value of no data is one of the mask's own: it does not say where the mask ends.
        size = {"width": width, "height": height, "add_alpha": not self.header.has_alpha}

        @contextmanager
        def open_warped() -> Iterator[Any]:
            with (
                self._opened() as dataset,
                WarpedVRT(dataset, **grid, **size, src_nodata=None) as warped,
            ):
                yield warped

        header = replace(
            self.header, width=width, height=height, ground_resolution=place.resolution
        )
        return MapWindows(self.path, open_warped, self._bands, header, place)
