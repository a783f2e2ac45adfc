"""Outlines of the objects in a mask, as GeoJSON polygons.

Coordinates are the image's: x to the right, y down, in pixels; (0, 0) is the upper left corner of
the upper left pixel and (W, H) the lower right corner of the last one. An outline runs along the
pixels' edges, so the area of a polygon less its nodata_mask is the object's number of pixels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.prediction.outputs.files import replacing

Ring = list[list[int]]


def outline(ids: NDArray[np.uint8], labels: Labels, image: str) -> Iterator[dict[str, Any]]:
    """A GeoJSON feature for each object in `ids` (H, W): pixels of a class that share edges.

    Of two classes, the first is the background and has none.
    """
    for k in range(1 if labels.num_classes == 2 else 0, labels.num_classes):
        for rings, area in _objects(ids == k):
            yield {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": rings},
                "properties": {"image": image, "class": labels.class_names[k], "area": area},
            }


def _objects(mask: NDArray[np.bool_]) -> Iterator[tuple[list[Ring], int]]:
    """Outer ring and nodata_mask of each object, and its number of pixels."""
    import cv2

    count, numbers, boxes, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=4)
    for number in range(1, count):
        left, top, width, height, area = map(int, boxes[number])
        inside = numbers[top : top + height, left : left + width] == number
        yield _rings(inside, left, top), area


def _rings(inside: NDArray[np.bool_], left: int, top: int) -> list[Ring]:
    """The outer ring of one object and its nodata_mask, closed.

    OpenCV's contours go through pixels. They are taken in a finer picture, whose points are the
    centres (odd), the edges and the corners (even) of the pixels, and which has each pixel with its
    edges and corners: there they go along the edges. A diagonal step has cut a corner off.
    """
    import cv2

    height, width = inside.shape
    fine = np.zeros((2 * height + 1, 2 * width + 1), np.uint8)
    for down in range(3):
        for right in range(3):
            fine[down : down + 2 * height : 2, right : right + 2 * width : 2] |= inside
    contours, _ = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    rings = [_corners(contour[:, 0]) // 2 + (left, top) for contour in contours]
    rings.sort(key=lambda ring: -abs(_area(ring)))  # the outer one holds all others
    wound = [  # RFC 7946: the outer ring counterclockwise, nodata_mask clockwise, y being upward
        ring if (_area(ring) > 0) == (place == 0) else ring[::-1]
        for place, ring in enumerate(rings)
    ]
    return [[*ring.tolist(), ring[0].tolist()] for ring in wound]


def _corners(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """A contour in the fine picture with its cut corners put in, and nothing but corners left."""
    after = np.roll(points, -1, axis=0)
    diagonal = (points != after).all(axis=1)
    x = np.where(points[:, 0] % 2 == 0, points[:, 0], after[:, 0])
    y = np.where(points[:, 1] % 2 == 0, points[:, 1], after[:, 1])
    pairs = np.stack([points, np.stack([x, y], axis=1)], axis=1)
    path = pairs.reshape(-1, 2)[np.stack([np.ones_like(diagonal), diagonal], axis=1).ravel()]
    come, go = path - np.roll(path, 1, axis=0), np.roll(path, -1, axis=0) - path
    turns = (come * go[:, ::-1] * (1, -1)).sum(axis=1) != 0
    corners: NDArray[np.int32] = path[turns]
    return corners


def _area(ring: NDArray[np.int32]) -> float:
    """Signed, by the shoelace formula; above 0 where it runs from x towards y."""
    x, y = ring[:, 0].astype(np.int64), ring[:, 1].astype(np.int64)
    return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) / 2


def as_text(features: Iterable[dict[str, Any]]) -> str:
    """Features as they stand in the file, separated by commas."""
    return ",".join(json.dumps(feature, separators=(",", ":")) for feature in features)


def write_features(path: Path, texts: Iterable[bytes]) -> None:
    """A GeoJSON file of what `as_text` made of each image.

    Raises:
        UserError: it can't be written.
    """
    with replacing(path) as half, half.open("wb") as file:
        file.write(b'{"type":"FeatureCollection","features":[')
        comma = b"\n"
        for text in texts:
            if text:
                file.write(comma + text)
                comma = b",\n"
        file.write(b"\n]}\n")
