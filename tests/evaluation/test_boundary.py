"""The boundary F-score, against the distance between all pairs of pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.evaluation.boundary import BoundaryCounts, count_boundaries, default_tolerance

TWO, THREE = Labels((0, 1)).planes, Labels((0, 1, 2)).planes


def square(top: int, left: int, side: int = 10) -> np.ndarray:
    ids = np.zeros((40, 40), np.uint8)
    ids[top : top + side, left : left + side] = 1
    return ids


def test_boundaries_forgive_what_the_tolerance_allows() -> None:
    truth = square(10, 10)
    for shift in range(4):
        found = count_boundaries(square(10, 10 + shift), truth, TWO, tolerance=2)[1]
        assert found.truth == found.predicted == 36  # of a square of 10 by 10
        assert (found.f_score == 1) == (shift <= 2)
    assert count_boundaries(truth, truth, TWO, tolerance=0)[1].f_score == 1
    assert count_boundaries(square(28, 28), truth, TWO, tolerance=2)[1].f_score == 0
    assert 0 < count_boundaries(square(10, 14), truth, TWO, tolerance=2)[1].f_score < 1


@pytest.mark.parametrize("tolerance", [1.0, 1.5])
def test_boundaries_agree_with_the_distance_between_all_pairs(
    rng: np.random.Generator, tolerance: float
) -> None:
    truth, predicted = (rng.integers(0, 3, (12, 15)).astype(np.uint8) for _ in range(2))
    predicted[:, 8:] = 0  # far enough for something to be missed
    truth[4:6] = IGNORE_ID

    def boundary(ids: np.ndarray, k: int) -> np.ndarray:
        points = []
        for y, x in np.argwhere((ids == k) & (truth != IGNORE_ID)):
            for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                v, u = y + dy, x + dx
                inside = 0 <= v < 12 and 0 <= u < 15
                if inside and truth[v, u] != IGNORE_ID and ids[v, u] != k:
                    points.append((y, x))
                    break
        return np.array(points, float).reshape(-1, 2)

    for k, found in enumerate(count_boundaries(predicted, truth, THREE, tolerance=tolerance)):
        mine, theirs = boundary(predicted, k), boundary(truth, k)
        apart = np.hypot(*(mine[:, None] - theirs[None]).transpose(2, 0, 1))
        assert found == BoundaryCounts(
            len(theirs), (apart.min(0) <= tolerance).sum(),
            len(mine), (apart.min(1) <= tolerance).sum(),
        )  # fmt: skip


def test_boundaries_where_there_are_none() -> None:
    nothing, everything = np.zeros((9, 9), np.uint8), np.ones((9, 9), np.uint8)
    assert math.isnan(count_boundaries(nothing, everything, TWO, tolerance=1)[1].f_score)
    ignored = np.where(square(10, 10) == 1, 1, IGNORE_ID).astype(np.uint8)
    assert count_boundaries(square(10, 10), ignored, TWO, tolerance=1)[1].truth == 0
    empty = np.zeros((40, 40), np.uint8)
    for predicted, truth, counts in (
        (empty, square(3, 3), BoundaryCounts(36, 0, 0, 0)),
        (square(3, 3), empty, BoundaryCounts(0, 0, 36, 0)),
    ):
        found = count_boundaries(predicted, truth, TWO, tolerance=1)[1]
        assert found == counts and found.f_score == 0


def test_precision_and_recall_are_joined_over_images() -> None:
    found = BoundaryCounts.total([BoundaryCounts(10, 4, 5, 3), BoundaryCounts(10, 6, 3, 3)])
    assert found == BoundaryCounts(20, 10, 8, 6)
    precision, recall = 6 / 8, 10 / 20
    assert found.f_score == pytest.approx(2 / (1 / precision + 1 / recall))
    assert BoundaryCounts(5, 0, 5, 2).f_score == BoundaryCounts(5, 2, 5, 0).f_score == 0.0


def test_the_tolerance_is_a_share_of_the_diagonal() -> None:
    assert default_tolerance(300, 400) == 3.75
