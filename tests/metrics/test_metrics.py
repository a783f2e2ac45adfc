"""Counts of probabilities and boundaries, and what they tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.metrics.boundary import count_boundaries, default_tolerance
from unet_ddp.metrics.counts import BINS, Counts, confusion
from unet_ddp.metrics.curves import Calibration, ThresholdCurve
from unet_ddp.metrics.scores import Validation


def random_batch(rng: np.random.Generator, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (2, C, 20, 30) that know something, and masks with ignored pixels."""
    masks = torch.from_numpy(rng.integers(0, classes, (2, 20, 30)).astype(np.uint8))
    logits = torch.from_numpy(rng.normal(0, 2, (2, classes, 20, 30)).astype(np.float32))
    logits.scatter_add_(1, masks.long()[:, None], torch.full((2, 1, 20, 30), 1.5))
    masks[0, :3] = IGNORE_ID
    return logits, masks


def test_every_threshold_scores_as_if_it_were_applied(rng: np.random.Generator) -> None:
    logits, masks = random_batch(rng, 2)
    logits[0, :, 5] = torch.tensor([0.0, 0.0]).view(2, 1)  # exactly on the edge of a bin
    curve = ThresholdCurve.from_histogram(Counts.of(logits, masks).histogram.numpy())
    probability = (logits[:, 1] - logits[:, 0]).sigmoid()
    for k in (1, 37, 511, 512, 513, 900, BINS - 1):
        table = confusion((probability >= k / BINS).long(), masks, 2).tolist()
        (_, false_alarms), (missed, hits) = table
        assert curve.thresholds[k - 1] == k / BINS
        assert curve.dice[k - 1] == 2 * hits / (2 * hits + false_alarms + missed)
        assert curve.iou[k - 1] == hits / (hits + false_alarms + missed)
        assert curve.precision[k - 1] == hits / (hits + false_alarms)
        assert curve.recall[k - 1] == hits / (hits + missed)
    assert curve.dice_at(curve.best) == curve.dice.max()


def test_the_best_of_equal_thresholds_is_the_one_nearest_the_middle() -> None:
    histogram = np.zeros((2, BINS), np.int64)
    assert ThresholdCurve.from_histogram(histogram).best == 0.5  # nothing at all
    histogram[0, 100], histogram[1, 200] = 500, 50
    assert ThresholdCurve.from_histogram(histogram).best == 200 / BINS  # flat from 101 to 200
    histogram[1, 900] = 5
    histogram[0, 100:300] = 0
    histogram[1, 200] = 0
    assert ThresholdCurve.from_histogram(histogram).best == 0.5  # flat on both sides of it
    histogram[:] = 0
    histogram[0] = 7
    assert ThresholdCurve.from_histogram(histogram).best == 0.5  # no foreground


def test_a_shifted_network_is_put_right_by_its_threshold(rng: np.random.Generator) -> None:
    logits, masks = random_batch(rng, 2)
    logits[:, 1] -= 2
    validation = Validation.from_counts(Counts.of(logits, masks))
    assert validation.threshold is not None and validation.threshold < 0.4
    assert validation.dice_at_threshold > validation.scores.dice + 0.02
    assert Validation.from_counts(Counts.of(*random_batch(rng, 3))).threshold is None


@pytest.mark.parametrize("classes", [2, 5])
def test_counts_leave_out_ignored_pixels_and_add_up(rng: np.random.Generator, classes: int) -> None:
    logits, masks = random_batch(rng, classes)
    whole = Counts.of(logits, masks)
    assert whole.confusion.sum() == whole.histogram.sum() == (masks != IGNORE_ID).sum()
    assert torch.equal(whole.confusion, confusion(logits.argmax(1), masks, classes))
    parts = Counts.zeros(classes, masks.device)
    for n in (1, 0):
        parts.add(Counts.of(logits[n : n + 1], masks[n : n + 1]))
    assert torch.equal(parts.confusion, whole.confusion)
    assert torch.equal(parts.histogram, whole.histogram)
    right = int(whole.confusion.diagonal().sum())
    told = whole.histogram[1].sum()
    assert told == (whole.confusion[1].sum() if classes == 2 else right)


def test_logits_that_are_not_finite_are_counted_too() -> None:
    logits = torch.full((1, 2, 4, 4), math.nan)
    assert Counts.of(logits, torch.ones(1, 4, 4, dtype=torch.uint8)).histogram.sum() == 16


def test_calibration_of_honest_and_of_boastful_probabilities(rng: np.random.Generator) -> None:
    probability = torch.from_numpy(rng.random((1, 300, 300)).astype(np.float32))
    masks = torch.from_numpy((rng.random((1, 300, 300)) < probability.numpy()).astype(np.uint8))
    logits = torch.stack([torch.zeros_like(probability), probability.logit()], 1)

    def error(scaled: torch.Tensor) -> float:
        return Calibration.from_histogram(Counts.of(scaled, masks).histogram.numpy()).error

    assert error(logits) < 0.01
    assert 0.05 < error(logits * 3) < error(logits * 10)
    honest = Calibration.from_histogram(Counts.of(logits, masks).histogram.numpy())
    assert sum(found.pixels for found in honest.bins) == masks.numel()
    for found in honest.bins:
        assert found.low <= found.confidence <= found.high
        assert abs(found.accuracy - found.confidence) < 0.05
    assert math.isnan(Calibration.from_histogram(np.zeros((2, BINS), np.int64)).error)


def square(top: int, left: int, side: int = 10) -> np.ndarray:
    ids = np.zeros((40, 40), np.uint8)
    ids[top : top + side, left : left + side] = 1
    return ids


def test_boundaries_forgive_what_the_tolerance_allows() -> None:
    truth = square(10, 10)
    for shift in range(4):
        found = count_boundaries(square(10, 10 + shift), truth, 2, tolerance=2)[1]
        assert found.truth == found.predicted == 36  # of a square of 10 by 10
        assert (found.f_score == 1) == (shift <= 2)
    assert count_boundaries(square(10, 10), truth, 2, tolerance=0)[1].f_score == 1
    assert count_boundaries(square(28, 28), truth, 2, tolerance=2)[1].f_score == 0
    assert 0 < count_boundaries(square(10, 14), truth, 2, tolerance=2)[1].f_score < 1


def test_boundaries_agree_with_the_distance_between_all_pairs(rng: np.random.Generator) -> None:
    truth, predicted = (rng.integers(0, 3, (12, 15)).astype(np.uint8) for _ in range(2))
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

    for k, found in enumerate(count_boundaries(predicted, truth, 3, tolerance=1.0)):
        mine, theirs = boundary(predicted, k), boundary(truth, k)
        apart = np.hypot(*(mine[:, None] - theirs[None]).transpose(2, 0, 1))
        assert (found.predicted, found.truth) == (len(mine), len(theirs))
        assert found.predicted_matched == (apart.min(1) <= 1).sum()
        assert found.truth_matched == (apart.min(0) <= 1).sum()


def test_boundaries_where_there_are_none() -> None:
    nothing, everything = np.zeros((9, 9), np.uint8), np.ones((9, 9), np.uint8)
    assert math.isnan(count_boundaries(nothing, everything, 2, tolerance=1)[1].f_score)
    ignored = np.where(square(10, 10) == 1, 1, IGNORE_ID).astype(np.uint8)
    assert count_boundaries(square(10, 10), ignored, 2, tolerance=1)[1].truth == 0
    assert (
        count_boundaries(np.zeros((40, 40), np.uint8), square(3, 3), 2, tolerance=1)[1].f_score == 0
    )
    assert default_tolerance(300, 400) == 3.75
