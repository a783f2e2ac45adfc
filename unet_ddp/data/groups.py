"""Groups of pairs that stay on one side of a split, as views of one car."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np
from tqdm import tqdm

from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import UserError, count_of, hides_bars

# view 07 of car 0ee135a3cccc, frame f00930 of drive 0006R0, slice001 of folder vol1
_NUMBERED = re.compile(r"^(.*[^_\-. /])[_\-. /]+[A-Za-z]*\d+$")
_OF_NNUNET = re.compile(
    r"^(.*[^_\-. /])[_\-. /]+[A-Za-z]*\d+_0000$"
)  # the first channel, in all names

_OF_ROBOFLOW = re.compile(
    r"^(.+)\.rf\.[0-9a-fA-F]{32}$"
)  # a version of an image, turned or changed


class Groups:
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
        self.keys = keys[self.starts]  # of the groups
        self.sizes = np.diff(self.starts, append=len(pairs))
        self.how = f"{count_of(len(self.sizes), 'group')} {how}"

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
    """Return the group of each pair by its name, as `split_pairs` of unet_ddp/data/splits.py groups them."""
    return dict(zip(pairs.names(), find_groups(pairs, pattern, 0).labels(), strict=True))


def find_groups(pairs: Pairs, pattern: str | None, seed: int) -> Groups:
    """Return the groups by a pattern, a list or the names; see `split_pairs`."""
    if pairs.group_rule:
        return Groups(pairs, seed, lambda: pairs.groups() or (), pairs.group_rule)
    if pattern is not None:
        if pairs and not any(re.search(pattern, name) for name in pairs.names()):
            raise UserError(
                f"--group-pattern {pattern!r}: is in no name, e.g. {next(iter(pairs.names()))}; "
                "names in a list begin with their folders"
            )
        labels = partial(_group_by_name, re.compile(pattern), pairs)
        return Groups(pairs, seed, labels, "by --group-pattern")
    if pairs.groups() is not None:
        return Groups(pairs, seed, lambda: pairs.groups() or (), "by the list")
    if pairs and all(map(_OF_ROBOFLOW.search, pairs.names())):
        labels = partial(_group_by_name, _OF_ROBOFLOW, pairs)
        return Groups(pairs, seed, labels, "by Roboflow's names")
    numbered = _NUMBERED
    if all(name.endswith("_0000") for name in pairs.names()):
        numbered = _OF_NNUNET
    groups = Groups(pairs, seed, partial(_group_by_name, numbered, pairs))
    if 3 <= len(groups.sizes) < len(pairs):  # a prefix common to all is no group
        name, size = groups.largest
        groups.how = f"{len(groups.sizes)} groups by name, e.g. {name} ({size} images)"
        groups.are_guessed = True
        return groups
    single = Groups(pairs, seed, pairs.names)
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
    digest = hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")
