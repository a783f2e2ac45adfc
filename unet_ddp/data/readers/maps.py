"""Images of maps, by rasterio (the extra `geo`): GeoTIFF.

GDAL opens addresses, and files that a file names, by some of its drivers. Each suffix has one driver
here, and files that lie next to an image are not looked for: a VRT, an .aux.xml or an .ovr may name
any other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.fit import fit_pixels
from unet_ddp.data.readers.header import TIFFS, ImageFormat, Pixels, as_user_error, refuse_bomb
from unet_ddp.errors import UserError, check_installed

INSTALL = "pip install 'unet-ddp[geo]'"
_OPTIONS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "CPL_VSIL_CURL_ALLOWED_FILENAME": "-",
    "GDAL_CACHEMAX": 64,  # MB; else a twentieth of the memory
}
_DEGREE = 111_320.0  # metres of a degree of latitude
_ALIKE = 1.01  # ratio up to which ground resolutions are one
_ROWS = 512  # that are read at a time


class Place(NamedTuple):
    """The place of an image on a map."""

    crs: str  # WKT; empty if the file has none
    transform: tuple[float, ...]  # (a, b, c, d, e, f): x = a * column + b * row + c, y = d * …
    resolution: float  # metres of a pixel's side; 0 if unknown
    nodata: float | None  # the value of pixels without data

    def to_map(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return (N, 2) map coordinates x, y of (N, 2) columns and rows."""
        a, b, c, d, e, f = self.transform
        moved: NDArray[np.float64] = points @ np.array([[a, d], [b, e]]) + (c, f)
        return moved


def is_readable(path: Path) -> bool:
    """Return whether rasterio is there and reads files of this suffix."""
    return path.suffix.lower() in TIFFS and find_spec("rasterio") is not None


@contextmanager
def gdal(path: Path) -> Iterator[None]:
    """Restrict GDAL in this thread, and raise its errors in the block as UserErrors."""
    check_installed("rasterio", "geo", path)
    import rasterio
    from rasterio.session import DummySession

    with as_user_error(path), rasterio.Env(DummySession(), **_OPTIONS):
        yield


def open_map(path: Path, *, mode: str = "r") -> Any:
    """Return rasterio's dataset of a file, to read parts of it, or to update it (mode r+).

    One thread uses it at a time.
    """
    with gdal(path):
        import rasterio

        dataset = rasterio.open(str(path.absolute()), mode, driver="GTiff")
        height, width = map(max, zip(*dataset.block_shapes, strict=True))
        pixel_bytes = sum(np.dtype(name).itemsize for name in dataset.dtypes)
        refuse_bomb(path, width, height, file=path, pixel_bytes=pixel_bytes)
        return dataset


def find_place(dataset: Any) -> Place | None:
    """Return the place of rasterio's dataset; None without map coordinates."""
    crs, transform = dataset.crs, dataset.transform
    side, metres = math.sqrt(abs(transform.determinant)), 0.0
    if crs and crs.is_geographic:
        side, metres = math.hypot(transform.b, transform.e), _DEGREE
    elif crs and crs.is_projected:
        metres = crs.linear_units_factor[1]
    wkt, resolution = crs.to_wkt() if crs else "", float(f"{side * metres:.6g}")
    if transform.is_identity:
        return None
    return Place(sys.intern(wkt), tuple(transform)[:6], resolution, dataset.nodata)


def georeference(mask: Path, place: Place, nodata: int | None) -> None:
    """Give a new GeoTIFF of any name the place of its image, and its value of no data."""
    from rasterio import Affine

    with open_map(mask, mode="r+") as dataset:
        dataset.transform, dataset.nodata = Affine(*place.transform), nodata
        if place.crs:
            dataset.crs = place.crs


def mark_nodata(ids: NDArray[Any], path: Path, dataset: Any, mark: int) -> int:
    """Set `ids` (H, W) to `mark` where an image is transparent or without data; return how often."""
    count = 0
    with gdal(path):
        flags = enumerate(dataset.mask_flag_enums, start=1)
        bands = [band for band, kinds in flags if kinds[0].name != "all_valid"]
        is_empty = np.all if dataset.dtypes[0] == "uint8" else np.any  # as in find_nodata
        for top in range(0, len(ids) if bands else 0, _ROWS):
            part = ids[top : top + _ROWS]
            window = ((top, top + len(part)), (0, ids.shape[1]))
            empty = is_empty(dataset.read_masks(bands, window=window) == 0, axis=0)
            part[empty] = mark
            count += int(np.count_nonzero(empty))
    return count


def ground_scale(path: Path, own: float | None, scale: float, resolution: float) -> float:
    """Return the scale for pixels of `own` metres to become those of `resolution` at `scale`.

    That is `scale` for an image without a known resolution.

    Raises:
        UserError: its pixels are larger already, or rasterio is needed to know.
    """
    if not own:
        if path.suffix.lower() in TIFFS:
            check_installed("rasterio", "geo", f"{path}: its ground resolution")
        return scale
    if own * scale > resolution * _ALIKE:
        raise UserError(
            f"{path}: pixels of {own:g} m on the ground, the network takes {resolution / scale:g} m; "
            f"images are never enlarged: use --ground-resolution {own * scale:g} or more"
        )
    return min(1.0, own * scale / resolution)


def check_resolutions(found: Iterable[tuple[float | None, Path]]) -> None:
    """Raise UserError if known ground resolutions, with an image of each, differ."""
    known = [(own, path) for own, path in found if own]
    (finest, one), (coarsest, other) = min(known, default=(0, "")), max(known, default=(0, ""))
    if coarsest > finest * _ALIKE:
        raise UserError(
            f"{one} has pixels of {finest:g} m on the ground, {other} of {coarsest:g} m; bring all "
            f"to one with --ground-resolution {coarsest:g}"
        )


def read_bands(
    path: Path, dataset: Any, bands: list[int] | None = None, window: Any = None
) -> NDArray[Any]:
    """Return bands of an image, or all, (H, W, C), in the file's own type."""
    with gdal(path):
        return np.ascontiguousarray(np.moveaxis(dataset.read(bands, window=window), 0, -1))


class MapRows:
    """A TIFF, read when its rows are asked for; `path` is for messages."""

    def __init__(self, path: Path, dataset: Any, wanted: ImageFormat, bands: list[int]) -> None:
        self.height, self.width = dataset.height, dataset.width
        self._path = path
        self._dataset = dataset
        self._wanted = wanted
        self._bands = bands

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`, with no-data pixels filled."""
        window = ((top, bottom), (0, self.width))
        stored = read_bands(self._path, self._dataset, self._bands, window)
        pixels = cast(Pixels, stored.astype(self._wanted.dtype, copy=False))
        return fit_pixels(pixels, self._wanted, (bottom - top, self.width), self._path)[0]
