"""Threshold curve and calibration: as if each threshold were applied, each bin looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unet_ddp.metrics.counts import BINS, Counts
from unet_ddp.metrics.curves import Calibration, ThresholdCurve


def test_every_threshold_scores_as_if_it_were_applied(rng: np.random.Generator) -> None:
    masks = torch.from_numpy(rng.integers(0, 2, (1, 30, 40)).astype(np.uint8))
    foreground = torch.from_numpy(rng.normal(0, 2, (1, 30, 40)).astype(np.float32)) + masks
    foreground[0, 5] = 0.0  # a probability of 0.5, exactly on the edge of a bin
    foreground[0, 6] = 9.0  # above every threshold
    logits = torch.stack([torch.zeros_like(foreground), foreground], 1)
    curve = ThresholdCurve.from_histogram(Counts.of(logits, masks).histogram.numpy())
    assert curve.thresholds.tolist() == [k / BINS for k in range(1, BINS)]
    truth = masks.numpy() == 1
    for k in (1, 37, 511, 512, 513, 900, BINS - 1):
        called = foreground.sigmoid().numpy() >= k / BINS
        hits, false_alarms, missed = (
            int(x.sum()) for x in (called & truth, called & ~truth, ~called & truth)
        )
        assert curve.dice[k - 1] == 2 * hits / (2 * hits + false_alarms + missed)
        assert curve.iou[k - 1] == hits / (hits + false_alarms + missed)
        assert curve.precision[k - 1] == hits / (hits + false_alarms)
        assert curve.recall[k - 1] == hits / (hits + missed)
        assert curve.dice_at(k / BINS) == curve.dice[k - 1]
    assert curve.dice_at(curve.best) == curve.dice.max()


def bars(background: dict[int, int], foreground: dict[int, int]) -> np.ndarray:
    histogram = np.zeros((2, BINS), np.int64)
    for row, columns in enumerate((background, foreground)):
        for column, pixels in columns.items():
            histogram[row, column] = pixels
    return histogram


@pytest.mark.parametrize(
    ("background", "foreground", "best"),
    [
        ({}, {}, 0.5),
        ({7: 9}, {}, 0.5),  # no foreground
        ({100: 500}, {200: 50}, 200 / BINS),  # flat from 101 to 200
        ({100: 5}, {900: 5}, 0.5),  # flat on both sides of it
        ({800: 5}, {900: 5}, 801 / BINS),
        ({499: 1, 500: 1, 523: 1}, {500: 1, 524: 1}, 500 / BINS),  # as at 524: the lower
    ],
)
def test_the_best_of_equal_thresholds_is_the_one_nearest_the_middle(
    background: dict[int, int], foreground: dict[int, int], best: float
) -> None:
    curve = ThresholdCurve.from_histogram(bars(background, foreground))
    assert curve.best == best


def test_scores_of_nothing_are_nan() -> None:
    curve = ThresholdCurve.from_histogram(bars({3: 5}, {}))
    assert np.isnan(curve.recall).all()
    assert np.isnan(curve.precision).sum() == BINS - 1 - 3  # nothing is called foreground
    assert np.isnan(ThresholdCurve.from_histogram(bars({}, {})).dice).all()


def test_calibration_bins_by_hand() -> None:
    """Bins of the curve are 64 of the histogram's."""
    found = Calibration.from_histogram(bars({0: 6, 63: 2, 64: 1, 1023: 1}, {0: 2, 64: 3, 1023: 9}))
    assert [b.pixels for b in found.bins] == [10, 4, *[0] * 13, 10]
    assert [(b.low, b.high) for b in found.bins[:2]] == [(0, 1 / 16), (1 / 16, 2 / 16)]
    assert found.bins[-1].high == 1.0
    first, second, last = found.bins[0], found.bins[1], found.bins[-1]
    assert first.confidence == (8 * 0.5 + 2 * 63.5) / BINS / 10
    assert (first.accuracy, second.accuracy, last.accuracy) == (0.2, 0.75, 0.9)
    assert (second.confidence, last.confidence) == (64.5 / BINS, 1023.5 / BINS)
    assert math.isnan(found.bins[2].accuracy) and math.isnan(found.bins[2].confidence)
    gaps = [abs(b.accuracy - b.confidence) for b in (first, second, last)]
    assert found.error == pytest.approx((10 * gaps[0] + 4 * gaps[1] + 10 * gaps[2]) / 24)
    assert math.isnan(Calibration.from_histogram(bars({}, {})).error)


def test_boastful_probabilities_are_worse_calibrated_than_honest_ones(
    rng: np.random.Generator,
) -> None:
    probability = torch.from_numpy(rng.random((1, 300, 300)).astype(np.float32))
    masks = torch.from_numpy((rng.random((1, 300, 300)) < probability.numpy()).astype(np.uint8))
    logits = torch.stack([torch.zeros_like(probability), probability.logit()], 1)

    def error(scaled: torch.Tensor) -> float:
        return Calibration.from_histogram(Counts.of(scaled, masks).histogram.numpy()).error

    assert error(logits) < 0.01
    assert 0.05 < error(logits * 3) < error(logits * 10)
