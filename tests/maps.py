"""Images with map coordinates, as rasterio writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")

UTM = "EPSG:32633"
CORNER = (500_000.0, 5_000_000.0)


def at(metres: float = 0.5, corner: tuple[float, float] = CORNER, turn: float = 0.0) -> Any:
    """The transform of north-up pixels of a size, turned by some degrees."""
    from rasterio import Affine

    cos, sin = metres * np.cos(np.radians(turn)), metres * np.sin(np.radians(turn))
    return Affine(cos, sin, corner[0], sin, -cos, corner[1])


def write_map(path: Path, pixels: np.ndarray, transform: Any = None, **options: Any) -> Path:
    """Write (H, W) or (H, W, C) as a GeoTIFF in UTM, or by another driver."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = np.moveaxis(np.atleast_3d(pixels), -1, 0)
    profile = {
        "driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2],
        "dtype": bands.dtype, "crs": UTM, "transform": transform or at(), **options,
    }  # fmt: skip
    with rasterio.open(path, "w", **profile) as dataset:
        dataset.write(bands)
    return path
