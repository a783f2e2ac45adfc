"""Maps on both sides of a split that lie next to each other: what is on one tells what is on the other."""

from __future__ import annotations

from collections.abc import Sequence
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

Placed = tuple[Path, Place, Size]
"""An image with its place and size (height, width)."""

_MOST = 10**8  # pairs of images to compare
_APART = 1e-6  # of an image's side: less is rounding


def check_sides(scanned: Sequence[ScannedPair], split: Split) -> list[str]:
    """Return a warning if scanned maps on two sides of a split lie next to each other."""
    known = {
        pair.name: (pair.image, Place(*image.place), image.header.size)
        for pair, image, _ in scanned
        if image.place is not None
    }
    sides = (split.training.names(), split.validation.names())
    return find_neighbours(*([known[name] for name in side if name in known] for side in sides))


def find_neighbours(training: Sequence[Placed], validation: Sequence[Placed]) -> list[str]:
    """Return a warning if any image overlaps or touches another one of the other side, in the same CRS."""
    if not 0 < len(training) * len(validation) <= _MOST:
        return []
    systems = list({place.crs for _, place, _ in (*training, *validation)})
    low, high = _find_boxes(training, systems)
    near = []
    for (path, *_), first, last in zip(validation, *_find_boxes(validation, systems), strict=True):
        slack = (last - first) * _APART
        touches = (low <= last + slack).all(axis=1) & (first - slack <= high).all(axis=1)
        others = (training[row][0] for row in np.flatnonzero(touches).tolist())
        near += [(path, other) for other in others if other != path][:1]
    if not near:
        return []
    one, other = near[0]
    return [
        f"{count_of(len(near), 'validation image')} next to or over training images on the map, e.g. {one} at {other}: "
        "scores will be too good; keep neighbours together with --group-pattern or a list's column group"
    ]


def _find_boxes(side: Sequence[Placed], systems: list[str]) -> tuple[NDArray[np.float64], ...]:
    """Return the least and the largest x and y of each image, after the number of its CRS, (N, 3)."""
    corners = [
        [(systems.index(place.crs), *point) for point in place.corners(size)]
        for _, place, size in side
    ]
    boxes = np.array(corners, np.float64)  # (N, 4, 3)
    return boxes.min(axis=1), boxes.max(axis=1)
