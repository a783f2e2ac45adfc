"""Exchange groups between the sides of a split until each class is on as many sides as possible."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_TRIED = 64  # groups that have a class, and partners of each, in the order of the draw

Integers = NDArray[np.int64]


class _Exchange(NamedTuple):
    gain: int  # classes that are on one more side
    closeness: int  # 0 if the sizes of the sides stay the same, else below
    group: int
    partner: int  # -1: the group moves alone
    target: int


def exchange(sides: Integers, sizes: Integers, has: NDArray[np.bool_]) -> Integers:
    """Return the side of each group, (G,), such that as many sides as possible have each class.

    `has` is (G, C). Each exchange brings most classes to one more side; of equal ones it changes the sizes of the
    sides least.
    """
    sides = sides.copy()
    counts = np.zeros((max(2, sides.max(initial=0) + 1), has.shape[1]), np.int64)
    np.add.at(counts, sides, has)
    wanted = np.minimum(counts.sum(axis=0), len(counts))
    while True:
        lacking = np.flatnonzero((counts > 0).sum(axis=0) < wanted)
        found = [_find_best(k, sides, sizes, has, counts) for k in lacking.tolist()]
        best = max((each for each in found if each), key=lambda each: each[:2], default=None)
        if best is None:
            return sides
        source = int(sides[best.group])
        for one, to in ((best.group, best.target), (best.partner, source)):
            if one >= 0:
                counts[sides[one]] -= has[one]
                counts[to] += has[one]
                sides[one] = to


def _find_best(
    k: int, sides: Integers, sizes: Integers, has: NDArray[np.bool_], counts: Integers
) -> _Exchange | None:
    """Return the best exchange that brings class k to a side that lacks it; None if none gains."""
    best = None
    for target in np.flatnonzero(counts[:, k] == 0).tolist():
        partners = np.append(-1, np.flatnonzero(sides == target)[:_TRIED])
        lost = np.where(partners[:, None] < 0, False, has[partners])  # (P, C)
        missing = np.where(partners < 0, 0, sizes[partners])
        for group in np.flatnonzero(has[:, k] & (counts[sides, k] > 1))[:_TRIED].tolist():
            source = sides[group]
            if (sides == source).sum() == 1:  # it would be empty, if only until the next one
                continue
            there = counts[target] - lost + has[group] > 0
            here = counts[source] - has[group] + lost > 0
            before = (counts[target] > 0).sum() + (counts[source] > 0).sum()
            gains = there.sum(axis=1) + here.sum(axis=1) - before
            close = -np.abs(missing - sizes[group])
            order = np.lexsort((-np.arange(len(partners)), close, gains))
            p = int(order[-1])
            each = _Exchange(int(gains[p]), int(close[p]), group, int(partners[p]), target)
            if each.gain > 0 and (best is None or each[:2] > best[:2]):
                best = each
    return best
