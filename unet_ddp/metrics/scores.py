"""Dice, IoU, precision and recall from a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.curves import Calibration, ThresholdCurve


@dataclass(frozen=True)
class Scores:
    """Scores of each class over the pixels that were counted; nan where there is none to score.

    With hits h, pixels t of the class in truth and p in the prediction: Dice 2h / (t + p),
    IoU h / (t + p - h), precision h / p, recall h / t. Dice and IoU are nan for a class that
    never occurs, precision for one that is never predicted, recall for one that truth lacks.
    """

    dice_per_class: list[float]
    iou_per_class: list[float]
    precision_per_class: list[float]
    recall_per_class: list[float]

    @classmethod
    def from_confusion(cls, counts: Any) -> Scores:
        """Scores of an (C, C) confusion matrix, exact to the last digit of float64.

        Args:
            counts: integers; rows are the truth, columns the prediction.
        """
        table: Sequence[Sequence[int]] = counts.tolist()
        hits = [row[k] for k, row in enumerate(table)]
        truth = [sum(row) for row in table]
        predicted = [sum(column) for column in zip(*table, strict=True)]
        classes = list(zip(hits, truth, predicted, strict=True))
        return cls(
            [ratio(2 * h, t + p) for h, t, p in classes],
            [ratio(h, t + p - h) for h, t, p in classes],
            [ratio(h, p) for h, t, p in classes],
            [ratio(h, t) for h, t, p in classes],
        )

    @property
    def dice(self) -> float:
        """Of two classes, the foreground's Dice; of more, the mean over those that occur."""
        return summary(self.dice_per_class)

    @property
    def iou(self) -> float:
        """Of two classes, the foreground's IoU; of more, the mean over those that occur."""
        return summary(self.iou_per_class)


def ratio(part: int, whole: int) -> float:
    """`part` of `whole`; nan of nothing."""
    return part / whole if whole else math.nan


def summary(per_class: list[float]) -> float:
    """One number for all classes: of two, the foreground's; of more, the mean without nan."""
    if len(per_class) == 2:
        return per_class[1]
    occurring = [value for value in per_class if not math.isnan(value)]
    return sum(occurring) / len(occurring) if occurring else math.nan


@dataclass(frozen=True)
class Validation:
    """What an epoch's scoring tells."""

    scores: Scores
    """Of the most probable class in each pixel."""
    threshold: float | None
    """Of two classes, the probability from which on a pixel is best called foreground."""
    dice_at_threshold: float | None
    """The foreground's Dice then."""
    calibration_error: float

    @classmethod
    def from_counts(cls, counts: Counts) -> Validation:
        """Scores, best threshold and calibration of `counts` over the whole set."""
        histogram = counts.histogram.cpu().numpy()
        threshold = dice = None
        if len(counts.confusion) == 2:
            curve = ThresholdCurve.from_histogram(histogram)
            threshold = curve.best
            dice = curve.dice_at(threshold)
        error = Calibration.from_histogram(histogram).error
        confusion: Tensor = counts.confusion
        return cls(Scores.from_confusion(confusion), threshold, dice, error)
