"""Counts of objects worked out by hand, and against a search over all pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.scores import OVERLAPS, ObjectCounts, count_objects


def test_counts_worked_out_by_hand() -> None:
    """Truth: 8 pixels found as 6, 4 merged with 2 more into 6, 4 split in halves, 3 missed."""
    truth = [[1] * 8 + [0] * 2, [5] * 4 + [7] * 2 + [0] * 4, [9] * 4 + [0] + [3] * 3 + [0] * 2]
    found = [[4] * 6 + [0] * 4, [2] * 6 + [0] * 3 + [8], [1] * 2 + [3] * 2 + [0] * 6]
    counts = count_objects(np.array(found, np.int32), np.array(truth, np.int32))
    assert (counts.truth, counts.predicted, counts.split, counts.merged) == (5, 5, 1, 1)
    # 6/8 and 4/6; the halves have an IoU of just 0.5, which is not above it
    assert counts.matched.tolist() == [2, 2, 2, 2, 1, 0, 0, 0, 0, 0]
    assert counts.overlap == pytest.approx(6 / 8 + 4 / 6)
    assert counts.precisions[0] == 2 / 8 and counts.precisions[4] == 1 / 9
    assert counts.quality == pytest.approx((4 * 2 / 8 + 1 / 9) / 10)
    assert counts.panoptic_quality == pytest.approx((6 / 8 + 4 / 6) / 5)


def test_an_object_of_which_half_lies_in_another_is_no_part_of_it() -> None:
    """More than half of two objects must lie in one that they split, or that merges them."""
    whole = np.array([[1, 1, 1, 1, 0, 0]], np.int32)
    for parts, count in (([1, 1, 2, 2, 0, 0], 1), ([1, 1, 1, 2, 1, 2], 0), ([1, 2, 3, 3, 1, 2], 0)):
        found = np.array([parts], np.int32)
        counts, turned = count_objects(found, whole), count_objects(whole, found)
        assert (counts.split, counts.merged, turned.split, turned.merged) == (count, 0, 0, count)


def test_the_same_objects_are_all_matched_whatever_their_numbers() -> None:
    truth = np.array([[1, 1, 0, 2], [0, 0, 0, 2]], np.int32)
    counts = count_objects(np.array([0, 900, 17], np.int32)[truth], truth)
    assert counts.matched.tolist() == [2] * 10
    assert counts.quality == counts.panoptic_quality == 1
    assert (counts.split, counts.merged) == (0, 0)


def test_nothing_scores_nan_and_something_against_nothing_scores_0() -> None:
    nothing, one = np.zeros((2, 2), np.int32), np.array([[0, 0], [0, 3]], np.int32)
    counts = count_objects(nothing, nothing)
    assert all(map(math.isnan, [*counts.precisions, counts.panoptic_quality]))
    for pair in ((nothing, one), (one, nothing)):
        assert count_objects(*pair).precisions == [0] * 10


def test_counts_of_random_masks_and_their_sum(rng: np.random.Generator) -> None:
    pairs = [
        tuple(np.kron(rng.integers(0, 5, (4, 6)), np.ones((3, 2), int)) for _ in range(2))
        for _ in range(4)
    ]
    pairs = [(np.where(rng.random(t.shape) < 0.8, t, p), t) for p, t in pairs]
    total = ObjectCounts.total(count_objects(p, t) for p, t in pairs)
    overlaps = []
    for predicted, truth in pairs:
        for a in set(np.unique(truth)) - {0}:
            for b in set(np.unique(predicted)) - {0}:
                either = ((truth == a) | (predicted == b)).sum()
                overlaps.append(((truth == a) & (predicted == b)).sum() / either)
    assert total.matched.tolist() == [sum(o > at for o in overlaps) for at in OVERLAPS]
    assert total.matched[0] > 0
    assert total.truth == sum(len(set(np.unique(truth)) - {0}) for _, truth in pairs)


def test_an_object_matches_one_of_its_class_only() -> None:
    """One car found as a car, one as a tree; the truth's numbers are those of another program."""
    truth = np.array([[1_000_001] * 4 + [0, 1_999_999, 1_999_999, 0]], np.int32)
    found = np.array([[1_000_002] * 3 + [0, 0, 2_000_001, 2_000_001, 0]], np.int32)
    labels = ObjectLabels.of(("car", "tree"))
    cars, trees = labels.score(found, truth)
    assert (cars.truth, cars.predicted, cars.matched[0], cars.overlap) == (2, 1, 1, 0.75)
    assert (trees.truth, trees.predicted, trees.matched[0]) == (0, 1, 0)
    total = ObjectCounts.total([cars, trees])
    assert total.precisions[0] == 1 / 3 and total.panoptic_quality == 2 * 0.75 / 4
    (alone,) = ObjectLabels.of(("thing",)).score(found, truth)
    assert alone.matched[0] == 2


def test_an_object_is_split_and_merged_within_its_class() -> None:
    truth = np.array([[1_000_001] * 4 + [1_000_002, 1_000_003]], np.int32)
    found = np.array([[1_000_001] * 2 + [2_000_002] * 2 + [1_000_003] * 2], np.int32)
    cars, trees = ObjectLabels.of(("car", "tree")).score(found, truth)
    assert (cars.split, cars.merged, trees.split, trees.merged) == (0, 1, 0, 0)
