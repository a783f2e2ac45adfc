"""Copies of images, found by their thumbnails.

The correlation of 8x8 grey pixels is above 0.995 for copies that were scaled and compressed again,
and below 0.99 for views of different cars in one studio.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

THUMBNAIL = 8
"""Pixels on a side of a thumbnail."""
ALIKE = 0.995
"""Correlation of two thumbnails, above which one image is a copy of the other."""


def normalise(thumbnails: NDArray[Any]) -> NDArray[np.float32]:
    """Return thumbnails (N, 64) of mean 0 and length 1: products are correlations."""
    flat = thumbnails.astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat
