"""Files of polygons, by pyogrio (GDAL) and shapely (both of the extra `geo`).

GDAL looks into a file to choose its driver, and some drivers open addresses, or files that a file names. So a
file must begin as its suffix says, and a view of a GeoPackage, which may call functions, is refused.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.errors import UserError, check_installed, count_of, join_some
from unet_ddp.extras.polygons.burnt_mask import find_beside
from unet_ddp.files import refuse_special

Bounds = tuple[float, float, float, float]
"""Least x and y, largest x and y."""
Geometries = NDArray[Any]
"""(N,) of shapely's."""

_FIRST = {".gpkg": b"SQLite format 3\0", ".geojson": b"{", ".shp": b"\0\0\x27\x0a"}  # bytes
_POLYGONAL = (3, 6)  # shapely's numbers of types
_NO_GEOMETRY = -1
_SHOWN = 8  # layers or fields in a message


class Features(NamedTuple):
    """Features of a layer, in the order of the file."""

    ids: NDArray[np.int64]
    geometries: Geometries
    values: NDArray[Any]  # of the field; 0 without one


@dataclass(frozen=True)
class Layer:
    """A layer of polygons."""

    path: Path
    name: str
    crs: str  # empty if the file names none
    count: int
    fields: dict[str, str] = field(compare=False)  # NumPy's type, of text object, by name

    def read_values(self, field: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the numbers of all features, and their values of a field."""
        if self._has_index:
            features = _read(self, None, field, has_geometry=False)
        else:
            features, _ = _hold(self, field, find_stamp(self.path))
        return features.ids, features.values

    @property
    def _has_index(self) -> bool:
        """True if GDAL finds features by their place without a look at all of them."""
        return self.path.suffix.lower() != ".geojson"

    def find_extent(self) -> Bounds:
        """Return the extent of all features."""
        with opening(self.path):
            import pyogrio

            _, boxes = pyogrio.read_bounds(self.path, layer=self.name)  # (4, N)
        return (*np.nanmin(boxes[:2], axis=1).tolist(), *np.nanmax(boxes[2:], axis=1).tolist())

    def find(self, bounds: Bounds | None, field: str | None) -> Features:
        """Return the features whose boxes meet `bounds`, or all, sorted as in the file.

        GeoJSON, which has no index, is read once by a process.

        Raises:
            UserError: one is no polygon, or the file can't be read.
        """
        if not self.count:  # such a GeoJSON has no fields
            return Features(np.zeros(0, np.int64), np.zeros(0, object), np.zeros(0))
        if self._has_index:
            return _read(self, bounds, field)
        features, tree = _hold(self, field, find_stamp(self.path))
        if bounds is None:
            return features
        import shapely

        rows = np.sort(tree.query(shapely.box(*bounds)))
        return Features(*(each[rows] for each in features))


@contextmanager
def opening(path: Path) -> Iterator[Any]:
    """Yield pyogrio's module that reads arrays; an error in the block is a UserError about `path`."""
    check_installed("pyogrio", "geo", path)
    check_installed("shapely", "geo", path)
    import pyogrio.raw
    from pyogrio.util import vsi_path

    if vsi_path(str(path)) != str(path):
        raise UserError(f"{path}: GDAL takes a path with ! or ; for that of an archive; rename it")
    with as_user_error(path):
        yield pyogrio.raw


def open_layer(path: Path) -> Layer:
    """Return the layer of polygons in a file: the only one.

    Raises:
        UserError: there is none, or several.
    """
    return _open(path, find_stamp(path)) if path.exists() else _open(path, (0, 0))


@lru_cache(maxsize=256)
def _open(path: Path, stamp: Stamp) -> Layer:
    """Return the layer of a file as it was at `stamp`."""
    with opening(path):
        import pyogrio

        _check_content(path)
        layers = {str(name): str(kind) for name, kind in pyogrio.list_layers(path)}
        found = [name for name, kind in layers.items() if re.search("Polygon|Surface", kind)]
        found = found or [name for name, kind in layers.items() if kind == "Unknown"]
        if len(found) > 1:
            raise UserError(
                f"{path}: {len(found)} layers of polygons: {join_some(found, _SHOWN)}; keep one in a file of its own: "
                f"ogr2ogr {found[0]}.gpkg {path} {found[0]}"
            )
        if not found:
            counts = {name: pyogrio.read_info(path, layer=name)["features"] for name in layers}
            listed = [
                f"{name} ({count_of(counts[name], 'feature')}, {kind})"
                for name, kind in layers.items()
            ]
            shown = join_some(listed, _SHOWN) or "none"
            raise UserError(f"{path}: no layer of polygons, layers: {shown}; save polygons in it")
        _refuse_view(path, found[0])
        info = pyogrio.read_info(path, layer=found[0])
    fields = dict(zip(map(str, info["fields"]), map(str, info["dtypes"]), strict=True))
    return Layer(path, found[0], info["crs"] or "", info["features"], fields)


def _check_content(path: Path) -> None:
    """Refuse a file of other content than its suffix says, and a shapefile that lacks a part."""
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        first = file.read(64)
    if suffix == ".geojson":
        first = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not first.startswith(_FIRST[suffix]):
        raise UserError(f"{path}: is not a {suffix} file by its content; replace it")
    if suffix != ".shp":
        return
    for other in path.parent.glob(f"{escape(path.stem)}.*"):  # GDAL opens more of them
        refuse_special(other)
    for part in (".shx", ".dbf"):
        if find_beside(path, part) is None:
            name = path.with_suffix(part).name
            raise UserError(
                f"{path}: {name} is missing: a shapefile is several files; copy .shx, .dbf and .prj, too"
            )


def _refuse_view(path: Path, layer: str) -> None:
    """Refuse a layer of a GeoPackage that is no table."""
    if path.suffix.lower() != ".gpkg":
        return
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as database:
        query = "SELECT type, sql FROM sqlite_master WHERE lower(name) = lower(?)"
        found = database.execute(query, (layer,)).fetchall()
    if [kind for kind, _ in found] != ["table"] or "virtual" in found[0][1].lower().split("(")[0]:
        raise UserError(
            f"{path}: layer {layer} is a view, which may call functions; save it as a table: ogr2ogr "
            f"table.gpkg {path} {layer}"
        )


def _read(
    layer: Layer, bounds: Bounds | None, field: str | None, *, has_geometry: bool = True
) -> Features:
    """Return features by GDAL; see `Layer.find`."""
    with opening(layer.path) as raw:
        import shapely

        how: Any = {"columns": [] if field is None else [field], "read_geometry": has_geometry}
        how |= {"bbox": bounds, "force_2d": True, "return_fids": True}
        _, ids, stored, values = raw.read(layer.path, layer.name, **how)
        geometries = shapely.from_wkb(stored if has_geometry else np.full(len(ids), None))
    _refuse_others(layer.path, ids, geometries)
    found = Features(ids, geometries, values[0] if values else np.zeros(len(ids)))
    if bounds is None:
        return found
    order = np.argsort(ids)  # an index finds them in another one
    return Features(*(each[order] for each in found))


@lru_cache(maxsize=8)
def _hold(layer: Layer, field: str | None, stamp: Stamp) -> tuple[Features, Any]:
    """Return all features of a file as it was at `stamp`, and their index."""
    import shapely

    features = _read(layer, None, field)
    return features, shapely.STRtree(features.geometries)


def _refuse_others(path: Path, ids: NDArray[np.int64], geometries: Geometries) -> None:
    """Refuse points, lines and collections."""
    import shapely

    types = shapely.get_type_id(geometries)
    is_other = ~np.isin(types, (*_POLYGONAL, _NO_GEOMETRY))
    if not is_other.any():
        return
    names = [each.geom_type for each in geometries[is_other].tolist()]
    counted = [f"{names.count(name)} {name}" for name in sorted({*names})]
    raise UserError(
        f"{path}: {len(names)} of {len(ids)} features are no polygons ({', '.join(counted)}), the first is feature "
        f"{ids[is_other][0]}; remove them, or make polygons of them, as with a buffer"
    )
