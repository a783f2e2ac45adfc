"""The metadata of all pairs in columns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from unet_ddp.checks import table as module
from unet_ddp.checks.table import Table
from unet_ddp.data.pairs import Pairs


@pytest.mark.parametrize("block", [1, 3, 100])
def test_values_are_counted_by_kind_and_value(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Whatever the blocks; values of all 32 bits, masks without any and many pixels."""
    monkeypatch.setattr(module, "BLOCK", block)
    known = [-(2**31), -1, 0, 7, 255, 0xFFFFFF, 2**31 - 1]
    pairs = []
    for k in range(20):
        values = sorted(rng.choice(known, rng.integers(0, 5), replace=False).tolist())
        counts = tuple(rng.integers(1, 10**8, len(values)).tolist())
        size = {"width": 40 + k % 3}
        pairs.append(scanned(f"n{k:02}", size, size, values=tuple(values), counts=counts))
    table = Table.from_scan(pairs)
    chosen = rng.random(20) < 0.6
    totals: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(chosen).tolist():
        for value, count in zip(pairs[row].mask.values, pairs[row].mask.counts, strict=True):
            totals[row % 3, value] += count
            first.setdefault((row % 3, value), row)
    found = table.count_values(chosen)
    assert {(kind, value): pixels for _, kind, value, pixels in found} == totals
    assert {(kind, value): row for row, kind, value, _ in found} == first
    assert found == sorted(found) and table.count_values(~chosen & chosen) == []


def test_kinds_are_in_the_order_of_their_first_pairs() -> None:
    wide, deep = {"width": 50}, {"dtype": "uint16"}
    pairs = [scanned("a"), scanned("b", wide), scanned("c", deep), scanned("d", wide)]
    pairs.append(scanned("e", suffix=".JPG"))
    table = Table.from_scan(pairs)
    firsts = [pairs[row].pair for row in (0, 1, 2, 4)]
    assert table.groups == list(zip(table.kinds, [1, 2, 1, 1], firsts, strict=True))
    assert table.columns["kind"].tolist() == [0, 1, 2, 1, 3]
    assert [kind.suffixes for kind in table.kinds[2:]] == [(".png", ".png"), (".JPG", ".png")]
    assert table.sizes == {(30, 40): 3, (30, 50): 2}
    assert table.find(Pairs([pairs[3].pair, pairs[0].pair])).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]
