"""Validation images that are training images, too: copies make scores too good."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.scan import THUMBNAIL
from unet_ddp.checks.table import Table
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.read import Source
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError

ALIKE = 0.995
"""Correlation of two thumbnails, above which one image is a copy of the other.

Copies that were scaled and compressed again are above it, views of different cars in one studio
below 0.99.
"""

AT_ONCE = 1 << 22
"""Correlations that are computed at a time."""
_CLOSELY = 0.98
"""The same of a closer look, at up to `_SIDE` pixels on a side.

Photographs that were scaled and compressed again are above it. Among 20,000 simple drawings, hundreds
have a thumbnail like another's by chance, but not this.
"""
_SIDE = 64
MOST_LOOKED_AT = 64  # of the copies
_MOST_COMPARED = 2 * 10**9  # correlations, of some seconds: 10 % of 150,000 images with the others


def normalise(thumbnails: NDArray[Any]) -> NDArray[np.float32]:
    """Return thumbnails (N, 64) of mean 0 and length 1: products are correlations."""
    flat = thumbnails.astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat


class Copies(NamedTuple):
    """Validation images that are (nearly) training images, about `total` in number."""

    examples: list[tuple[Pair, Pair]]
    """With their training pairs, those that were looked at."""
    total: int
    is_exact: bool = True  # False if they were too many to look at all


def confirm(found: list[tuple[Pair, Pair]], split: Split) -> Copies:
    """Return what a closer look leaves of pairs with thumbnails alike; of many, some are looked at."""
    step = -(-len(found) // MOST_LOOKED_AT) or 1
    looked_at = found[::step]
    examples = [each for each in looked_at if _are_copies(*each, split)]
    return Copies(examples, round(len(examples) * len(found) / (len(looked_at) or 1)), step == 1)


def _are_copies(one: Pair, other: Pair, split: Split) -> bool:
    """Return whether two images are alike in detail; True if that can't be seen."""
    with (
        suppress(UserError),
        split.validation.local(one.image) as first,
        split.training.local(other.image) as second,
        Source(first) as source,
        Source(second) as its_copy,
    ):
        least = min(*source.header.size, *its_copy.header.size)
        side = min(_SIDE, max(THUMBNAIL, least))
        looks = np.stack([each.thumbnail(side).ravel() for each in (source, its_copy)])
        likeness = np.prod(normalise(looks), axis=0).sum()
        return bool(not likeness < _CLOSELY)  # nan of pixels without data
    return True


def find_copies(table: Table, split: Split) -> list[tuple[Pair, Pair]] | None:
    """Return each validation pair whose thumbnail is like that of a training image, with its training pair.

    None if there are too many to compare.
    """
    if len(split.validation) * len(split.training) > _MOST_COMPARED:
        return None
    validation = np.flatnonzero(table.find(split.validation))
    training = np.flatnonzero(table.find(split.training))
    found: list[tuple[Pair, Pair]] = []
    if not len(validation) or not len(training):
        return found
    thumbnails = normalise(table.columns["thumbnail"][:])
    others = thumbnails[training].T
    at_once = 1 + AT_ONCE // len(training)
    for first in range(0, len(validation), at_once):
        rows = validation[first : first + at_once]
        alike = thumbnails[rows] @ others  # (rows, training)
        copies = np.flatnonzero(alike.max(axis=1) > ALIKE)
        best = training[alike[copies].argmax(axis=1)]
        for row, other in zip(rows[copies].tolist(), best.tolist(), strict=True):
            found.append((table.pairs[row], table.pairs[other]))
    return found
