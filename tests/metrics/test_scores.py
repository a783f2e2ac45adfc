"""Dice, IoU, precision and recall, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unet_ddp.metrics.counts import BINS, Counts
from unet_ddp.metrics.scores import Scores, Validation


def test_scores_of_a_confusion_matrix_by_hand() -> None:
    scores = Scores.from_confusion(torch.tensor([[50, 10, 0], [5, 20, 0], [0, 15, 0]]))
    assert scores.dice_per_class == [100 / (60 + 55), 40 / (25 + 45), 0 / (15 + 0)]
    assert scores.iou_per_class == [50 / 65, 20 / 50, 0 / 15]
    assert scores.precision_per_class[:2] == [50 / 55, 20 / 45]
    assert math.isnan(scores.precision_per_class[2])  # never predicted
    assert scores.recall_per_class == [50 / 60, 20 / 25, 0 / 15]
    assert scores.dice == pytest.approx((100 / 115 + 40 / 70) / 3)
    assert scores.iou == pytest.approx((50 / 65 + 20 / 50) / 3)


def test_two_classes_are_summed_up_by_the_foreground() -> None:
    scores = Scores.from_confusion(np.array([[70, 10], [4, 16]]))
    assert (scores.dice, scores.iou) == (32 / 46, 16 / 30)


def test_a_class_that_never_occurs_is_left_out_of_the_mean() -> None:
    scores = Scores.from_confusion(np.array([[3, 1, 0], [1, 3, 0], [0, 0, 0]]))
    assert math.isnan(scores.dice_per_class[2]) and math.isnan(scores.recall_per_class[2])
    assert (scores.dice, scores.iou) == (0.75, 0.6)
    nothing = Scores.from_confusion(np.zeros((3, 3), int))
    assert math.isnan(nothing.dice) and math.isnan(nothing.iou)


def test_counts_beyond_float32_are_exact() -> None:
    big = 2**40
    scores = Scores.from_confusion(np.array([[0, 1], [0, big]]))
    assert scores.precision_per_class[1] == big / (big + 1) != 1.0


def counts(confusion: list[list[int]], bars: dict[tuple[int, int], int]) -> Counts:
    histogram = torch.zeros(2, BINS, dtype=torch.int64)
    for place, pixels in bars.items():
        histogram[place] = pixels
    return Counts(torch.tensor(confusion), histogram)


def test_a_shifted_network_is_put_right_by_its_threshold() -> None:
    """Foreground at 0.30, background at 0.20: nothing is called foreground at 0.5."""
    found = Validation.from_counts(counts([[30, 0], [10, 0]], {(0, 204): 30, (1, 307): 10}))
    assert found.scores.dice == 0.0
    assert found.threshold == 307 / BINS and found.dice_at_threshold == 1.0
    centres = 204.5 / BINS, 307.5 / BINS
    assert found.calibration_error == pytest.approx((30 * centres[0] + 10 * (1 - centres[1])) / 40)


def test_more_than_two_classes_have_no_threshold() -> None:
    found = Validation.from_counts(counts([[1, 0, 0], [0, 1, 0], [0, 0, 1]], {(1, 1023): 3}))
    assert (found.threshold, found.dice_at_threshold, found.scores.dice) == (None, None, 1.0)
    assert found.calibration_error == pytest.approx(0.5 / BINS)
