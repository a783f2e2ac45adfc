"""Split of the pairs into training and validation.

A function of the names and the seed, not of the order in which the file system lists files.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.exchange import exchange
from unet_ddp.data.groups import Groups, find_groups
from unet_ddp.data.masks import Flags
from unet_ddp.data.pairs import SIDES, Pairs
from unet_ddp.errors import UserError, count_of
from unet_ddp.files import replacing

OWN_FOLDER = "validation has its own folder"


@dataclass(frozen=True)
class Split:
    """Pairs for training and for validation: disjoint, each sorted by name."""

    training: Pairs
    validation: Pairs
    how: str  # one line for the user: the rule of the split
    drawn: Drawn | None = field(default=None, compare=False, repr=False)
    """How the sides were drawn, until `spread_classes`; None if they were given."""
    moved: tuple[int, ...] = ()
    """Keys of the groups that `spread_classes` gave the other side."""
    chosen: Pairs | None = field(default=None, compare=False, repr=False)
    """The validation pairs that each epoch scores; None for all."""

    @property
    def validated(self) -> Pairs:
        """The validation pairs that each epoch scores."""
        return self.validation if self.chosen is None else self.chosen

    def without(self, names: Container[str]) -> Split:
        """Return the split without the pairs of these names."""
        training = _leave_out(self.training, names)
        return replace(self, training=training, validation=_leave_out(self.validation, names))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names of both sides."""
        digest = hashlib.sha256()
        for text, side in (("[[", self.training), ("], [", self.validation)):  # as repr writes them
            digest.update(text.encode())
            separator = ""
            for name in side.names():
                digest.update(f"{separator}{name!r}".encode())
                separator = ", "
        digest.update(b"]]")
        return digest.hexdigest()


def _leave_out(pairs: Pairs, names: Container[str]) -> Pairs:
    return pairs.select(np.array([name not in names for name in pairs.names()], bool))


def split_pairs(
    pairs: Pairs,
    *,
    validation: float,
    seed: int,
    pattern: str | None = None,
    fold: tuple[int, int] | None = None,
) -> Split:
    """Split off about `validation` percent of `pairs`, keeping groups whole where found.

    Pairs of a list that names their split are on that side.

    Args:
        pairs: in any order.
        validation: percent of the pairs.
        seed: of the draw.
        pattern: regular expression, searched for in each name, whose first bracket is the group;
            a name that does not match is a group by itself. None: groups are detected.
        fold: (index from 1, number of folds); it is the validation split instead.
    """
    sides = pairs.sides()
    if sides.any():
        return _split_by_list(pairs, sides)
    groups = find_groups(pairs, pattern, seed)
    if fold is not None:
        index, count = fold
        how = f"fold {index} of {count}, {groups.how}"
        return _divide(pairs, Drawn(groups, _deal_folds(groups, index, count), index - 1, how))
    target = max(1, round(len(pairs) * validation / 100)) if validation else 0
    how = groups.how
    chosen = _choose(groups.sizes, target)
    found = int(groups.sizes[chosen].sum())
    is_near = target / 2 <= found <= max(2 * target, 2) and 2 * found <= len(pairs)
    if groups.are_guessed and not is_near:
        how = groups.describe_unused()
        groups = Groups(pairs, seed, pairs.names)
        chosen = _choose(groups.sizes, target)
    return _divide(pairs, Drawn(groups, chosen.astype(np.int64), 1, how))


@dataclass(frozen=True, eq=False)
class Drawn:
    """The side of each group: the number of its fold, or 1 for validation and 0 for training."""

    groups: Groups
    sides: NDArray[np.int64]
    held_out: int
    """The side that validates."""
    how: str


def _divide(pairs: Pairs, drawn: Drawn) -> Split:
    groups, chosen = drawn.groups, drawn.sides == drawn.held_out
    held_out = np.zeros(len(pairs), bool)
    held_out[groups.order] = np.repeat(chosen, groups.sizes)
    if held_out.all():
        raise UserError(
            f"{count_of(len(pairs), 'image')} in {count_of(len(chosen), 'group')}: none left to train on; "
            "add images, or use a smaller --validation, or --validation 0"
        )
    return Split(pairs.select(~held_out), pairs.select(held_out), drawn.how, drawn)


