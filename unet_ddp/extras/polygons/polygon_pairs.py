"""Pairs whose masks are burnt when they are read."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from unet_ddp.config import DataConfig
from unet_ddp.data.pairs import DataPaths, Pairs, find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.classes import list_names, name_layers
from unet_ddp.extras.polygons.layers import find_files, open_layer
from unet_ddp.extras.polygons.polygon_kind import is_labels, refuse_addresses
from unet_ddp.extras.polygons.reader import PolygonFile
from unet_ddp.storage import real_file

_EXTENT = "x {0:.8g} to {2:.8g}, y {1:.8g} to {3:.8g}"


class PolygonPairs(Pairs):
    """Pairs of which masks are polygons, perhaps among others."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The texts of the attribute with the classes; with overlap its values."""
        masks = (parse(pair.mask) for pair in self)
        return next((list_names(open_layer(mask.labels), mask) for mask in masks if mask), ())


def burn_pairs(pairs: Pairs, paths: DataPaths) -> Pairs:
    """Return pairs in which masks of polygons are burnt onto their images when they are read.

    Raises:
        UserError: a file of polygons can't be read, its classes are none, or no image has polygons on it.
    """
    config = paths.config or DataConfig()
    how = config.class_field, config.overlap, config.ignore_index
    files = {pair: real_file(pair.mask) for pair in pairs}  # also of a run's split.csv
    labels = {pair: path for pair, path in files.items() if is_labels(path.suffix)}
    _refuse_flags(config, next(iter(labels.values())))
    for pair, path in labels.items():
        refuse_addresses(pair.image, path)
        before = parse(pair.mask)
        if before and before.class_field != config.class_field:
            known = before.class_field or "none"
            raise UserError(
                f"{path}, for {pair.image}: was listed with another --class-field, {known}; use that, too"
            )
    layers = {path: open_layer(path) for path in dict.fromkeys(labels.values())}
    names = name_layers(layers.values(), config, paths.names)
    for pair, path in labels.items():
        with as_user_error(path):
            stamps = [*map(find_stamp, (pair.image, *find_files(path)))]
        stamp = zlib.crc32(repr(stamps).encode())
        files[pair] = BurntMask(path, pair.image, stamp, *how, *names[path]).path
    if not any(len(PolygonFile(files[pair]).find()[0].ids) for pair in labels):
        masks = [PolygonFile(files[pair]) for pair in labels]
        _refuse_extent(max(masks, key=lambda mask: mask.layer.count))
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


def _refuse_extent(mask: PolygonFile) -> NoReturn:
    """Say that no polygon is on an image."""
    layer, grid = mask.layer, mask.grid
    if layer.extent[0] >= layer.extent[2]:
        raise UserError(f"{layer.path}: contains no polygons; save some, or name another file")
    own = grid.find_bounds(margin=0) or (math.nan,) * 4
    raise UserError(
        f"{layer.path}: no polygon lies on an image: in its CRS, {shorten(layer.crs)}, the polygons cover "
        f"{_EXTENT.format(*layer.extent)}, {grid.image} covers {_EXTENT.format(*own)}; name other --images or --masks, "
        "or correct a wrong CRS with ogr2ogr -a_srs"
    )
