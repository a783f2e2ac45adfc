"""Files of polygons, by pyogrio (GDAL) and shapely (both of the extra `geo`).

GDAL looks into a file to choose its driver, and some drivers open addresses, or files that a file names. So a
file must begin as its suffix says, and a view of a GeoPackage, which may call functions, is refused.
"""

from __future__ import annotations

import os
import re
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.errors import UserError, check_installed, join_some
from unet_ddp.files import refuse_special

Bounds = tuple[float, ...]
"""Least x and y, largest x and y."""
Geometries = NDArray[Any]
"""(N,) of shapely's."""

_FIRST = {  # bytes
    ".gpkg": rb"SQLite format 3\0",
    ".geojson": rb"(\xef\xbb\xbf)?\s*{",
    ".shp": rb"\0\0\x27\x0a",
}
_PARTS = (".shx", ".dbf", ".prj", ".cpg", ".SHX", ".DBF", ".PRJ", ".CPG")  # of a shapefile
_KNOWN = (-1, 3, 6)  # shapely's numbers of types: none, Polygon, MultiPolygon
_SHOWN = 8  # layers in a message
_VIEWS = """SELECT table_name FROM gpkg_contents WHERE lower(table_name) IN
    (SELECT lower(name) FROM sqlite_master WHERE ifnull(rootpage, 0) = 0)"""  # virtual tables, too

warnings.filterwarnings("ignore", module=r"pyogrio\.")  # GDAL's, of what it mends itself


class Features(NamedTuple):
    """Features of a layer, in the order of the file."""

    ids: NDArray[np.int64]
    geometries: Geometries
    values: NDArray[Any]  # of the field; 1 without one

    def take(self, rows: NDArray[Any]) -> Features:
        """Return some of them."""
        return Features(*(each[rows] for each in self))


@dataclass(frozen=True)
class Layer:
    """The layer of polygons in a file, as its files were at `stamps`."""

    path: Path
    stamps: tuple[Stamp, ...]
    name: str
    crs: str  # empty if the file names none
    count: int
    fields: tuple[str, ...]
    extent: Bounds  # zeros, or infinite, without polygons

    def find(
        self, bounds: Bounds | None, field: str | None, *, has_geometry: bool = True
    ) -> Features:
        """Return the features whose boxes meet `bounds`, or all, sorted as in the file.

        GeoJSON, which has no index, is read once by a process. Without `has_geometry`, the others are read faster.

        Raises:
            UserError: one is no polygon, or the file can't be read.
        """
        if self.path.suffix.lower() != ".geojson":
            return _read(self, bounds, field, has_geometry=has_geometry)
        features, tree = _hold(self, field)
        if bounds is None:
            return features
        import shapely

        return features.take(np.sort(tree.query(shapely.box(*bounds))))


@contextmanager
def opening(path: Path) -> Iterator[Any]:
    """Yield pyogrio; an error in the block is a UserError about `path`."""
    check_installed("pyogrio", "geo", path)
    import pyogrio.raw
    from pyogrio.util import vsi_path

    if vsi_path(str(path)) != str(path):
        raise UserError(f"{path}: GDAL takes a path with ! or ; for that of an archive; rename it")
    with as_user_error(path):
        yield pyogrio


def open_layer(path: Path) -> Layer:
    """Return the layer of polygons in a file: the only one.

    Raises:
        UserError: there is none, or several.
    """
    with as_user_error(path):
        stamps = tuple(map(find_stamp, find_files(path)))  # a .dbf may change alone
    return _open(path, stamps)


