"""Pairs whose masks are burnt when they are read."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unet_ddp.config import DataConfig
from unet_ddp.data.pairs import Pairs, Places, find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.classes import list_names, name_layers
from unet_ddp.extras.polygons.grid import open_grid
from unet_ddp.extras.polygons.layers import Layer, find_files, open_layer
from unet_ddp.extras.polygons.polygon_kind import is_labels, refuse_addresses
from unet_ddp.storage import real_file

_VERSION = 2  # of the rule by which polygons become pixels
_EXTENT = "x {0:.8g} to {2:.8g}, y {1:.8g} to {3:.8g}"


class PolygonPairs(Pairs):
    """Pairs of which masks are polygons, perhaps among others."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The texts of the attribute with the classes; with overlap its values."""
        masks = (parse(pair.mask) for pair in self)
        return next((list_names(open_layer(mask.labels), mask) for mask in masks if mask), ())


def burn_pairs(pairs: Pairs, places: Places) -> Pairs:
    """Return pairs in which masks of polygons are burnt onto their images when they are read.

    Raises:
        UserError: a file of polygons can't be read, its classes are none, or no image has polygons on it.
    """
    config = places.config or DataConfig()
    how = config.class_field, config.overlap, config.ignore_index
    files = {pair: real_file(pair.mask) for pair in pairs}  # also of a run's split.csv
    labels = {pair: path for pair, path in files.items() if is_labels(path.suffix)}
    _refuse_flags(config, next(iter(labels.values())))
    for pair, path in labels.items():
        refuse_addresses(pair.image, path)
        before = parse(pair.mask)
        if before and before.class_field != config.class_field:
            flag = (
                f"--class-field {before.class_field}" if before.class_field else "no --class-field"
            )
            raise UserError(f"{path}, for {pair.image}: was listed with {flag}; use that, too")
    layers = {path: open_layer(path) for path in dict.fromkeys(labels.values())}
    names = name_layers(layers.values(), config, places.names)
    _check_extents([(pair.image, layers[path]) for pair, path in labels.items()], how[0])
    for pair, path in labels.items():
        with as_user_error(path):
            stamps = [*map(find_stamp, (pair.image, *find_files(path)))]
        stamp = zlib.crc32(repr((_VERSION, stamps)).encode())
        files[pair] = BurntMask(path, pair.image, stamp, *how, *names[path]).path
    return PolygonPairs(replace(pair, mask=mask) for pair, mask in files.items())


def _refuse_flags(config: DataConfig, labels: Path) -> None:
    if config.instances:
        raise UserError(
            f"--instances: the polygons of {labels} become classes, without numbers of objects; leave --instances out, "
            "or use masks that are images and number them"
        )
    if config.overlap and config.class_field is None:
        raise UserError(
            f"--overlap: the polygons of {labels} are of one class without --class-field; use both or neither"
        )


def _check_extents(found: Sequence[tuple[Path, Layer]], field: str | None) -> None:
    """Refuse polygons of which none is on an image."""
    for image, layer in found:
        if len(layer.find(open_grid(image, layer).find_bounds(), field).ids):
            return
    image, layer = max(found, key=lambda each: each[1].count)
    if layer.extent[0] >= layer.extent[2]:
        raise UserError(f"{layer.path}: contains no polygons; save some, or name another file")
    own = open_grid(image, layer).find_bounds(margin=0) or (math.nan,) * 4
    raise UserError(
        f"{layer.path}: no polygon lies on an image: in its CRS, {shorten(layer.crs)}, the polygons cover "
        f"{_EXTENT.format(*layer.extent)}, {image} covers {_EXTENT.format(*own)}; name other --images or --masks, or "
        "correct a wrong CRS with ogr2ogr -a_srs"
    )
