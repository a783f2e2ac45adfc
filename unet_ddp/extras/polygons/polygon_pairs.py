"""Pairs whose masks are burnt when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from unet_ddp.data.pairs import Pair, Pairs, Places
from unet_ddp.errors import UserError
from unet_ddp.extras.polygons.burnt_mask import Burning, BurntMask, parse
from unet_ddp.extras.polygons.classes import BACKGROUND, find_names
from unet_ddp.extras.polygons.grid import Grid, open_grid
from unet_ddp.extras.polygons.layers import Layer, open_layer
from unet_ddp.extras.polygons.polygon_kind import is_labels, refuse_addresses


class PolygonPairs(Pairs):
    """Pairs of which masks are polygons, perhaps among others."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The texts of the attribute with the classes; with overlap its values."""
        found = next(filter(None, (parse(pair.mask) for pair in self)), None)
        return found.burning.names if found else ()

    def to_read(self, row: int) -> Pair:
        """Return the paths of a pair, and the stamp of its mask as it is now, after `share`."""
        return _stamped(super().to_read(row))

    def files_of(self, path: Path) -> Sequence[Path]:
        """Return the file itself, or the files of the polygons."""
        found = parse(path)
        return found.files if found else [path]


def _stamped(pair: Pair) -> Pair:
    found = parse(pair.mask)
    return replace(pair, stamps=(pair.stamps[0], found.stamp)) if found else pair


def burn_pairs(pairs: Pairs, places: Places) -> Pairs:
    """Return pairs in which masks of polygons are burnt onto their images when they are read.

    Raises:
        UserError: a file of polygons can't be read, its classes are none, or no image has polygons on it.
    """
    burning, config = Burning(), places.config
    if config is not None:
        names = tuple(name for name in places.names if name != BACKGROUND)
        burning = Burning(config.class_field, config.overlap, config.ignore_index, names)
    named = [_name_labels(pair, burning) for pair in pairs]
    chosen = [pair for pair in named if is_labels(pair.mask.suffix)]
    if not chosen:
        return pairs
    if burning.overlap and burning.class_field is None:
        raise UserError(
            f"--overlap: the polygons of {chosen[0].mask} are of one class without --class-field; use both or neither"
        )
    for pair in chosen:
        refuse_addresses(pair.image, pair.mask)
    layers = {path: open_layer(path) for path in dict.fromkeys(pair.mask for pair in chosen)}
    if not any(layer.count for layer in layers.values()):
        raise UserError(f"{chosen[0].mask}: contains no polygons; save some, or name another file")
    rule = replace(burning, names=find_names([*layers.values()], burning))
    filled = [(pair.image, layers[pair.mask]) for pair in chosen if layers[pair.mask].count]
    with ThreadPoolExecutor() as pool:
        grids = [*pool.map(lambda each: open_grid(*each), filled)]
    _check_extents(grids, [layer for _, layer in filled], burning.class_field)
    found = []
    for pair in named:
        if is_labels(pair.mask.suffix):
            mask = BurntMask(pair.mask, layers[pair.mask].name, pair.image, rule)
            pair = _stamped(replace(pair, mask=mask.path))
        found.append(pair)
    return PolygonPairs(found)


def _name_labels(pair: Pair, burning: Burning) -> Pair:
    """Return a pair with the file of polygons that its mask is burnt from, as a run's split.csv names it."""
    found = parse(pair.mask)
    if found is None:
        return pair
    field = found.burning.class_field
    if field != burning.class_field:
        flag = f"--class-field {field}" if field else "no --class-field"
        raise UserError(f"{found.labels}, for {pair.image}: was listed with {flag}; use that, too")
    return replace(pair, mask=found.labels)


def _check_extents(grids: Sequence[Grid], layers: Sequence[Layer], field: str | None) -> None:
    """Refuse polygons of which none is on an image."""
    for grid, layer in zip(grids, layers, strict=True):
        if len(layer.find(grid.bounds, field).ids):
            return
    grid, layer = grids[0], layers[0]
    own, labels = (_show(extent) for extent in grid.compare(layer.find_extent()))
    raise UserError(
        f"{layer.path}: no polygon lies on an image: in the CRS of {grid.image} ({grid.crs_name}), it covers {own}, "
        f"the polygons {labels}; name other --images or --masks, or correct a wrong CRS with ogr2ogr -a_srs"
    )


def _show(extent: Sequence[float]) -> str:
    left, bottom, right, top = (f"{value:.8g}" for value in extent)
    return f"x {left} to {right}, y {bottom} to {top}"