@lru_cache(maxsize=1024)
def _open(path: Path, stamps: tuple[Stamp, ...]) -> Layer:
    with opening(path) as pyogrio:
        _check_content(path)
        views = _find_views(path)  # they may call functions
        layers = pyogrio.list_layers(path).astype(str).tolist()  # name and type
        layers = [each for each in layers if each[0] not in views]
        found = [name for name, kind in layers if re.search("Polygon|Surface", kind)]
        found = found or [name for name, kind in layers if kind == "Unknown"]
        if views and not found:
            raise UserError(
                f"{path}: layer {views[0]} is a view, which may call functions; save it as a table: ogr2ogr table.gpkg "
                f"{quote(str(path))} {quote(views[0])}"
            )
        if len(found) != 1:
            shown = join_some([f"{name} ({kind})" for name, kind in layers], _SHOWN)
            raise UserError(
                f"{path}: {len(found)} layers of polygons among {shown or 'none'}; give a file with one, by ogr2ogr "
                f"one.gpkg {quote(str(path))} LAYER"
            )
        about = pyogrio.read_info(path, layer=found[0], force_total_bounds=True)
    extent = about["total_bounds"] or (0.0, 0.0, 0.0, 0.0)
    fields = tuple(map(str, about["fields"]))
    return Layer(path, stamps, found[0], about["crs"] or "", about["features"], fields, extent)


def find_files(labels: Path) -> list[Path]:
    """Return a file of polygons; of a shapefile with all other parts that there are, of a GeoPackage with its log."""
    if labels.suffix.lower() == ".gpkg":
        log = labels.with_name(f"{labels.name}-wal")  # edits that are not yet in the file
        return [labels, log] if log.is_file() and log.stat().st_size else [labels]
    parts = _PARTS if labels.suffix.lower() == ".shp" else ()
    return [labels, *filter(Path.is_file, map(labels.with_suffix, parts))]


def _check_content(path: Path) -> None:
    """Refuse a file of other content than its suffix says, and a shapefile that lacks a part."""
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        is_known = re.match(_FIRST[suffix], file.read(64))
    if not is_known:
        raise UserError(f"{path}: is not a {suffix} file by its content; replace it")
    if suffix == ".shp":
        for other in path.parent.glob(f"{escape(path.stem)}.*"):  # GDAL opens more of them
            refuse_special(other)
        missing = {".shx", ".dbf"} - {file.suffix.lower() for file in find_files(path)}
        if missing:
            raise UserError(
                f"{path}: {path.stem}{min(missing)} is missing: a shapefile is several files; copy .shx, .dbf and "
                ".prj, too"
            )


def _find_views(path: Path) -> list[str]:
    """Return the names of the layers of a GeoPackage that are no tables."""
    if path.suffix.lower() != ".gpkg":
        return []
    # One that QGIS left open for writing has a log, which SQLite makes anew: not in a read-only folder.
    has_log = os.access(path.parent, os.W_OK) or path.with_name(f"{path.name}-wal").exists()
    how = "mode=ro" if has_log else "immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as database:
        return [name for (name,) in database.execute(_VIEWS)]


def _read(
    layer: Layer, bounds: Bounds | None, field: str | None, *, has_geometry: bool = True
) -> Features:
    """Return features by GDAL; see `Layer.find`."""
    with opening(layer.path) as pyogrio:
        import shapely

        how: Any = {"bbox": bounds, "read_geometry": has_geometry, "return_fids": True}
        how |= {"columns": [] if field is None else [field], "force_2d": True}
        _, ids, stored, values = pyogrio.raw.read(layer.path, layer.name, **how)
        wkb: Geometries = np.array(stored if has_geometry else [None] * len(ids), object)
        geometries = shapely.from_wkb(wkb, on_invalid="fix")  # closes rings, as QGIS does
    lost = np.flatnonzero(shapely.is_missing(geometries) & (wkb != None))  # noqa: E711
    if len(lost):
        raise UserError(
            f"{layer.path}: feature {ids[lost[0]]} has a ring of too few points; remove the feature"
        )
    types = shapely.get_type_id(geometries)
    other = np.flatnonzero(~np.isin(types, _KNOWN))
    if len(other):
        first = other[0]
        raise UserError(
            f"{layer.path}: {len(other)} of {len(ids)} features are no polygons, the first is feature {ids[first]}, "
            f"a {geometries[first].geom_type}; remove them, or make polygons of them, as with a buffer"
        )
    found = Features(ids, geometries, values[0] if values else np.ones(len(ids)))
    return found.take(np.argsort(ids))  # an index finds them in another order


@lru_cache(maxsize=8)
def _hold(layer: Layer, field: str | None) -> tuple[Features, Any]:
    """Return all features of a file, and their index."""
    import shapely

    features = _read(layer, None, field)
    return features, shapely.STRtree(features.geometries)
