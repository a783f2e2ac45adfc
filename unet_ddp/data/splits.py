"""Split of the pairs into training and validation.

A function of the names and the seed, not of the order in which the file system lists files.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.data.masks import Flags
from unet_ddp.data.pairs import SIDES, Pairs
from unet_ddp.errors import UserError, count_of, hides_bars
from unet_ddp.files import replacing

OWN_FOLDER = "validation has its own folder"

# view 07 of car 0ee135a3cccc, frame f00930 of drive 0006R0, slice001 of folder vol1
_NUMBERED = re.compile(r"^(.*[^_\-. /])[_\-. /]+[A-Za-z]*\d+$")
_OF_NNUNET = re.compile(
    r"^(.*[^_\-. /])[_\-. /]+[A-Za-z]*\d+_0000$"
)  # the first channel, in all names


@dataclass(frozen=True)
class Split:
    """Pairs for training and for validation: disjoint, each sorted by name."""

    training: Pairs
    validation: Pairs
    how: str  # one line for the user: the rule of the split

    def without(self, names: Container[str]) -> Split:
        """Return the split without the pairs of these names."""
        training = _leave_out(self.training, names)
        return Split(training, _leave_out(self.validation, names), self.how)

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
    groups = _group(pairs, pattern, seed)
    if fold is not None:
        index, count = fold
        chosen = _choose_fold(groups, index, count)
        return _divide(pairs, groups, chosen, f"fold {index} of {count}, {groups.how}")
    target = max(1, round(len(pairs) * validation / 100)) if validation else 0
    how = groups.how
    chosen = _choose(groups.sizes, target)
    found = int(groups.sizes[chosen].sum())
    is_near = target / 2 <= found <= max(2 * target, 2) and 2 * found <= len(pairs)
    if groups.are_guessed and not is_near:
        how = groups.describe_unused()
        groups = _Groups(pairs, seed, pairs.names)
        chosen = _choose(groups.sizes, target)
    return _divide(pairs, groups, chosen, how)


def _divide(pairs: Pairs, groups: _Groups, chosen: Flags, how: str) -> Split:
    """Return the split whose validation pairs are the `chosen` groups."""
    held_out = np.zeros(len(pairs), bool)
    held_out[groups.order] = np.repeat(chosen, groups.sizes)
    if held_out.all():
        raise UserError(
            f"{count_of(len(pairs), 'image')} in {count_of(len(chosen), 'group')}: none left to train on; "
            "add images, or use --validation 0"
        )
    return Split(pairs.select(~held_out), pairs.select(held_out), how)


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


# -- groups --------------------------------------------------------------------------------


class _Groups:
    """Groups of pairs that stay on one side, in a random order that depends on the seed.

    A hash of seed and name sorts the groups, so that a new image moves no other. `labels` gives the
    groups' names, pair by pair.
    """

    def __init__(
        self, pairs: Pairs, seed: int, labels: Callable[[], Iterable[str]], how: str = ""
    ) -> None:
        self.labels = labels
        self.are_guessed = False
        bar = tqdm(
            labels(),
            "splitting",
            len(pairs),
            unit="pair",
            leave=False,
            disable=hides_bars(),
            delay=2,
        )
        keys = np.fromiter((_hash(label, seed) for label in bar), np.uint64, len(pairs))
        self.order = np.argsort(keys)  # rows of the pairs, group after group
        keys.sort()  # in place: to index them would take as much memory again
        self.starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        self.sizes = np.diff(self.starts, append=len(pairs))
        self.how = f"{len(self.sizes)} groups {how}"

    @property
    def largest(self) -> tuple[str, int]:
        """Name and size of the largest group, the one of the first pair among equal ones."""
        size = int(self.sizes.max())
        first_rows = np.minimum.reduceat(self.order, self.starts)
        row = int(first_rows[self.sizes == size].min())
        return next(islice(self.labels(), row, None)), size

    def describe_unused(self) -> str:
        """Return how pairs are split whose names look like groups, if these are not used."""
        name, size = self.largest
        return (
            f"image by image; the names look like {len(self.sizes)} groups, {size} of "
            f"{len(self.order)} images in {name}: if they belong together, use --group-pattern"
        )


def group_names(pairs: Pairs, pattern: str | None) -> dict[str, str]:
    """Return the group of each pair by its name, as `split_pairs` groups them."""
    return dict(zip(pairs.names(), _group(pairs, pattern, 0).labels(), strict=True))


def _group(pairs: Pairs, pattern: str | None, seed: int) -> _Groups:
    if pattern is not None:
        if pairs and not any(re.search(pattern, name) for name in pairs.names()):
            raise UserError(
                f"--group-pattern {pattern!r}: is in no name, e.g. {next(iter(pairs.names()))}; "
                "names in a list begin with their folders"
            )
        labels = partial(_group_by_name, re.compile(pattern), pairs)
        return _Groups(pairs, seed, labels, "by --group-pattern")
    if pairs.groups() is not None:
        return _Groups(pairs, seed, lambda: pairs.groups() or (), "by the list")
    numbered = _NUMBERED
    if all(name.endswith("_0000") for name in pairs.names()):
        numbered = _OF_NNUNET
    groups = _Groups(pairs, seed, partial(_group_by_name, numbered, pairs))
    if 3 <= len(groups.sizes) < len(pairs):  # a prefix common to all is no group
        name, size = groups.largest
        groups.how = f"{len(groups.sizes)} groups by name, e.g. {name} ({size} images)"
        groups.are_guessed = True
        return groups
    single = _Groups(pairs, seed, pairs.names)
    single.how = "image by image"
    if 2 == len(groups.sizes) < len(pairs):
        single.how = groups.describe_unused()
    return single


def _group_by_name(pattern: re.Pattern[str], pairs: Pairs) -> Iterator[str]:
    for name in pairs.names():
        match = pattern.search(name)
        yield (match.group(1) or "") if match else name


def _hash(name: str, seed: int) -> int:
    """Return the first 64 bits of a hash: whole ones would differ in no order ever seen."""
    text = f"{seed}:{name}".encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(text).digest()
    return int.from_bytes(digest[:8], "big")


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


def _choose_fold(groups: _Groups, index: int, count: int) -> Flags:
    """Choose the groups of one fold: large ones are dealt out first, to the emptiest fold."""
    sizes = groups.sizes
    if len(sizes) < count:
        found = f"{len(sizes)} groups of images"
        more = ""
        if groups.are_guessed:
            found = groups.how
            more = ", or --group-pattern '(.+)' if their images do not belong together"
        raise UserError(f"--fold {index}/{count}: there are {found}; use fewer folds{more}")
    chosen = np.zeros(len(sizes), bool)
    filled = [0] * count
    for group in np.argsort(-sizes, kind="stable"):
        emptiest = filled.index(min(filled))
        chosen[group] = emptiest == index - 1
        filled[emptiest] += sizes[group]
    return chosen


# -- split.csv -----------------------------------------------------------------------------


def write_split(split: Split, groups: Mapping[str, str], path: Path) -> None:
    """Write the split as a list that ``--list`` reads; `groups` has the groups by pair name.

    That of a pack is not written: a line for each of its pairs may be gigabytes.
    """
    if split.training.scanned is not None:
        return
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # keeps a group's leading blanks
        writer.writerow(("image", "mask", "group", "split"))
        for side, pairs in (("training", split.training), ("validation", split.validation)):
            writer.writerows(
                (p.image.absolute(), p.mask.absolute(), groups.get(p.name, ""), side) for p in pairs
            )
