"""The threshold curve and the calibration of a histogram of probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.metrics.counts import BINS

_GROUPS = 16  # of BINS, each a bin of the reliability curve

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ThresholdCurve:
    """The foreground's scores, by the probability from which on a pixel is called foreground."""

    thresholds: Floats  # k / BINS for k from 1 to BINS - 1
    dice: Floats
    iou: Floats
    precision: Floats  # nan where no pixel is called foreground
    recall: Floats  # nan without foreground

    @classmethod
    def from_histogram(cls, histogram: Integers) -> ThresholdCurve:
        """Return the curve of `Counts.histogram` of two classes."""
        above = histogram[:, ::-1].cumsum(axis=1)[:, ::-1]  # pixels of bin k and all that follow
        false_alarms, hits = above[:, 1:]  # background and foreground that is called foreground
        foreground = np.full_like(hits, above[1, 0])
        return cls(
            np.arange(1, BINS) / BINS,
            dice=_ratio(2 * hits, hits + false_alarms + foreground),
            iou=_ratio(hits, false_alarms + foreground),
            precision=_ratio(hits, hits + false_alarms),
            recall=_ratio(hits, foreground),
        )

    @property
    def best(self) -> float:
        """The threshold of the best Dice; of several, the one nearest to 0.5, then the lower.

        So a flat curve, and a set without foreground, give 0.5.
        """
        dice = np.nan_to_num(self.dice)
        best = self.thresholds[dice == dice.max()]
        return float(best[np.abs(best - 0.5).argmin()])

    @property
    def best_dice(self) -> float:
        """The Dice of the best threshold."""
        return self.dice_at(self.best)

    def dice_at(self, threshold: float) -> float:
        """Return the Dice of one of `thresholds`."""
        return float(self.dice[round(threshold * BINS) - 1])


class CalibrationBin(NamedTuple):
    """Pixels whose probability lies in [low, high)."""

    low: float
    high: float
    pixels: int
    confidence: float  # their mean probability, to half of 1 / BINS
    accuracy: float  # the share of them that are foreground, or, of more than two classes, right


@dataclass(frozen=True)
class Calibration:
    """The reliability curve: of pixels with p = 0.8, are 80 percent right?

    Of two classes, p is the foreground's probability; of more, the winning class's; of classes that
    overlap, each one's, so that a pixel counts once for each.
    """

    bins: list[CalibrationBin]

    @classmethod
    def from_histogram(cls, histogram: Integers) -> Calibration:
        """Return the reliability curve of `Counts.histogram`."""
        centres = ((np.arange(BINS) + 0.5) / BINS).reshape(_GROUPS, -1)
        groups = histogram.reshape(-1, 2, *centres.shape).sum(axis=0)
        # A sum of integers times odd numbers over 2 BINS, all below 2**53: the same on any machine.
        sums = (groups.sum(axis=0) * centres).sum(axis=1)
        right = groups[1].sum(axis=1)
        pixels = groups.sum(axis=(0, 2))
        confidence, accuracy = _ratio(sums, pixels), _ratio(right, pixels)
        edges = np.arange(_GROUPS + 1) / _GROUPS
        columns = (edges[:-1], edges[1:], pixels, confidence, accuracy)
        lists = [column.tolist() for column in columns]
        return cls([*map(CalibrationBin, *lists)])

    @property
    def error(self) -> float:
        """Expected calibration error, the mean of |accuracy - confidence| over the pixels.

        Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3; nan without pixels.
        """
        filled = [b for b in self.bins if b.pixels]
        total = sum(b.pixels for b in filled)
        if not total:
            return math.nan
        return sum(b.pixels * abs(b.accuracy - b.confidence) for b in filled) / total


def _ratio(part: Integers | Floats, whole: Integers) -> Floats:
    """Divide element by element; nan where `whole` is 0."""
    out = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out
