"""An augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def dim(
    image: NDArray[Any], mask: NDArray[np.uint8], generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return a darker image (H, W, C), and the mask (H, W) as it is."""
    return (image * generator.uniform(0.5, 1)).astype(image.dtype), mask
