"""The objects in masks as polygons, in GeoJSON.

Coordinates are the image's: x to the right, y down, in pixels; (0, 0) is the upper left corner of
the upper left pixel and (W, H) the lower right corner of the last one. Rings run along the edges of
pixels, so that the area of a polygon without its holes is the object's number of pixels. Of an image
on a map, they become longitude and latitude as RFC 7946 asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.maps import Place
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask, Part
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ListFile

Ring = list[list[int]]

_DIGITS = 9  # of degrees: a tenth of a millimetre


def polygon_file(path: Path, labels: Labels, config: PredictConfig) -> ListFile:
    """Return the GeoJSON file of the objects in all images."""
    header = b'{"type":"FeatureCollection","features":['
    return ListFile(path, partial(format_geojson, labels=labels), header, b",", footer=b"]}\n")


def format_geojson(listed: Listed, labels: Labels) -> str:
    """Return an image's features as JSON, separated by commas: with longitude and latitude, or pixels."""
    features, place = list(polygons(listed.image.name, listed.mask, labels)), listed.place
    if place is not None and not place.crs:  # it is in storage: others were checked before
        raise UserError(
            f"{listed.image.name}: has map coordinates without a CRS; set it by gdal_edit.py -a_srs"
        )
    if place is not None:
        _to_map(features, place)
    return ",".join(json.dumps(feature, separators=(",", ":")) for feature in features)


def _to_map(features: list[dict[str, Any]], place: Place) -> None:
    """Replace the pixels' coordinates of an image's features by longitude and latitude."""
    shapes = [feature["geometry"]["coordinates"] for feature in features]
    rings = [np.array(ring, float) for shape in shapes for ring in shape]
    if not rings:
        return
    from rasterio.warp import transform

    points = place.to_map(np.concatenate(rings))  # (N, 2)
    points = np.stack(transform(place.crs, "OGC:CRS84", *points.T), axis=1).round(_DIGITS)
    a, b, _, d, e, _ = place.transform
    step = -1 if a * e < b * d else 1  # y upward mirrors rings, which then run the other way round
    ends = np.cumsum([len(ring) for ring in rings])[:-1]
    moved = iter([part[::step].tolist() for part in np.split(points, ends)])
    for shape in shapes:
        shape[:] = [next(moved) for _ in shape]


def polygons(name: str, mask: Mask, labels: Labels) -> Iterator[dict[str, Any]]:
    """Yield a GeoJSON feature for each object in `mask` (H, W); see `Labels.parts`."""
    for part in labels.parts(mask):
        about: dict[str, Any] = {"image": name, "class": labels.class_names[part.class_id]}
        if part.number is not None:
            about["number"] = part.number
        about["area"] = int(part.inside.sum())
        shape = {"type": "Polygon", "coordinates": trace_rings(part)}
        yield {"type": "Feature", "geometry": shape, "properties": about}


def trace_rings(part: Part) -> list[Ring]:
    """Return the outer ring and the holes of one object, closed.

    OpenCV's contours go through the centres of pixels. On a grid of twice the resolution, with a
    point for each centre (odd), edge and corner (even) of a pixel, they go along the edges of the
    original pixels, except for diagonal steps, which cut a corner off.
    """
    import cv2

    height, width = part.inside.shape
    fine = np.zeros((2 * height + 1, 2 * width + 1), np.uint8)
    for down in range(3):
        for right in range(3):
            fine[down : down + 2 * height : 2, right : right + 2 * width : 2] |= part.inside
    contours, _ = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    rings = [_corners(contour[:, 0]) // 2 + (part.left, part.top) for contour in contours]
    rings.sort(key=lambda ring: -abs(_area(ring)))  # the outer one contains all others
    wound = [  # RFC 7946: the outer ring counterclockwise, holes clockwise, with y upward
        ring if (_area(ring) > 0) == (place == 0) else ring[::-1]
        for place, ring in enumerate(rings)
    ]
    return [[*ring.tolist(), ring[0].tolist()] for ring in wound]


def _corners(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the corners of a contour on the fine grid, with those that it cuts off restored."""
    after = np.roll(points, -1, axis=0)
    diagonal = (points != after).all(axis=1)
    x = np.where(points[:, 0] % 2 == 0, points[:, 0], after[:, 0])
    y = np.where(points[:, 1] % 2 == 0, points[:, 1], after[:, 1])
    pairs = np.stack([points, np.stack([x, y], axis=1)], axis=1)
    path = pairs.reshape(-1, 2)[np.stack([np.ones_like(diagonal), diagonal], axis=1).ravel()]
    before, ahead = path - np.roll(path, 1, axis=0), np.roll(path, -1, axis=0) - path
    turns = (before * ahead[:, ::-1] * (1, -1)).sum(axis=1) != 0  # the cross product
    corners: NDArray[np.int32] = path[turns]
    return corners


def _area(ring: NDArray[np.int32]) -> float:
    """Return the signed area (shoelace formula), above 0 if it turns from x towards y."""
    x, y = ring[:, 0].astype(np.int64), ring[:, 1].astype(np.int64)
    return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) / 2
