"""Maps and files of polygons for the tests."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.maps import CORNER, UTM, at, write_map
from tests.prediction.models import noise

raw = pytest.importorskip("pyogrio.raw", reason="the extra geo is not installed")
shapely = pytest.importorskip("shapely", reason="the extra geo is not installed")

SIDE = 48  # pixels of an image
DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".shp": "ESRI Shapefile"}
KINDS = ("water", "building", "road")  # not sorted


def corner(k: int) -> tuple[float, float]:
    """Return the upper left corner of the k-th image: they lie apart from each other."""
    return CORNER[0] + 40 * k, CORNER[1]


def write_scenes(folder: Path, count: int = 6, **options: Any) -> Path:
    """Write images of 24 m in UTM: ax.tif, bx.tif and so on."""
    for k in range(count):
        name = f"{chr(97 + k)}x.tif"
        write_map(folder / "imgs" / name, noise(SIDE, SIDE, k), at(0.5, corner(k)), **options)
    return folder


def box(left: float, top: float, right: float, bottom: float, k: int = 0) -> Any:
    """Return a rectangle in UTM, of columns and rows of the k-th image."""
    x, y = corner(k)
    return shapely.box(x + 0.5 * left, y - 0.5 * bottom, x + 0.5 * right, y - 0.5 * top)


def to_degrees(geometries: Any) -> Any:
    """Return geometries in UTM as longitude and latitude."""
    from rasterio.warp import transform

    def move(points: np.ndarray) -> np.ndarray:
        return np.array(transform(UTM, "OGC:CRS84", points[:, 0], points[:, 1])).T

    return shapely.transform(geometries, move)


def write_labels(
    path: Path,
    geometries: Sequence[Any],
    crs: str | None = UTM,
    *,
    geometry: str = "Unknown",
    layer: str | None = None,
    append: bool = False,
    **fields: Any,
) -> Path:
    """Write features with these fields, the geometries as they are."""
    options = {"COORDINATE_PRECISION": "15"} if path.suffix == ".geojson" else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        raw.write(
            path,
            shapely.to_wkb(np.array([*geometries], object)),
            [np.asarray(values) for values in fields.values()],
            [*fields],
            driver=DRIVERS[path.suffix],
            geometry_type=geometry,
            crs=crs,
            layer=layer,
            append=append,
            layer_options=options,
        )
    return path


def shapes_on(count: int = 6, seed: int = 0) -> tuple[list[Any], list[str]]:
    """Return polygons in UTM on the images, some with holes, some on others, and the kind of each."""
    random = np.random.default_rng(seed)
    found, kinds = [], []
    for k in range(count):
        for n in range(5):
            column, row, size = random.uniform((2, 2, 2), (SIDE - 2, SIDE - 2, 9)).tolist()
            x, y = corner(k)
            centre = shapely.Point(x + 0.5 * column, y - 0.5 * row)
            shape = shapely.buffer(centre, 0.5 * size, quad_segs=3)
            if n % 2:
                shape = shapely.difference(shape, shapely.buffer(centre, 0.2 * size))
            found.append(shape)
            kinds.append(KINDS[(k + n) % 3])
    return found, kinds
