"""Masks that are burnt when they are read: polygons on the grid of their image."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.bands import IGNORED_CODE, BandsFile, join_planes
from unet_ddp.data.readers.base import Codes, Header
from unet_ddp.extras.geo.maps import gdal
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.classes import NO_CLASS, find_codes
from unet_ddp.extras.polygons.grid import Grid, open_grid
from unet_ddp.extras.polygons.layers import Geometries, Layer, open_layer
from unet_ddp.extras.polygons.polygon_kind import BURNT

_SHIFT = 1  # columns: of coordinates that are pixels already, rasterio warns, and not only in its own thread


class PolygonFile(BandsFile):
    """The mask that a path names, see `BurntMask`: 0, and the classes of polygons where a pixel's centre is in them.

    Of polygons that share a pixel, the last one in the file has it, or all have it with `overlap`.
    """

    suffixes = (BURNT,)

    @cached_property
    def _burnt(self) -> BurntMask:
        found = parse(self.path)
        assert found is not None, self.path
        return found

    @cached_property
    def _layer(self) -> Layer:
        return open_layer(self._burnt.labels)

    @cached_property
    def _grid(self) -> Grid:
        return open_grid(self._burnt.image, self._layer)

    @property
    def header(self) -> Header:
        """Size of the image; one channel."""
        height, width = self._grid.size
        return Header(width, height, 1, "uint8")

    def read_bands(self) -> NDArray[Any]:
        """Return the values (H, W, 1)."""
        height, width = self._grid.size
        return self.read_window(slice(0, height), slice(0, width))

    def read_mask(self) -> Codes:
        """Return the values (H, W)."""
        values: Codes = self.read_bands()[..., 0]
        return values

    def read_window(self, rows: slice, columns: slice) -> NDArray[Any]:
        """Return the values (h, w, 1) of some rows and columns, which need the polygons there alone."""
        burning, layer = self._burnt.burning, self._layer
        bounds = self._grid.find_bounds(rows, columns)
        ids, geometries, values = layer.find(bounds, burning.class_field)
        codes = find_codes(layer, ids, values, burning)
        placed = self._grid.place_all(geometries, top=rows.start, left=columns.start - _SHIFT)
        size = rows.stop - rows.start, columns.stop - columns.start
        if not burning.overlap:
            return self._burn(placed, codes, size)[..., None]

        def cover(code: int) -> NDArray[np.bool_]:
            chosen = placed[codes == code]
            return self._burn(chosen, np.ones(len(chosen), np.int32), size) > 0

        found = join_planes(map(cover, range(1, len(burning.names) + 1)))
        if NO_CLASS in codes:
            found = found | cover(NO_CLASS) * np.int32(IGNORED_CODE)
        return found[..., None]

    def _burn(self, placed: Geometries, codes: NDArray[np.int32], size: Size) -> Codes:
        """Return values (H, W): of each pixel, the code of the last polygon that its centre is in, or 0.

        Outlines are filled by the rule of even and odd, so one that crosses itself needs no repair.
        """
        import shapely
        from rasterio import Affine
        from rasterio.features import rasterize

        is_large = codes.max(initial=0) > np.iinfo(np.uint8).max or codes.min(initial=0) < 0
        values: Codes = np.zeros(size, np.int32 if is_large else np.uint8)
        is_area = ~(shapely.is_missing(placed) | shapely.is_empty(placed))
        shapes = zip(placed[is_area].tolist(), codes[is_area].tolist(), strict=True)
        if is_area.any():
            with gdal(self.path):
                rasterize(shapes, out=values, transform=Affine.translation(_SHIFT, 0))
        return values