def spread_classes(split: Split, pairs: Pairs, classes: NDArray[np.bool_]) -> Split:
    """Return the split of `pairs` with each class on both sides, where two groups or more have it.

    Of folds as many as possible get each class. `classes` is (N, C): which mask has which class. A split
    that was given stays as it is.
    """
    drawn = split.drawn
    if drawn is None or not (drawn.sides == drawn.held_out).any():
        return replace(split, drawn=None)
    groups = drawn.groups
    has = np.logical_or.reduceat(classes[groups.order], groups.starts)
    sides = exchange(drawn.sides, groups.sizes, has)
    changed = (sides == drawn.held_out) != (drawn.sides == drawn.held_out)
    return move_groups(split, pairs, groups.keys[changed].tolist())


def move_groups(split: Split, pairs: Pairs, keys: Collection[int]) -> Split:
    """Return the split of `pairs` with the groups of these keys on the other side."""
    drawn = split.drawn
    if drawn is None or not keys:
        return replace(split, drawn=None)
    is_moved = np.isin(drawn.groups.keys, np.array([*keys], np.uint64))
    sides = (is_moved ^ (drawn.sides == drawn.held_out)).astype(np.int64)
    how = (
        f"{drawn.how}; {count_of(len(keys), 'group')} exchanged so that both sides have each class"
    )
    moved = _divide(pairs, Drawn(drawn.groups, sides, 1, how))
    return replace(moved, drawn=None, moved=tuple(sorted(keys)))


def _split_by_list(pairs: Pairs, sides: NDArray[np.uint8]) -> Split:
    training = pairs.select(sides == SIDES.index("training"))
    validation = pairs.select(sides == SIDES.index("validation"))
    if not training:
        raise UserError("--list: no row's split is 'training'; nothing to train on")
    how = "by the list"
    rest = len(pairs) - len(training) - len(validation)
    if rest:
        how += f", {rest} left out"
    return Split(training, validation, how)


def split_by_folders(training: Pairs, validation: Pairs) -> Split:
    """Return the split of a training and a validation folder, which share no image."""
    if training.scanned is None:  # else they were compared before
        images = {pair.image.resolve() for pair in training}
        both = images.intersection(pair.image.resolve() for pair in validation)
        if both:
            raise UserError(f"--val-images: {min(both)} is among --images too; use other images")
    return Split(training, validation, OWN_FOLDER)


def _choose(sizes: NDArray[np.int64], target: int) -> Flags:
    """Choose groups of at most `target` images in all; the smallest group if all are larger."""
    chosen = np.zeros(len(sizes), bool)
    total = 0
    for group, size in enumerate(sizes):
        if total == target:
            break
        if total + size <= target:
            chosen[group] = True
            total += size
    if target and not total:
        chosen[sizes.argmin()] = True
    return chosen


def _deal_folds(groups: Groups, index: int, count: int) -> NDArray[np.int64]:
    """Return the fold of each group: large ones are dealt out first, to the emptiest fold."""
    sizes = groups.sizes
    if len(sizes) < count:
        found = f"{len(sizes)} groups of images"
        more = ""
        if groups.are_guessed:
            found = groups.how
            more = ", or --group-pattern '(.+)' if their images do not belong together"
        raise UserError(f"--fold {index}/{count}: there are {found}; use fewer folds{more}")
    folds = np.zeros(len(sizes), np.int64)
    filled = [0] * count
    for group in np.argsort(-sizes, kind="stable"):
        emptiest = filled.index(min(filled))
        folds[group] = emptiest
        filled[emptiest] += sizes[group]
    return folds


# -- split.csv -----------------------------------------------------------------------------


def write_split(split: Split, groups: Mapping[str, str], path: Path) -> None:
    """Write the split as a list that ``--list`` reads; `groups` has the groups by pair name.

    That of a pack is not written: a line for each of its pairs may be gigabytes. Nor is that of windows, which
    are no files.
    """
    if split.training.scanned is not None or split.training.group_rule:
        return
    with (
        replacing(path, durable=True) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # keeps a group's leading blanks
        has_sources = any(p.source for p in (*split.training, *split.validation))
        columns = 4 + has_sources
        writer.writerow(("image", "mask", "group", "split", "source")[:columns])
        for side, pairs in (("training", split.training), ("validation", split.validation)):
            for p in pairs:
                row = p.image.absolute(), p.mask.absolute(), groups.get(p.name, ""), side, p.source
                writer.writerow(row[:columns])
