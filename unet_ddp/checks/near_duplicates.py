"""Validation images that are training images, too: copies make scores too good."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.table import Table
from unet_ddp.data.pairs import Pair
from unet_ddp.data.splits import Split

ALIKE = 0.995
"""Correlation of two thumbnails, above which one image is a copy of the other.

Copies that were scaled and compressed again are above it, views of different cars in one studio
below 0.99.
"""

AT_ONCE = 1 << 22
"""Correlations that are computed at a time."""
_MOST_COMPARED = 2 * 10**9  # correlations, of some seconds: 10 % of 150,000 images with the others


def normalise(thumbnails: NDArray[Any]) -> NDArray[np.float32]:
    """Return thumbnails (N, 64) of mean 0 and length 1: products are correlations."""
    flat = thumbnails.astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat


def find_copies(table: Table, split: Split) -> list[tuple[Pair, Pair]] | None:
    """Return each validation pair whose image is (nearly) a training image, with its training pair.

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
