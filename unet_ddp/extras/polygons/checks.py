"""Notes of a check about masks that are polygons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from unet_ddp.checks.table import Table
from unet_ddp.data.matching import Report
from unet_ddp.errors import count_of
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.classes import find_codes
from unet_ddp.extras.polygons.grid import open_grid
from unet_ddp.extras.polygons.layers import Features, Layer, open_layer

_MOST_ROWS = 100_000  # images or windows, whose paths are looked at


def describe_polygons(table: Table, report: Report) -> None:
    """Add notes about images without polygons, and, for the doctor, about polygons that share an area."""
    if len(table.pairs) > _MOST_ROWS:
        return
    masks = [parse(pair.mask) for pair in table.pairs]
    is_labelled = np.zeros(len(masks), bool)
    for _, part, rows in table.value_blocks():
        is_labelled[rows[table.columns["value"][part] != 0]] = True
    known = {mask: False for mask in masks if mask}
    for mask, has_any in zip(masks, is_labelled.tolist(), strict=True):
        if mask:
            known[mask] |= has_any
    empty = [mask for mask, has_any in known.items() if not has_any]
    if empty:
        report.notes.append(
            f"{len(empty)} of {len(known)} images have no polygon on them, e.g. {empty[0].image}: background there"
        )
    if report.collects:
        report.notes += _describe_shared(known)


def _describe_shared(masks: Iterable[BurntMask]) -> Iterator[str]:
    """Yield a line if polygons of different classes share an area."""
    found: dict[tuple[Layer, int, int], str] = {}
    for mask in masks:
        burning, layer = mask.burning, open_layer(mask.labels)
        if burning.class_field is None or burning.overlap:
            return
        features = layer.find(open_grid(mask.image, layer).bounds, burning.class_field)
        codes = find_codes(layer, features.ids, features.values, burning)
        for one, other in _find_shared(features, codes):
            (first, name), (second, later) = (
                (int(features.ids[row]), features.values[row]) for row in (one, other)
            )
            example = f"{first} ({name}) and {second} ({later}) of {layer.path}"
            found.setdefault((layer, first, second), example)
    if found:
        yield (
            f"{count_of(len(found), 'pair')} of polygons of different classes share an area, e.g. features "
            f"{next(iter(found.values()))}: the later one has it; with --overlap, both do"
        )


def _find_shared(features: Features, codes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the rows of features of different classes of which the interiors meet."""
    import shapely

    geometries = shapely.make_valid(features.geometries)
    one, other = shapely.STRtree(geometries).query(geometries)
    differ = (one < other) & (codes[one] != codes[other])
    one, other = one[differ], other[differ]
    meet = shapely.relate_pattern(geometries[one], geometries[other], "T********")
    yield from zip(one[meet].tolist(), other[meet].tolist(), strict=True)
