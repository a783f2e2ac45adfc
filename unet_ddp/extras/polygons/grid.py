"""The grid of an image's pixels, and polygons on it."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.geo.maps import Place, gdal
from unet_ddp.extras.polygons.layers import Bounds, Geometries, Layer

_TOLERANCE = 0.05  # pixels, by which an edge may lie off, as it is straight in one CRS only
_NEAR = 10  # images to each side, within which polygons are projected
_MARGIN = 0.02  # of a window's extent, added where polygons are looked for

Points = NDArray[np.float64]
"""(N, 2)"""


@dataclass(frozen=True)
class Grid:
    """The pixels of an image, in whose CRS the labels may be or not."""

    image: Path
    size: Size
    place: Place
    labels: Path
    crs: str  # of the labels; empty if it is the image's

    def to_pixels(self, points: Points) -> Points:
        """Return (N, 2) columns and rows of points in the labels' CRS; not finite where there is no way."""
        if self.crs:
            points = _project(points, self.crs, self.place.crs)
        a, b, c, d, e, f = self.place.transform
        inverse = np.linalg.inv([[a, d], [b, e]])
        found: Points = (points - (c, f)) @ inverse
        return found

    def find_bounds(self, rows: slice, columns: slice) -> Bounds | None:
        """Return the extent of a window in the labels' CRS, and a margin; None if it has none there."""
        bounds = self._find_extent(rows, columns)
        if self.crs:
            bounds = _project_bounds(bounds, self.place.crs, self.crs)
        left, bottom, right, top = bounds
        if not np.isfinite(bounds).all() or left > right:  # over a pole, or the date line
            return None
        x, y = _MARGIN * (right - left), _MARGIN * (top - bottom)
        return left - x, bottom - y, right + x, top + y

    def _find_extent(self, rows: slice, columns: slice) -> Bounds:
        """Return the extent of a window in the image's CRS."""
        corners = [(x, y) for x in (columns.start, columns.stop) for y in (rows.start, rows.stop)]
        points = self.place.to_map(np.array(corners))
        (left, bottom), (right, top) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        return left, bottom, right, top

    @property
    def _whole(self) -> tuple[slice, slice]:
        return slice(0, self.size[0]), slice(0, self.size[1])

    @cached_property
    def bounds(self) -> Bounds | None:
        """The extent of the image in the labels' CRS, and a margin."""
        return self.find_bounds(*self._whole)

    def compare(self, labels: Bounds) -> tuple[Bounds, Bounds]:
        """Return the extents of the image and of all labels, in the image's CRS."""
        if self.crs:
            labels = _project_bounds(labels, self.crs, self.place.crs)
        return self._find_extent(*self._whole), labels

    @property
    def crs_name(self) -> str:
        """The EPSG code of the image's CRS, or its name."""
        from rasterio.crs import CRS

        with gdal(self.image):
            crs = CRS.from_wkt(self.place.crs)
            code = crs.to_epsg()
        return f"EPSG:{code}" if code else crs.to_wkt().split('"')[1]

    @cached_property
    def longest(self) -> float:
        """Length of an edge, in the labels' CRS, that the image's CRS bends by `_TOLERANCE`: by its square."""
        if not self.crs or self.bounds is None:
            return math.inf
        left, bottom, right, top = self.bounds
        ends = np.array([[[0, 0], [1, 1]], [[0, 1], [1, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 1]]])
        lines = (left, bottom) + ends * (right - left, top - bottom)  # (4, 2, 2)
        middles = self.to_pixels(lines.mean(axis=1))
        moved = self.to_pixels(lines.reshape(-1, 2)).reshape(-1, 2, 2)
        bent = np.hypot(*(middles - moved.mean(axis=1)).T)
        lengths = np.hypot(*(lines[:, 1] - lines[:, 0]).T)
        found = lengths * np.sqrt(_TOLERANCE / np.maximum(bent, 1e-9))
        return float(np.nanmin(found))

    def place_all(self, geometries: Geometries, *, top: int, left: int) -> Geometries:
        """Return polygons with columns from `left` and rows from `top` on as coordinates; long edges get points.

        Raises:
            UserError: one can't be projected to the image's CRS.
        """
        import shapely

        if self.crs:
            geometries = self._cut(geometries)
            if math.isfinite(self.longest):
                geometries = shapely.segmentize(geometries, self.longest)
        moved = shapely.transform(geometries, lambda points: self.to_pixels(points) - (left, top))
        if not np.isfinite(shapely.get_coordinates(moved)).all():
            raise UserError(
                f"{self.labels}: a polygon can't be brought to the CRS of {self.image}; cut the labels to its "
                "surroundings: ogr2ogr -clipsrc"
            )
        return moved  # type: ignore[no-any-return]

    def _cut(self, geometries: Geometries) -> Geometries:
        """Return polygons without what is far from the image, where its CRS may end."""
        import shapely

        if self.bounds is None:
            return geometries
        left, bottom, right, top = self.bounds
        x, y = _NEAR * (right - left), _NEAR * (top - bottom)
        near = left - x, bottom - y, right + x, top + y
        boxes = shapely.bounds(geometries)  # (N, 4)
        is_far = (boxes[:, :2] < near[:2]).any(axis=1) | (boxes[:, 2:] > near[2:]).any(axis=1)
        kept = geometries.copy()
        kept[is_far] = shapely.clip_by_rect(geometries[is_far], *near)
        return kept


def _project(points: Points, one: str, other: str) -> Points:
    from rasterio.warp import transform

    found = np.full(points.shape, np.nan)
    with suppress(Exception):  # GDAL's and PROJ's are of many kinds
        found[:] = np.array(transform(one, other, *points.T)).T
    return found


def _project_bounds(bounds: Bounds, one: str, other: str) -> Bounds:
    from rasterio.warp import transform_bounds

    found = (math.nan,) * 4
    with suppress(Exception):
        found = transform_bounds(one, other, *bounds)
    return found


def open_grid(image: Path, layer: Layer) -> Grid:
    """Return the grid of an image.

    Raises:
        UserError: the image or the labels are on no map.
    """
    return _open_grid(image, layer, find_stamp(image))


@lru_cache(maxsize=256)
def _open_grid(image: Path, layer: Layer, stamp: Stamp) -> Grid:
    check_installed("rasterio", "geo", layer.path)
    with Source(image) as source:
        place, size = source.place, source.header.size
    if place is None or not place.crs:
        what = "CRS" if place else "map coordinates"
        raise UserError(
            f"{image}: has no {what}, so the polygons of {layer.path} have no place on it; give it them by "
            "gdal_translate -a_srs -a_ullr, or use masks that are images"
        )
    if not layer.crs:
        advice = "copy its .prj, too, or " if layer.path.suffix.lower() == ".shp" else ""
        raise UserError(
            f"{layer.path}: has no CRS, so its polygons have no place on {image}; {advice}give it one: ogr2ogr "
            f"-a_srs EPSG:NUMBER new.gpkg {layer.path}"
        )
    from rasterio.crs import CRS

    with gdal(layer.path):
        is_same = CRS.from_user_input(layer.crs) == CRS.from_user_input(place.crs)
    return Grid(image, size, Place(*place), layer.path, "" if is_same else layer.crs)
