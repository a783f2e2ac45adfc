"""Masks in which each object has a number, told from those in which each value is a class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.table import Table
from unet_ddp.data.label_rules import MaskValues, instances_flag
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import Report
from unet_ddp.data.readers.base import Codes
from unet_ddp.data.readers.read import Source
from unet_ddp.files import is_address

Column = NDArray[Any]

_LOOKED_AT = 1000  # masks whose values and areas are compared; what the scan kept of them
_READ = 16  # masks that are read again, and values in each, if those may be numbers
_FEW = 8  # values that masks of classes often have
_PER_MASK = 3  # values; one object per image is usual in masks of classes
_SMALL = 8  # pixels: soft edges and noise are smaller
_RARE = 0.1  # of the masks: numbers counted over a whole set are in fewer
_EXPLAINED = 0.3  # of the variance of areas: by classes it is more, by numbers about 0
_SAME = 4  # masks that are no coincidence
_WHOLE = 0.9  # of the values in a mask: those of objects are one connected area each


def find_numbers(
    table: Table, values: MaskValues, ignore: int | None, report: Report
) -> str | None:
    """Return what is wrong if values are numbers of objects, and note it first; None otherwise."""
    if not _are_numbers(table, ignore):
        return None
    report.notes.insert(0, "numbered objects: add --instances to learn each of them")
    count = len({*values.values} - {ignore})
    example = values.examples[max(values.values)]
    advice = f"use {instances_flag()} if each is an object, "
    if count <= IGNORE_ID:
        advice += f"--classes {count} if each is a class, "
    return (
        f"the {count} values of the masks look like numbers of objects, e.g. in {example}: {advice}or "
        "--mask-threshold 0 for two classes, zero and above"
    )


def warn_of_one_mask(table: Table) -> list[str]:
    """Return a warning if all masks have the same pixels: nothing can be learnt of their images.

    Those in storage are not looked at, as each would be fetched again.
    """
    if is_address(table.pairs[0].mask) or table.pairs.storage:
        return []
    rows = np.arange(len(table.pairs))
    ends = table.columns["end"][:_LOOKED_AT]
    last, counts = int(ends[-1]), np.diff(ends, prepend=0)
    if len(rows) < _SAME or np.ptp(counts):
        return []
    columns = (table.columns[name][:last].reshape(len(ends), -1) for name in ("value", "pixels"))
    if any(np.ptp(column, axis=0).any() for column in columns):
        return []
    first, *others = (_read_mask(table, row) for row in _some(rows).tolist())
    if not all(np.array_equal(first, other) for other in others):
        return []
    return [
        f"the masks that were compared are all the same, e.g. {table.pairs[0].mask} and {table.pairs[1].mask}: each image needs its own"
    ]


def _are_numbers(table: Table, ignore: int | None) -> bool:
    """Return whether each value in a mask is one connected area, that it has little to do with.

    Numbers are in few masks, or their areas differ as much in one value as among all. Gaps between
    them mean nothing: objects may have been deleted, and classes may be missing.
    """
    ends = table.columns["end"][:_LOOKED_AT]
    last = int(ends[-1])
    value = table.columns["value"][:last]
    kept = (value != 0) & (value != (ignore or 0))
    counts = np.diff(ends, prepend=0)
    row = np.repeat(np.arange(len(ends)), counts)[kept]
    area = table.columns["pixels"][:last][kept]
    value = value[kept]
    rows = np.unique(row)
    if len(np.unique(value)) <= _FEW or len(value) < _PER_MASK * len(rows):
        return False
    if np.median(area) < _SMALL or not _are_strangers(row, value, area):
        return False
    found = []
    for k in _some(rows).tolist():
        codes = _read_mask(table, k)
        found += [_is_whole(codes, each) for each in _some(value[row == k])]
    return bool(np.mean(found) >= _WHOLE)


def _are_strangers(row: Column, value: Column, area: Column) -> bool:
    """Return whether the areas of one value, a row each, have no more in common than all areas.

    Compared are logarithms, less their mean in each mask. Programs may number objects by their size:
    the trend from the first value of a mask to its last is subtracted.
    """
    _, row, count = np.unique(row, return_inverse=True, return_counts=True)
    _, value, shared = np.unique(value, return_inverse=True, return_counts=True)
    if np.median(shared) <= max(1, _RARE * len(count)):
        return True
    size = np.log(area)
    first = count.cumsum() - count  # of each mask
    order = (np.arange(len(row)) - first[row]) / count[row]
    size -= (np.bincount(row, size) / count)[row]
    size -= np.polyval(np.polyfit(order, size, 2), order)
    size -= (np.bincount(row, size) / count)[row]
    means = np.bincount(value, size) / shared
    within = np.square(size - means[value]).sum()
    freedom = max(len(size) - len(shared), 1) / (len(size) - 1)
    every = np.square(size).sum()
    return bool(within > (1 - _EXPLAINED) * freedom * every)


def _some(items: Column) -> Column:
    """Return at most `_READ` items, from the first to the last."""
    spread = np.linspace(0, len(items) - 1, _READ).astype(int)
    some: Column = items[np.unique(spread)]
    return some


def _read_mask(table: Table, row: int) -> Codes:
    """Return the values (H, W) of the mask in a row of the table."""
    with table.pairs.local(table.pairs[row].mask) as local, Source(local) as source:
        return source.mask()


def _is_whole(codes: Codes, value: int) -> bool:
    """Return whether the pixels of a value in a mask (H, W) are one connected area."""
    import cv2

    found = (codes == value).astype(np.uint8)
    left, top, width, height = cv2.boundingRect(found)
    window = found[top : top + height, left : left + width]
    parts, _ = cv2.connectedComponents(window)
    return bool(parts == 2)  # with the background
