"""Warnings of likely mistakes in a list of pairs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from unet_ddp.data.pairs import Pair
from unet_ddp.errors import count_of


def warn_of_list(path: Path, header: Sequence[str], pairs: Collection[Pair]) -> Iterator[str]:
    """Yield lines about columns that are there twice, and about groups that are on both sides, or differ by blanks."""
    for name, count in Counter(filter(None, header)).items():
        if count > 1:
            yield f"{path}: {count} columns are named {name}; the last is used: remove the others"
    sides, spelled = defaultdict[str, set[str | None]](set), defaultdict[str, set[str]](set)
    for pair in pairs:
        if pair.group is not None:
            sides[pair.group].add(pair.side)
            spelled[pair.group.strip()].add(pair.group)
    shared = [group for group, found in sides.items() if {"training", "validation"} <= found]
    if shared:
        yield (
            f"{path}: {count_of(len(shared), 'group')} on both sides, e.g. {shared[0]}: validation scores images like "
            "those of training; give all rows of a group one split"
        )
    alike = next((found for found in spelled.values() if len(found) > 1), None)
    if alike:
        yield f"{path}: {', '.join(map(repr, sorted(alike)))} are different groups: remove the blanks"
