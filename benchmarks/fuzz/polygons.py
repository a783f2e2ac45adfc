"""Files of polygons, as labels of images on a map."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.fuzz.child import Case
from benchmarks.fuzz.mutations import Dice, mutate_bytes, mutate_text, write_special
from benchmarks.fuzz.samples import Samples
from unet_ddp.__main__ import main as command

_DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".shp": "ESRI Shapefile"}
_SIDE = 24  # pixels


def build_polygons(samples: Samples, folder: Path, dice: Dice) -> Case:
    """Give a mutated file of polygons, or a part of a shapefile, to doctor."""
    labels = _write_map(folder, dice.choice(tuple(_DRIVERS)))
    parts = [labels]
    if labels.suffix == ".shp":
        parts = [labels.with_suffix(ending) for ending in (".shp", ".shx", ".dbf", ".prj", ".cpg")]
    path = dice.choice(parts)
    valid = path.read_bytes()
    path.unlink()
    if not write_special(path, dice):
        is_text = path.suffix in (".geojson", ".prj", ".cpg")
        path.write_bytes(
            mutate_text(valid.decode(), dice) if is_text else mutate_bytes(valid, dice)
        )
    flags = ["--images", "imgs", "--masks", str(labels), "--class-field", "kind"]
    return Case(command, ["doctor", *flags, *(["--overlap"] if dice.random() < 0.2 else [])])


def _write_map(folder: Path, suffix: str) -> Path:
    """Write six images, and a file of polygons on each; return that file."""
    import pyogrio.raw
    import rasterio
    import shapely

    (folder / "imgs").mkdir()
    shapes, kinds = [], []
    for k in range(6):
        left, top = 500_000 + 100 * k, 5_000_000
        place = rasterio.transform.from_origin(left, top, 0.5, 0.5)
        profile = {"width": _SIDE, "height": _SIDE, "count": 1, "dtype": "uint8"}
        pixels = np.random.default_rng(k).integers(0, 256, (_SIDE, _SIDE), np.uint8)
        with rasterio.open(
            folder / "imgs" / f"{chr(97 + k)}.tif",
            "w",
            crs="EPSG:32633",
            transform=place,
            **profile,
        ) as file:
            file.write(pixels, 1)
        for n, kind in enumerate(("road", "roof")):
            shapes.append(shapely.box(left + 4 * n, top - 6, left + 3 + 4 * n, top - 2))
            kinds.append(kind)
    labels = folder / f"labels{suffix}"
    how = {"driver": _DRIVERS[suffix], "geometry_type": "Polygon", "crs": "EPSG:32633"}
    stored = shapely.to_wkb(np.array(shapes))
    pyogrio.raw.write(labels, stored, [np.array(kinds, object)], ["kind"], **how)
    return labels
