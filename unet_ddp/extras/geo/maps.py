"""GDAL, by rasterio (the extra `geo`): a file opened, and its place on a map.

GDAL opens addresses, and files that a file names, by some of its drivers. Each suffix has one driver
here, and files that lie next to an image are not looked for: a VRT, an .aux.xml or an .ovr may name
any other.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.base import MOST_BYTES, as_user_error, refuse_bomb
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.formats.tiff import lacks_parts

_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "CPL_VSIL_CURL_ALLOWED_FILENAME": "-",
    "GDAL_CACHEMAX": 64,  # MB; else a twentieth of the memory
}
_DEGREE = 111_320.0  # metres of a degree of latitude

warnings.filterwarnings("ignore", "Dataset has no geotransform")  # of a plain image
logging.getLogger("rasterio").addHandler(logging.NullHandler())  # else Python prints to stderr


class Place(NamedTuple):
    """The place of an image on a map."""

    crs: str  # WKT; empty if the file has none
    transform: tuple[float, ...]  # (a, b, c, d, e, f): x = a * column + b * row + c, y = d * …
    resolution: float  # metres of a pixel's side; 0 if unknown

    def to_map(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, 2) map coordinates x, y of (N, 2) columns and rows."""
        a, b, c, d, e, f = self.transform
        matrix = np.array([[a, d], [b, e]])
        moved: NDArray[np.float64] = points @ matrix + (c, f)
        return moved

    def corners(self, size: Size) -> NDArray[np.float64]:
        """Return (4, 2) map coordinates x, y of the corners of an image of a size (height, width)."""
        return self.to_map(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]) * size[::-1])

    def to_degrees(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, 2) longitudes and latitudes of (N, 2) columns and rows.

        Raises:
            UserError: the CRS has no way to them: it is a local one, or another body's.
        """
        from rasterio.warp import transform

        x, y = self.to_map(points).T
        degrees = np.full((2, len(x)), np.nan)
        with suppress(Exception):  # GDAL's and PROJ's are of many kinds
            degrees = np.array(transform(self.crs, "OGC:CRS84", x, y))
        if not np.isfinite(degrees).all():
            raise UserError(
                "its CRS has no way to longitude and latitude, as a local one or another planet's; leave "
                "--polygons out, or reproject it by gdalwarp"
            )
        return degrees.T

    @property
    def is_upright(self) -> bool:
        """True if rows run downward on the map, as they do on a screen: y is not mirrored."""
        a, b, _, d, e, _ = self.transform
        return a * e < b * d

    def write_to(self, mask: Path, nodata: int | None) -> None:
        """Give a new GeoTIFF of any name this place, and its value of no data."""
        from rasterio import Affine

        with open_map(mask, mode="r+") as dataset:
            dataset.transform, dataset.nodata = Affine(*self.transform), nodata
            if self.crs:
                dataset.crs = self.crs


@contextmanager
def gdal(path: Path) -> Iterator[None]:
    """Restrict GDAL in this thread, and raise its errors in the block as UserErrors."""
    check_installed("rasterio", "geo", path)
    import rasterio
    from rasterio.session import DummySession

    with as_user_error(path), rasterio.Env(DummySession(), **_OPTIONS):
        try:
            yield
        except rasterio.errors.RasterioIOError as error:
            raise error.__cause__ or error from None  # what GDAL says


def open_map(path: Path, *, mode: str = "r", page: int = 0, opener: Any = None) -> Any:
    """Return rasterio's dataset of a file, to read parts of it, or to update it (mode r+).

    With `page`, from 1, it is that of one of the file's directories. `opener` opens an object in storage, or a
    file whose name is not UTF-8.

    One thread uses it at a time.
    """
    with gdal(path):
        import rasterio

        if opener is not None:
            # Of an address rasterio would look for keys; and GDAL takes UTF-8.
            name = os.fsencode(path.name).decode(errors="replace")
            dataset = rasterio.open(name, mode, driver="GTiff", opener=opener)
        else:
            name = f"GTIFF_DIR:{page}:" if page else ""
            name += str(Path(os.fspath(path)).absolute())
            dataset = rasterio.open(name, mode, driver="GTiff")
        height, width = map(max, zip(*dataset.block_shapes, strict=True))
        pixel_bytes = sum(np.dtype(name).itemsize for name in dataset.dtypes)
        if opener is None:
            refuse_bomb(path, width, height, file=path, pixel_bytes=pixel_bytes)
            if dataset.width * dataset.height * pixel_bytes > MOST_BYTES and lacks_parts(path):
                raise UserError(
                    f"{path}: corrupt or truncated (strips or tiles are missing); replace it"
                )
        elif width * height * pixel_bytes > MOST_BYTES:
            raise UserError(
                f"{path}: parts of {width}x{height} pixels; save it in tiles of 512x512"
            )
        return dataset


def find_place(dataset: Any, orientation: int = 1) -> Place | None:
    """Return the place of rasterio's dataset, turned by EXIF's orientation; None without coordinates."""
    crs, transform = dataset.crs, dataset.transform
    if transform.is_identity:
        return None
    side, metres, wkt = 0.0, 0.0, ""
    if crs:
        wkt = sys.intern(crs.to_wkt())
        side = math.sqrt(abs(transform.determinant))
        if crs.is_geographic:
            side, metres = math.hypot(transform.b, transform.e), _DEGREE
        elif crs.is_projected:
            _, metres = crs.linear_units_factor
    return Place(wkt, _turn(transform, dataset.shape, orientation), float(f"{side * metres:.6g}"))


def _turn(transform: Any, size: tuple[int, int], orientation: int) -> tuple[float, ...]:
    """Return the transform of a stored image (height, width) after `upright` turned it."""
    is_swapped = orientation >= 5
    height, width = size[::-1] if is_swapped else size
    from rasterio import Affine

    flip = Affine.identity()
    if orientation in (3, 4, 7, 8):
        flip *= Affine(1, 0, 0, 0, -1, height)
    if orientation in (2, 3, 6, 7):
        flip *= Affine(-1, 0, width, 0, 1, 0)
    swap = Affine(0, 1, 0, 1, 0, 0) if is_swapped else Affine.identity()
    return tuple(transform * swap * flip)[:6]
