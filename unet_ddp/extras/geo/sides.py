"""Maps on both sides of a split that lie next to each other: what is on one tells what is on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.errors import count_of
from unet_ddp.extras.geo.maps import Place

if TYPE_CHECKING:
    from unet_ddp.checks.metadata import ScannedPair
    from unet_ddp.data.splits import Split

Placed = Mapping[Path, tuple[Place | None, Size]]
"""Images with their places and sizes (height, width)."""

_CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])  # columns and rows, in sizes of an image
_MOST = 10**8  # pairs of images to compare
_APART = 1e-6  # of an image's side: less is rounding


def check_sides(scanned: Sequence[ScannedPair], split: Split) -> list[str]:
    """Return a warning if scanned maps on two sides of a split lie next to each other."""
    known = {}
    for pair, image, _ in scanned:
        if image.place is not None:
            known[pair.name] = pair.image, (Place(*image.place), image.header.size)
    sides = [
        dict(known[name] for name in side.names() if name in known)
        for side in (split.training, split.validation)
    ]
    return find_neighbours(sides[0], sides[1])


def find_neighbours(training: Placed, validation: Placed) -> list[str]:
    """Return a warning if any image overlaps or touches another one of the other side, in the same CRS."""
    paths, boxes = _find_boxes(training)
    others, other_boxes = _find_boxes(validation)
    if not paths or len(paths) * len(others) > _MOST:
        return []
    near = []
    for (path, crs), box in zip(others, other_boxes, strict=True):
        slack = (box[2:] - box[:2]) * _APART
        touches = (boxes[:, :2] <= box[2:] + slack) & (box[:2] - slack <= boxes[:, 2:])
        found = [paths[row] for row in np.flatnonzero(touches.all(axis=1)).tolist()]
        near += [(path, other) for other, its_crs in found if other != path and its_crs == crs][:1]
    if not near:
        return []
    one, other = near[0]
    return [
        f"{count_of(len(near), 'validation image')} next to or over training images on the map, e.g. {one} at {other}: "
        "scores will be too good; keep neighbours together with --group-pattern or a list's column group"
    ]


def _find_boxes(side: Placed) -> tuple[list[tuple[Path, str]], NDArray[np.float64]]:
    """Return the images with a place and their CRS, and the least and largest x and y of each (N, 4)."""
    paths, boxes = [], []
    for path, (place, size) in side.items():
        if place is not None:
            points = place.to_map(_CORNERS * size[::-1])
            paths.append((path, place.crs))
            boxes.append((*points.min(axis=0), *points.max(axis=0)))
    return paths, np.array(boxes, np.float64).reshape(-1, 4)
