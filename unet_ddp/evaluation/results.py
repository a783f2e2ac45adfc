"""What an evaluation found: integer counts per image, and the scores they give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.metrics.boundary import BoundaryCounts
from unet_ddp.metrics.curves import Calibration, ThresholdCurve
from unet_ddp.metrics.scores import Scores


@dataclass(frozen=True)
class ImageRecord:
    """What was counted in one image."""

    name: str
    number: int
    """Of its pair among those that were scored."""
    confusion: NDArray[np.int64]
    """(C, C): rows are the truth, columns the prediction."""
    boundaries: list[BoundaryCounts]
    """Of each class."""

    @cached_property
    def scores(self) -> Scores:
        return Scores.from_confusion(self.confusion)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a network over a set of pairs."""

    labels: Labels
    records: list[ImageRecord]
    """In the order of names."""
    histogram: NDArray[np.int64]
    """(2, BINS), as `Counts.histogram`."""
    as_trained: NDArray[np.int64]
    """(C, C) confusion matrix of the most probable classes at the network's scale: what training's
    validation counts."""
    threshold: float | None
    """The probability from which on a pixel was called foreground; None for the most probable
    class."""
    tolerance: float | None
    """Pixels that a boundary may be off; None for 0.75 percent of each image's diagonal."""
    full_size: bool
    """Whether it was scored at the images' own size, or at the network's scale."""

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """(C, C) over all images."""
        total: NDArray[np.int64] = sum(
            (record.confusion for record in self.records), np.zeros_like(self.as_trained)
        )
        return total

    @cached_property
    def scores(self) -> Scores:
        return Scores.from_confusion(self.confusion)

    @cached_property
    def boundary_f(self) -> list[float]:
        """Boundary F-score of each class, from the counts summed over all images."""
        classes = zip(*(record.boundaries for record in self.records), strict=True)
        return [sum(counts, BoundaryCounts()).f_score for counts in classes]

    @cached_property
    def curve(self) -> ThresholdCurve | None:
        """None for more than two classes."""
        return (
            ThresholdCurve.from_histogram(self.histogram) if self.labels.num_classes == 2 else None
        )

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.from_histogram(self.histogram)

    @property
    def dice_as_trained(self) -> float:
        """The figure that training's validation gives for this network and these images."""
        return Scores.from_confusion(self.as_trained).dice

    def worst(self, most: int | None = None) -> list[ImageRecord]:
        """The images of the lowest Dice first; those with nothing to score last."""

        def key(record: ImageRecord) -> tuple[bool, float, str]:
            dice = record.scores.dice
            return math.isnan(dice), dice, record.name

        return sorted(self.records, key=key)[:most]
