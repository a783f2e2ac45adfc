"""Masks that are burnt when they are read: polygons on the grid of their image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.bands import BandsFile
from unet_ddp.data.readers.base import Codes, Header
from unet_ddp.extras.geo.maps import gdal
from unet_ddp.extras.polygons.burnt_mask import parse
from unet_ddp.extras.polygons.classes import find_codes
from unet_ddp.extras.polygons.grid import WHOLE, open_grid
from unet_ddp.extras.polygons.layers import Features, open_layer
from unet_ddp.extras.polygons.polygon_kind import BURNT

_SHIFT = 1  # columns: of coordinates that are pixels already, rasterio warns, and not only in its own thread


class PolygonFile(BandsFile):
    """The mask that a path names, see `BurntMask`: 0, and the classes of polygons where a pixel's centre is in them.

    Of polygons that share a pixel, the last one in the file has it, or all have it with `overlap`.
    """

    suffixes = (BURNT,)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        found = parse(path)
        assert found is not None, path
        self._mask, self.layer = found, open_layer(found.labels)
        self.grid = open_grid(found.image, self.layer)

    @property
    def header(self) -> Header:
        """Size of the image; one channel."""
        height, width = self.grid.size
        return Header(width, height, 1, "uint8")

    def read_bands(self) -> NDArray[Any]:
        """Return the values (H, W, 1)."""
        return self.read_window(WHOLE, WHOLE)

    def read_mask(self) -> Codes:
        """Return the values (H, W)."""
        values: Codes = self.read_bands()[..., 0]
        return values

    def find(
        self, rows: slice = WHOLE, columns: slice = WHOLE
    ) -> tuple[Features, NDArray[np.int32]]:
        """Return the features in some rows and columns, and the code of each, see `find_codes`."""
        features = self.layer.find(self.grid.find_bounds(rows, columns), self._mask.class_field)
        return features, find_codes(self.layer, features, self._mask)

    def read_window(self, rows: slice, columns: slice) -> NDArray[Any]:
        """Return the values (h, w, 1) of some rows and columns, which need the polygons there alone.

        Outlines are filled by the rule of even and odd, so one that crosses itself needs no repair.
        """
        import shapely
        from rasterio import Affine
        from rasterio.features import rasterize

        features, codes = self.find(rows, columns)
        shapes = self.grid.to_image(features.geometries)
        groups = [shapely.get_num_coordinates(shapes) > 0]
        if self._mask.overlap:
            groups = [groups[0] & (codes == code) for code in np.unique(codes)]
            codes = 1 << codes >> 1
        corner = (columns.start or 0) - _SHIFT, rows.start or 0
        shapes = shapely.transform(shapes, lambda points: self.grid.to_pixels(points) - corner)
        transform = Affine.translation(_SHIFT, 0)
        values = np.zeros(np.broadcast_to(0, self.grid.size)[rows, columns].shape, np.int32)
        with gdal(self.path):
            for chosen in filter(np.any, groups):
                pairs = zip(shapes[chosen].tolist(), codes[chosen].tolist(), strict=True)
                values |= rasterize(pairs, values.shape, transform=transform, dtype="int32")
        small = values.astype(np.uint8)
        return (small if (small == values).all() else values)[..., None]
