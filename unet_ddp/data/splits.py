"""Split of the pairs into training and validation.

A function of the names and the seed, not of the order in which the file system lists files.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.cells import escape_cell
from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError
from unet_ddp.files import replacing

# view 07 of car 0ee135a3cccc, frame f00930 of drive 0006R0
_NUMBERED = re.compile(r"^(.*[^_\-. ])[_\-. ]+[A-Za-z]?\d+$")


@dataclass(frozen=True)
class Split:
    """Pairs for training and for validation: disjoint, each sorted by name."""

    training: list[Pair]
    validation: list[Pair]
    how: str  # one line for the user: the rule of the split

    def without(self, names: Container[str]) -> Split:
        """Return the split without the pairs of these names."""
        training = [pair for pair in self.training if pair.name not in names]
        validation = [pair for pair in self.validation if pair.name not in names]
        return Split(training, validation, self.how)


def split_pairs(
    pairs: list[Pair],
    *,
    validation: float,
    seed: int,
    pattern: str | None = None,
    folds: tuple[int, int] | None = None,
) -> Split:
    """Split off about `validation` percent of `pairs`, keeping groups whole where found.

    Pairs of a list that names their split are on that side.

    Args:
        pairs: in any order.
        validation: percent of the pairs.
        seed: of the draw.
        pattern: regular expression, searched for in each name, whose first bracket is the group;
            a name that does not match is a group by itself. None: groups are detected.
        folds: (number of folds, index from 1); that fold is the validation split instead.
    """
    if any(pair.side for pair in pairs):
        return _split_by_list(pairs)
    groups, how = _group(pairs, pattern)
    sizes = {name: len(members) for name, members in groups.items()}
    if folds is not None:
        chosen, how = _choose_fold(sizes, folds, seed), f"fold {folds[1]} of {folds[0]}, {how}"
    else:
        target = max(1, round(len(pairs) * validation / 100)) if validation else 0
        chosen = _choose(sizes, target, seed)
        found = sum(sizes[name] for name in chosen)
        is_near = target / 2 <= found <= max(2 * target, 2) and 2 * found <= len(pairs)
        if pattern is None and len(groups) < len(pairs) and not is_near:
            largest = max(sizes, key=lambda name: sizes[name])
            how = (
                f"image by image; the names look like {len(groups)} groups, {sizes[largest]} of "
                f"{len(pairs)} images in {largest}: if they belong together, use --group-pattern"
            )
            groups = {pair.name: [pair] for pair in pairs}
            chosen = _choose(dict.fromkeys(groups, 1), target, seed)
    return _divide(groups, chosen, how)


def _divide(groups: Mapping[str, list[Pair]], chosen: set[str], how: str) -> Split:
    """Return the split whose validation pairs are those of the `chosen` groups."""
    training: list[Pair] = []
    validation: list[Pair] = []
    for name, members in groups.items():
        (validation if name in chosen else training).extend(members)
    if not training:
        raise UserError(
            f"{len(validation)} image(s) in {len(groups)} group(s): none left to train on; "
            "add images, or use --validation 0"
        )
    for side in (training, validation):
        side.sort(key=lambda pair: pair.name)
    return Split(training, validation, how)


def _split_by_list(pairs: list[Pair]) -> Split:
    training = [pair for pair in pairs if pair.side == "training"]
    validation = [pair for pair in pairs if pair.side == "validation"]
    if not training:
        raise UserError("--list: no row's split is 'training'; nothing to train on")
    rest = len(pairs) - len(training) - len(validation)
    return Split(training, validation, "by the list" + (f", {rest} left out" if rest else ""))


def split_by_folders(training: list[Pair], validation: list[Pair]) -> Split:
    """Return the split of a training and a validation folder, which share no image."""
    both = {pair.image.resolve() for pair in training} & {p.image.resolve() for p in validation}
    if both:
        raise UserError(f"--val-images: {min(both)} is among --images too; use other images")
    return Split(training, validation, "validation has its own folder")


# -- groups --------------------------------------------------------------------------------


def group_names(pairs: list[Pair], pattern: str | None) -> dict[str, str]:
    """Return the group of each pair by its name, as `split_pairs` groups them."""
    groups, _ = _group(pairs, pattern)
    return {pair.name: name for name, members in groups.items() for pair in members}


def _group(pairs: list[Pair], pattern: str | None) -> tuple[dict[str, list[Pair]], str]:
    """Return groups of pairs that stay on one side, and a line about them."""
    if pattern is not None:
        groups = _group_by_name(re.compile(pattern), pairs)
        return groups, f"{len(groups)} groups by --group-pattern"
    if any(pair.group for pair in pairs):
        groups = defaultdict(list)
        for pair in pairs:
            groups[pair.group or pair.name].append(pair)
        return groups, f"{len(groups)} groups by the list"
    groups = _group_by_name(_NUMBERED, pairs)
    if len(groups) == len(pairs) or len(groups) < 3:  # a prefix common to all is no group
        return {pair.name: [pair] for pair in pairs}, "image by image"
    largest = max(groups, key=lambda name: len(groups[name]))
    return groups, f"{len(groups)} groups by name, e.g. {largest} ({len(groups[largest])} images)"


def _group_by_name(pattern: re.Pattern[str], pairs: list[Pair]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        match = pattern.search(pair.name)
        groups[(match.group(1) or "") if match else pair.name].append(pair)
    return groups


def _random_order(name: str, seed: int) -> str:
    """Return a hash that sorts names at random, so that a new image moves no other."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).hexdigest()


def _choose(sizes: Mapping[str, int], target: int, seed: int) -> set[str]:
    """Choose groups of at most `target` images in all; the smallest group if all are larger."""
    if target == 0:
        return set()
    chosen: set[str] = set()
    total = 0
    for name in sorted(sizes, key=lambda name: _random_order(name, seed)):
        if total + sizes[name] <= target:
            chosen.add(name)
            total += sizes[name]
    return chosen or {min(sizes, key=lambda name: (sizes[name], _random_order(name, seed)))}


def _choose_fold(sizes: Mapping[str, int], folds: tuple[int, int], seed: int) -> set[str]:
    """Choose the groups of one fold: large ones are dealt out first, to the emptiest fold."""
    count, index = folds
    if len(sizes) < count:
        raise UserError(
            f"--folds {count}: there are {len(sizes)} groups of images; use fewer folds"
        )
    members: list[set[str]] = [set() for _ in range(count)]
    filled = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], _random_order(name, seed))):
        emptiest = filled.index(min(filled))
        members[emptiest].add(name)
        filled[emptiest] += sizes[name]
    return members[index - 1]


# -- split.csv -----------------------------------------------------------------------------


def write_split(split: Split, groups: Mapping[str, str], path: Path) -> None:
    """Write the split as a list that ``--list`` reads; `groups` has the groups by pair name."""
    with (
        replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # keeps a group's leading blanks
        writer.writerow(("image", "mask", "group", "split"))
        for side, pairs in (("training", split.training), ("validation", split.validation)):
            writer.writerows(
                (p.image.absolute(), p.mask.absolute(), escape_cell(groups.get(p.name, "")), side)
                for p in pairs
            )
