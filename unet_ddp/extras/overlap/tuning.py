"""Choose the threshold of each class by the counts of validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unet_ddp.data.labels import Labels
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.curves import ThresholdCurve
from unet_ddp.training.state import TrainState


class ThresholdTuner:
    """Chooses the thresholds with the best Dice of each class."""

    def __init__(self, labels: OverlapLabels) -> None:
        self._labels = labels

    def tune(self, state: TrainState, counts: Counts, watch: Callable[..., object]) -> Labels:
        """Return the labels with the thresholds that suit the counts of all ranks; nothing else is read."""
        histograms = counts.histogram.cpu().numpy()
        best = [ThresholdCurve.from_histogram(each).best for each in histograms]
        return replace(self._labels, thresholds=tuple(best))
