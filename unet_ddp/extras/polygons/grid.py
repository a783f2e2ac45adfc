"""The grid of an image's pixels, and polygons on it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.base import TooLargeError
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.geo.maps import Place, gdal, open_map
from unet_ddp.extras.polygons.layers import Bounds, Geometries, Layer

_NEAR = 10  # images to each side, within which polygons are projected
_MARGIN = 0.02  # of a window's extent, added where polygons are looked for

WHOLE = slice(None)
Points = NDArray[np.float64]
"""(N, 2)"""


@dataclass(frozen=True)
class Grid:
    """The pixels of an image, in whose CRS the labels may be or not."""

    image: Path
    size: Size
    place: Place
    crs: str  # of the labels
    is_same: bool  # as the image's
    is_wrapped: bool = False  # True if the labels have longitudes beyond 180 degrees, and the image other coordinates

    def find_bounds(
        self, rows: slice = WHOLE, columns: slice = WHOLE, margin: float = _MARGIN
    ) -> Bounds | None:
        """Return the extent of a window in the labels' CRS, and a margin; None if it has none there, or several."""
        import shapely
        from rasterio.warp import transform_bounds

        if self.is_wrapped:
            return None
        (first, last, _), (left, right, _) = map(slice.indices, (rows, columns), self.size)
        outline = shapely.transform(shapely.box(left, first, right, last), self.place.to_map)
        found = np.full(4, np.nan)
        with suppress(Exception):  # GDAL's and PROJ's are of many kinds
            found[:] = transform_bounds(self.place.crs, self.crs, *shapely.bounds(outline))
        sides = np.tile(found[2:] - found[:2], 2)
        if not ((sides > 0) & np.isfinite(sides)).all():  # over a pole, or the date line
            return None
        return tuple((found + margin * sides * (-1, -1, 1, 1)).tolist())

    def to_image(self, geometries: Geometries) -> Geometries:
        """Return polygons in the image's CRS; long edges get points, and what is far from the image is cut off.

        Raises:
            UserError: one can't be projected.
        """
        if self.is_same:
            return geometries
        import shapely

        near = self.find_bounds(margin=_NEAR)  # beyond it, the image's CRS may end
        if near is not None:
            left, bottom, right, top = near
            sides = (right - left + top - bottom) / (2 * _NEAR + 1)
            piece = sides * 32 / (8192 + sum(self.size))  # bends by less than 0.05 pixels
            geometries = shapely.segmentize(shapely.clip_by_rect(geometries, *near), piece)
        moved: Geometries = shapely.transform(geometries, self._project)
        if not np.isfinite(shapely.get_coordinates(moved)).all():
            raise UserError(
                f"{self.image}: a polygon can't be brought to its CRS; cut the labels to its surroundings: ogr2ogr "
                "-clipsrc"
            )
        return moved

    def to_pixels(self, points: Points) -> Points:
        """Return columns and rows (N, 2) of points in the image's CRS: the same for whatever part is burnt."""
        a, b, c, d, e, f = self.place.transform
        found: Points = (points - (c, f)) @ np.linalg.inv([[a, d], [b, e]])
        return found

    def _project(self, points: Points) -> Points:
        """Return (N, 2) points of the labels' CRS in the image's; not finite where there is no way."""
        from rasterio.warp import transform

        found = np.full(points.shape, np.nan)
        with suppress(Exception):  # GDAL's and PROJ's are of many kinds
            found[:] = np.transpose(transform(self.crs, self.place.crs, *points.T))
        return found


def open_grid(image: Path, layer: Layer) -> Grid:
    """Return the grid of an image.

    Raises:
        UserError: the image or the labels are on no map.
    """
    return _open_grid(image, layer, find_stamp(image))


@lru_cache(maxsize=1024)
def _open_grid(image: Path, layer: Layer, stamp: Stamp) -> Grid:
    check_installed("rasterio", "geo", layer.path)
    with Source(image) as source:
        place = source.place
        try:
            size = source.header.size
        except TooLargeError:  # for Pillow, as a whole
            with open_map(image) as dataset:
                size = dataset.shape
    if place is None or not place.crs:
        what = "CRS" if place else "map coordinates"
        raise UserError(
            f"{image}: has no {what}, so the polygons of {layer.path} have no place on it; give it them by "
            "gdal_translate -a_srs -a_ullr, or use masks that are images"
        )
    if not layer.crs:
        raise UserError(
            f"{layer.path}: has no CRS, so its polygons have no place on {image}; copy the .prj of a shapefile, too, or "
            f"give it one: ogr2ogr -a_srs EPSG:NUMBER new.gpkg {layer.path}"
        )
    from rasterio.crs import CRS

    with gdal(layer.path):
        crs = CRS.from_user_input(layer.crs)
        is_same = crs == CRS.from_user_input(place.crs)
    is_wrapped = crs.is_geographic and max(-layer.extent[0], layer.extent[2]) > 180
    return Grid(image, size, Place(*place), layer.crs, is_same, is_wrapped and not is_same)
