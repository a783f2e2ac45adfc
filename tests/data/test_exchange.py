"""Each class is on both sides of a split, or on as many folds as have a group of it."""

from __future__ import annotations

import numpy as np
import pytest

from unet_ddp.data.exchange import exchange


@pytest.mark.parametrize("seed", range(40))
def test_sides_have_all_classes_that_they_can_and_keep_their_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, classes, sides = (
        int(rng.integers(6, 60)),
        int(rng.integers(1, 4)),
        int(rng.integers(2, 5)),
    )
    has = np.zeros((count, classes + 1), bool)
    has[:, 0] = True  # background
    for k in range(1, classes + 1):
        has[rng.choice(count, int(rng.integers(1, 4)), replace=False), k] = True
    sizes = np.ones(count, np.int64)
    drawn = np.sort(np.append(np.arange(sides), rng.integers(0, sides, count - sides)))
    found = exchange(drawn, sizes, has)
    assert (found == exchange(drawn, sizes, has)).all()
    for k in range(1, classes + 1):
        groups = int(has[:, k].sum())
        reached = len(set(found[has[:, k]].tolist()))
        if reached < min(groups, sides):  # only where classes share few groups
            assert has[has[:, k]].sum() > groups * 2, (k, groups, reached)
    before, after = (np.bincount(each, minlength=sides) for each in (drawn, found))
    assert np.abs(before - after).max() <= classes * sides
    nothing_lacks = np.ones((count, 1), bool)
    assert (exchange(drawn, sizes, nothing_lacks) == drawn).all()
