"""The validation images that each epoch scores."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from tests.tiny import make_data
from unet_ddp.checks.metadata import ScannedPair
from unet_ddp.checks.table import Table
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split
from unet_ddp.extras.steps.validated import choose_rows, choose_validated, order_by_group


def test_each_group_has_its_share_of_every_beginning() -> None:
    groups = ["a"] * 60 + ["b"] * 30 + ["c"] * 9 + ["d"]
    for seed in range(5):
        order = order_by_group(groups, seed)
        assert sorted(order.tolist()) == list(range(100))
        for count in (10, 20, 50, 90):
            found = Counter(groups[row] for row in order[:count].tolist())
            for name, size in Counter(groups).items():
                assert abs(found[name] - count * size / 100) <= 1.5
    assert {int(order_by_group(groups, seed)[0]) for seed in range(20)} != {0}  # it is random
    assert order_by_group([], 0).tolist() == []


def test_each_class_is_in_one_image_if_there_is_room() -> None:
    """Class 1 is in image 7 alone, class 2 in 7 and 8, class 3 in 9, class 4 in none."""
    classes = np.zeros((10, 5), bool)
    classes[:, 0], classes[7, 1], classes[7:9, 2], classes[9, 3] = True, True, True, True
    order = np.arange(10)
    assert sorted(choose_rows(order, classes, 4).tolist()) == [0, 1, 7, 9]
    assert choose_rows(order, classes, 1).tolist() in ([7], [9])
    assert sorted(choose_rows(order, classes, 10).tolist()) == list(range(10))


@pytest.mark.parametrize("count", [3, 6])
def test_the_same_images_for_a_seed_with_all_classes(count: int) -> None:
    """Whatever the order of the table; in the order of their names."""
    pairs = []
    for k in range(40):
        values = (0, 7) if k == 31 else (0, 255)
        pairs.append(scanned(f"g{k // 10}_{k:02}", values=values, counts=(1, 1)))
    labels, groups = Labels((0, 7, 255)), {one.pair.name: one.pair.name[:2] for one in pairs}
    side = Pairs(one.pair for one in pairs[4:])
    data = make_data(split=Split(Pairs(), side, ""), labels=labels, groups=groups)

    def choose(count: int, seed: int = 3, rows: list[ScannedPair] = pairs) -> list[str]:
        found = choose_validated(count, Table.from_scan(rows), data, seed)
        assert found.split.validation == side and found.split == data.split
        return [*found.split.validated.names()]

    chosen = choose(count)
    assert chosen == choose(count, rows=pairs[::-1]) == sorted(chosen) and len(chosen) == count
    assert "g3_31" in chosen and set(chosen) < set(side.names())
    assert any(choose(count, seed) != chosen for seed in range(5))
    assert choose(36) == choose(99) == [*side.names()]
    assert choose_validated(count, Table.from_scan(pairs), data, 3).notes == [
        f"validation: {count} of 36 images after each epoch"
    ]
