"""The two sides of a data set: split before its files are scanned, and corrected by what the scan finds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.metadata import ScannedPair
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Flags
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.read import find_readers
from unet_ddp.data.splits import Split, move_groups, split_by_folders, split_pairs, spread_classes
from unet_ddp.errors import UserError

_MOST_SPREAD = 1 << 20  # pairs; of more, a class that one side lacks is too rare to learn


def split(config: DataConfig, training: Pairs, validation: Pairs | None, seed: int) -> Split:
    """Return the split of pairs, or the one that two folders give."""
    if validation is not None:
        return split_by_folders(training, validation)
    return split_pairs(
        training,
        validation=config.validation,
        seed=seed,
        pattern=config.group_pattern,
        fold=config.read_fold(),
    )


def skip_unread(
    report: Report, errors: dict[str, str], split: Split | None, skip_bad: int
) -> Split | None:
    """Return the split without the pairs that can't be read, a problem if they are too many."""
    if not errors:
        return split
    rest = split.without(errors) if split else None
    if len(errors) > skip_bad or rest is None or not rest.training:
        report.add_problems(list(errors.values()))
        return split
    for count, error in enumerate(errors.values(), start=1):
        report.warnings.append(f"skipped {error} ({count} of at most {skip_bad})")
    return rest


def spread(
    split: Split,
    pairs: Pairs,
    table: Table,
    labels: Labels | None,
    moved: Collection[int] | None,
) -> Split:
    """Return the split of `pairs` with each class on both sides, or as an earlier run's `moved` says."""
    if labels is None:
        return split
    other = move_groups(split, pairs, moved or ())
    if moved is None and split.drawn is not None and len(pairs) <= _MOST_SPREAD:
        with suppress(UserError):  # of a value that is no class: it is said later
            other = spread_classes(split, pairs, find_classes(table, labels, pairs))
    if not other.moved:
        return other
    kept = {*split.training.names(), *split.validation.names()}
    return other.without({*pairs.names()} - kept)  # those that could not be read


def settle(
    config: DataConfig, report: Report, split: Split, pairs: Pairs, scanned: Sequence[ScannedPair]
) -> Split:
    """Return the split of `pairs` as its sides are read, and warn of images next to each other on a map."""
    split = report.attempt(partial(pairs.settle, split, config)) or split
    for reader in find_readers(pair.image for pair, *_ in scanned):
        if issubclass(reader, Scene):
            report.warnings += reader.check_sides(scanned, split)
    return split


def find_classes(table: Table, labels: Labels, pairs: Pairs) -> Flags:
    """Return (N, C), which class is in the mask of which of `pairs`; none in one that could not be read."""
    found = np.zeros((len(table.pairs), labels.num_classes), bool)
    for k, rows, _ in class_blocks(table, labels):
        found[rows, k] = True
    known = {name: row for row, name in enumerate(table.pairs.names())}
    places = np.array([known.get(name, -1) for name in pairs.names()], np.int64)
    classes = np.zeros((len(pairs), labels.num_classes), bool)
    classes[places >= 0] = found[places[places >= 0]]
    return classes


def class_blocks(
    table: Table, labels: Labels
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint32]]]:
    """Yield, block by block, each class with the rows of its values, and the pixels of each."""
    for _, part, rows in table.value_blocks():
        values, inverse = np.unique(table.columns["value"][part], return_inverse=True)
        example = table.pairs[int(rows[0])].mask if len(rows) else Path()
        ids = labels.to_ids(values.astype(np.int32), example)
        pixels = table.columns["pixels"][part]
        for k, has_class in enumerate(labels.planes(ids)):
            chosen = has_class[inverse]
            yield k, rows[chosen], pixels[chosen]
