"""``--validation-images``: the validation images that each epoch scores, instead of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.sides import find_classes
from unet_ddp.checks.table import Table
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.masks import Flags
from unet_ddp.errors import count_of


def choose_validated(count: int, table: Table, data: PreparedData, seed: int) -> PreparedData:
    """Return the data set with `count` of the validation pairs for each epoch, the same for a seed.

    Each group of images has its share of them, as far as this can be, and each class that the masks have is in one.
    `table` has all pairs. If there are no more than `count`, all are scored.
    """
    pairs = data.split.validation
    if len(pairs) <= count:
        return data
    names = pairs.groups() or pairs.names()
    if data.groups:
        names = (data.groups.get(name, name) for name in pairs.names())
    order = order_by_group(list(names), seed)
    rows = choose_rows(order, find_classes(table, data.labels, pairs), count)
    chosen = pairs.select(np.isin(np.arange(len(pairs)), rows))
    note = f"validation: {count} of {count_of(len(pairs), 'image')} after each epoch"
    return replace(data, split=replace(data.split, chosen=chosen), notes=[*data.notes, note])


def order_by_group(groups: list[str], seed: int) -> NDArray[np.int64]:
    """Return the rows in a random order, of which each beginning has the same share of each group."""
    random = np.random.default_rng(seed)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = random.permutation(len(groups))
    order = order[np.argsort(group[order], kind="stable")]  # group after group, each shuffled
    nth = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (nth + np.repeat(random.random(len(sizes)), sizes)) / np.repeat(sizes, sizes)
    return order[np.argsort(place, kind="stable")]


def choose_rows(order: NDArray[np.int64], classes: Flags, count: int) -> NDArray[np.int64]:
    """Return the first `count` rows of an order, after one for each class that would lack.

    `classes` (N, C) says which row has which class; the rarest are looked for first.
    """
    first: list[int] = []
    for k in np.argsort(classes.sum(axis=0), kind="stable").tolist():
        found = order[classes[order, k]]
        if len(found) and not classes[first, k].any():
            first.append(int(found[0]))
    rest = order[~np.isin(order, first)]
    return np.append(np.array(first, np.int64), rest)[:count]
