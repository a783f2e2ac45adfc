"""Which pairs are trained on and which are kept to score on.

A function of the names and the seed, not of the order in which the file system lists files.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError

# view 07 of car 0ee135a3cccc, frame f00930 of drive 0006R0
_NUMBERED = re.compile(r"^(.*[^_\-. ])[_\-. ]+[A-Za-z]?\d+$")


@dataclass(frozen=True)
class Split:
    """The pairs to train on and those to score on, disjoint, each in the order of names."""

    training: list[Pair]
    validation: list[Pair]
    how: str
    """One line for the user: by what they were split."""


def split_pairs(
    pairs: list[Pair],
    *,
    validation: float,
    seed: int,
    pattern: str | None = None,
    folds: tuple[int, int] | None = None,
) -> Split:
    """Keep about `validation` percent of `pairs` for validation, whole groups where found.

    Pairs of a list that names their side are on that side.

    Args:
        pattern: a regular expression whose first bracket names the group, searched for in
            each name; a name that does not match stands for itself. None: groups are
            detected.
        folds: (number of folds, which one of them from 1) validates on that fold instead.

    Raises:
        UserError: nothing would be left to train on or to score on.
    """
    if any(pair.side for pair in pairs):
        return _split_as_told(pairs)
    target = max(1, round(len(pairs) * validation / 100)) if validation else 0
    groups, how = _group(pairs, pattern)
    sizes = {name: len(members) for name, members in groups.items()}
    if folds is not None:
        chosen, how = _fold(sizes, folds, seed), f"fold {folds[1]} of {folds[0]}, {how}"
    else:
        chosen = _choose(sizes, target, seed)
        found = sum(sizes[name] for name in chosen)
        if pattern is None and len(groups) < len(pairs) and not _near(found, target, pairs):
            largest = max(sizes, key=lambda name: sizes[name])
            how = (
                f"image by image; the names look like {len(groups)} groups, {sizes[largest]} of "
                f"{len(pairs)} images in {largest}: if they belong together, give --group-pattern"
            )
            groups = {pair.name: [pair] for pair in pairs}
            chosen = _choose(dict.fromkeys(groups, 1), target, seed)
    return _divided(groups, chosen, how)


def _near(found: int, target: int, pairs: list[Pair]) -> bool:
    """Whether whole groups can give about as many images as were asked for."""
    return target == 0 or (target / 2 <= found <= max(2 * target, 2) and 2 * found <= len(pairs))


def _divided(groups: Mapping[str, list[Pair]], chosen: set[str], how: str) -> Split:
    kept = sorted((p for name in chosen for p in groups[name]), key=lambda pair: pair.name)
    rest = sorted(
        (p for name in groups.keys() - chosen for p in groups[name]), key=lambda pair: pair.name
    )
    if not rest:
        raise UserError(
            f"{len(kept)} image(s) in {len(groups)} group(s): none left to train on beside "
            "validation; add images, or give --validation 0"
        )
    return Split(rest, kept, how)


def _split_as_told(pairs: list[Pair]) -> Split:
    """By the list's column; pairs that it puts on neither side are left out."""
    training = [pair for pair in pairs if pair.side == "training"]
    validation = [pair for pair in pairs if pair.side == "validation"]
    if not training:
        raise UserError("--list: no row's split is 'training'; nothing to train on")
    rest = len(pairs) - len(training) - len(validation)
    return Split(training, validation, "as the list says" + (f", {rest} left out" if rest else ""))


def split_by_folders(training: list[Pair], validation: list[Pair]) -> Split:
    """Validation on a folder of its own.

    Raises:
        UserError: an image is in both.
    """
    both = {pair.image.resolve() for pair in training} & {p.image.resolve() for p in validation}
    if both:
        raise UserError(f"--val-images: {min(both)} is among --images too; give other images")
    return Split(training, validation, "validation has a folder of its own")


# -- groups --------------------------------------------------------------------------------


def _group(pairs: list[Pair], pattern: str | None) -> tuple[dict[str, list[Pair]], str]:
    """Groups of pairs that stay on one side, and a line about them."""
    if pattern is not None:
        groups = _groups_by(re.compile(pattern), pairs)
        return groups, f"{len(groups)} groups by --group-pattern"
    if any(pair.group for pair in pairs):
        groups = defaultdict(list)
        for pair in pairs:
            groups[pair.group or pair.name].append(pair)
        return groups, f"{len(groups)} groups by the list"
    groups = _groups_by(_NUMBERED, pairs)
    if len(groups) == len(pairs) or len(groups) < 3:  # a prefix that all share is no group
        return {pair.name: [pair] for pair in pairs}, "image by image"
    largest = max(groups, key=lambda name: len(groups[name]))
    return groups, f"{len(groups)} groups by name, as {largest} ({len(groups[largest])} images)"


def _groups_by(pattern: re.Pattern[str], pairs: list[Pair]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        match = pattern.search(pair.name)
        groups[(match.group(1) or "") if match else pair.name].append(pair)
    return groups


def group_of(pairs: list[Pair], pattern: str | None) -> dict[str, str]:
    """The group of each pair by its name, as `split_pairs` groups them."""
    groups, _ = _group(pairs, pattern)
    return {pair.name: name for name, members in groups.items() for pair in members}


def _draw(name: str, seed: int) -> str:
    """A hash that orders names at random, so that a new image moves no other."""
    return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).hexdigest()


def _choose(sizes: Mapping[str, int], target: int, seed: int) -> set[str]:
    """Groups of `target` images in all, or just under; the smallest one where all are larger."""
    if target == 0:
        return set()
    chosen: set[str] = set()
    total = 0
    for name in sorted(sizes, key=lambda name: _draw(name, seed)):
        if total + sizes[name] <= target:
            chosen.add(name)
            total += sizes[name]
    return chosen or {min(sizes, key=lambda name: (sizes[name], _draw(name, seed)))}


def _fold(sizes: Mapping[str, int], folds: tuple[int, int], seed: int) -> set[str]:
    """The groups of one fold: large ones first, each to the fold that has least so far.

    Raises:
        UserError: fewer groups than folds.
    """
    count, wanted = folds
    if len(sizes) < count:
        raise UserError(
            f"--folds {count}: there are {len(sizes)} groups of images; give fewer folds"
        )
    members: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for name in sorted(sizes, key=lambda name: (-sizes[name], _draw(name, seed))):
        place = filled.index(min(filled))
        members[place].append(name)
        filled[place] += sizes[name]
    return set(members[wanted - 1])


# -- split.csv -----------------------------------------------------------------------------


def write_split(split: Split, groups: Mapping[str, str], path: Path) -> None:
    """Write the split as a list that ``--list`` reads again; whole or not at all."""
    half = path.with_name(path.name + ".tmp")
    with half.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)  # blanks that a name begins with count
        writer.writerow(("image", "mask", "group", "split"))
        for side, pairs in (("training", split.training), ("validation", split.validation)):
            writer.writerows(
                (p.image.absolute(), p.mask.absolute(), groups.get(p.name, ""), side) for p in pairs
            )
    half.replace(path)


def largest_groups(names: Iterable[str], most: int = 5) -> list[tuple[str, int]]:
    """The groups with most members."""
    return Counter(names).most_common(most)
