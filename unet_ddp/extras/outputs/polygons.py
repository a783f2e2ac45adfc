"""The objects in masks as polygons, in GeoJSON.

Coordinates are the image's: x to the right, y down, in pixels; (0, 0) is the upper left corner of
the upper left pixel and (W, H) the lower right corner of the last one. Rings run along the edges of
pixels, so that the area of a polygon without its holes is the object's number of pixels. Of an image
on a map, they become longitude and latitude as RFC 7946 asks.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, check_installed
from unet_ddp.files import is_address
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction

Ring = list[list[int]]

_DIGITS = 9  # of degrees: a tenth of a millimetre
_NO_CRS = "map coordinates without a CRS; set it by gdal_edit.py -a_srs"

warnings.filterwarnings("ignore", "Dataset has no geotransform")  # rasterio's, of a plain mask


class Polygons(Output):
    """A GeoJSON file of the objects in all images."""

    path_setting = "polygons"
    header, separator, footer = '{"type":"FeatureCollection","features":[', ",", "]}\n"

    def check(self, images: Mapping[Source, bool]) -> None:
        """Raise a UserError if one file can't have images of these CRS; those in storage are not asked."""
        check_installed("rasterio", "geo", "--polygons")
        owners: dict[str | None, Path] = {}
        places: dict[str, Any] = {}
        for source, is_on_map in images.items():
            if not is_address(source.path):
                place = source.place if is_on_map else None
                owners[place and place.crs] = source.path
                if place and place.crs:
                    places[place.crs] = place
        if None in owners and len(owners) > 1:
            raise UserError(
                f"--polygons {self.path}: {owners[None]} has no map coordinates; predict it apart"
            )
        if "" in owners:
            raise UserError(f"--polygons {self.path}: {owners['']} has {_NO_CRS}")
        for crs, place in places.items():
            try:
                place.to_degrees(np.zeros((1, 2)))
            except UserError as error:
                raise UserError(f"--polygons {self.path}: {owners[crs]}: {error}") from None

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return an image's features: with longitude and latitude, or else with pixels."""
        place = image.source.place
        features = list(polygons(image.name, prediction.mask, self.labels))
        if place is not None:
            if not place.crs:  # it is in storage: others were checked before
                raise UserError(f"{image.name}: has {_NO_CRS}")
            _to_map(features, place)
        return ",".join(json.dumps(feature, separators=(",", ":")) for feature in features)


def _to_map(features: list[dict[str, Any]], place: Any) -> None:
    """Replace the pixels' coordinates of an image's features by longitude and latitude."""
    shapes = [feature["geometry"]["coordinates"] for feature in features]
    rings = [np.array(ring, float) for shape in shapes for ring in shape]
    if not rings:
        return
    points = place.to_degrees(np.concatenate(rings)).round(_DIGITS)  # (N, 2)
    moved = np.split(points, np.cumsum([len(ring) for ring in rings])[:-1])
    if place.is_upright:  # y upward mirrors rings, which then run the other way round
        moved = [ring[::-1] for ring in moved]
    rest = iter(moved)
    for shape in shapes:
        shape[:] = [next(rest).tolist() for _ in shape]


def polygons(name: str, mask: Mask, labels: Labels) -> Iterator[dict[str, Any]]:
    """Yield a GeoJSON feature for each object in `mask` (H, W); see `Labels.regions`."""
    for regions in labels.regions(mask):
        for each in sorted(_find_areas(regions.values, regions.counted)):
            about: dict[str, Any] = {"image": name}
            about["class"] = labels.class_names[regions.ids[each.top, each.left]]
            if regions.are_numbers:
                about["number"] = each.value
            about["area"] = each.pixels
            shape = {"type": "Polygon", "coordinates": each.rings}
            yield {"type": "Feature", "geometry": shape, "properties": about}


class _Area(NamedTuple):
    """Equal pixels that share edges."""

    value: int
    top: int  # of the first pixel
    left: int
    rings: list[Ring]  # closed, the outer one first
    pixels: int


def _find_areas(values: Mask, counted: NDArray[np.bool_]) -> Iterator[_Area]:
    """Yield the areas of the pixels that are `counted`.

    GDAL's rings run along the edges of pixels, but the other way round than RFC 7946 asks: the outer
    ring counterclockwise, holes clockwise, with y upward. Here they begin after their upper left corner.
    """
    from rasterio import Affine
    from rasterio.features import shapes

    # Moved by a pixel, because rasterio warns of coordinates that are not.
    moved = shapes(values, counted, connectivity=4, transform=Affine.translation(1, 1))
    for shape, value in moved:
        rings, pixels = [], 0
        for coordinates in shape["coordinates"]:
            corners = np.array(coordinates[:-1], np.int64) - 1
            ring = np.concatenate([corners[-1:], corners])[::-1]
            rings.append(ring.tolist())
            pixels += _area(ring)
        left, top = min(rings[0], key=lambda corner: corner[::-1])
        yield _Area(int(value), top, left, rings, pixels)


def _area(ring: NDArray[np.int64]) -> int:
    """Return the signed area (shoelace formula), above 0 if it turns from x towards y."""
    x, y = ring[:-1].T
    next_x, next_y = ring[1:].T
    return int((x * next_y - next_x * y).sum()) // 2
