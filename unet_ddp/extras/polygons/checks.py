"""Notes of a check about masks that are polygons."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from unet_ddp.checks.table import Table
from unet_ddp.data.matching import Report
from unet_ddp.errors import count_of
from unet_ddp.extras.polygons.burnt_mask import BurntMask, parse
from unet_ddp.extras.polygons.reader import PolygonFile


def describe_polygons(table: Table, report: Report) -> None:
    """Add notes about images without polygons, and, for the doctor, about polygons that share an area."""
    masks = [parse(pair.mask) for pair in table.pairs]  # of windows, those of their scenes
    known = dict.fromkeys(mask for mask in masks if mask)
    blocks = table.value_blocks()
    filled = (row[table.columns["value"][part] != 0].tolist() for _, part, row in blocks)
    labelled = {masks[row] for rows in filled for row in rows}
    empty = [mask.image for mask in known if mask not in labelled]
    if empty:
        report.notes.append(
            f"{len(empty)} of {len(known)} images have no polygon on them, e.g. {empty[0]}: background there"
        )
    if report.collects:
        report.notes += _describe_shared(mask for mask in known if not mask.overlap)


def _describe_shared(masks: Iterable[BurntMask]) -> list[str]:
    """Return a line if the interiors of polygons of different classes meet."""
    import shapely

    found: dict[tuple[Path, int, int], None] = {}  # in the order in which they are found
    for mask in masks:
        features, codes = PolygonFile(mask.path).find()
        shapes = shapely.make_valid(features.geometries)
        rows = shapely.STRtree(shapes).query(shapes)  # (2, N)
        rows = rows[:, np.less(*codes[rows])]
        rows = rows[:, shapely.relate_pattern(*shapes[rows], "T********")]
        found |= dict.fromkeys((mask.labels, *pair) for pair in features.ids[rows.T].tolist())
    if not found:
        return []
    labels, one, other = next(iter(found))
    return [
        f"{count_of(len(found), 'pair')} of polygons of different classes share an area, e.g. features {one} and "
        f"{other} of {labels}: the later one has it; with --overlap, both do"
    ]
