"""Choose the threshold of each class by the counts of validation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from unet_ddp.data.labels import Labels
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.curves import ThresholdCurve
from unet_ddp.training.state import TrainState


class ThresholdTuner:
    """Chooses the thresholds with the best Dice of each class."""

    def __init__(self, labels: OverlapLabels) -> None:
        self._labels = labels

    def tune(
        self, state: TrainState, counts: Counts, watch: Callable[..., object]
    ) -> tuple[Labels, float, str]:
        """Return the labels with the thresholds that suit the counts of all ranks, and their mean Dice.

        The mean is over the classes that truth has. Nothing else is read.
        """
        histograms = counts.histogram.cpu().numpy()
        curves = [ThresholdCurve.from_histogram(each) for each in histograms]
        true = [c.best_dice for c, each in zip(curves, histograms, strict=True) if each[1].any()]
        labels = replace(self._labels, thresholds=tuple(curve.best for curve in curves))
        return labels, fmean(true) if true else math.nan, "Dice"
