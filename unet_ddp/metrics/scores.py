"""Dice, IoU, precision and recall from a confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.curves import Calibration, ThresholdCurve

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Scores:
    """Scores of each class; nan where there are no pixels to score.

    With hits h, pixels t of the class in truth and p in the prediction: Dice 2h / (t + p),
    IoU h / (t + p - h), precision h / p, recall h / t. Dice and IoU are nan for a class that
    never occurs, precision for one that is never predicted, recall for one that truth lacks.
    """

    dice_per_class: list[float]
    iou_per_class: list[float]
    precision_per_class: list[float]
    recall_per_class: list[float]
    is_binary: bool
    """The classes are background and foreground."""

    @classmethod
    def from_confusion(cls, confusion: Any) -> Scores:
        """Return the scores of (C, C) integers, tensor or array, exact to float64's last digit.

        Of classes that overlap, (C, 2, 2).
        """
        return cls.from_counts(count_classes(confusion), is_binary=tuple(confusion.shape) == (2, 2))

    @classmethod
    def from_counts(cls, classes: Sequence[Sequence[int]], *, is_binary: bool) -> Self:
        """Return the scores of each class's hits, pixels in truth and pixels in the prediction."""
        return cls(
            [ratio(2 * h, t + p) for h, t, p in classes],
            [ratio(h, t + p - h) for h, t, p in classes],
            [ratio(h, p) for h, t, p in classes],
            [ratio(h, t) for h, t, p in classes],
            is_binary,
        )

    @property
    def dice(self) -> float:
        """The foreground's Dice; of more than two classes, the mean over those that occur."""
        return self._summarise(self.dice_per_class)

    @property
    def iou(self) -> float:
        """The foreground's IoU; of more than two classes, the mean over those that occur."""
        return self._summarise(self.iou_per_class)

    @property
    def dice_of_true(self) -> float:
        """Mean Dice as `dice`, of the classes that truth has: nan, not 0, if it has none of them."""
        pairs = zip(self.dice_per_class, self.recall_per_class, strict=True)
        return self._summarise([math.nan if math.isnan(r) else dice for dice, r in pairs])

    def _summarise(self, per_class: list[float]) -> float:
        if self.is_binary:
            return per_class[1]
        occurring = [value for value in per_class if not math.isnan(value)]
        return sum(occurring) / len(occurring) if occurring else math.nan


def count_classes(confusion: Any) -> list[tuple[int, int, int]]:
    """Return for each class the hits, and the pixels in truth and prediction, of a confusion matrix."""
    if confusion.ndim == 3:  # of each class and the rest
        return [count_classes(each)[1] for each in confusion]
    hits, true, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return list(zip(hits.tolist(), true.tolist(), predicted.tolist(), strict=True))


def show(score: float) -> str:
    """Return a score with four decimals, or a dash for nan."""
    return "-" if math.isnan(score) else f"{score:.4f}"


def ratio(part: int, whole: int) -> float:
    """Return `part` / `whole`; nan if `whole` is 0."""
    return part / whole if whole else math.nan


class Tally(Protocol):
    """Counts of one image that labels make besides the counts of pixels; they add up over images."""

    @property
    def name(self) -> str:
        """Name of what is counted, for scores.json."""

    @classmethod
    def total(cls, counts: Iterable[Any]) -> Self:
        """Return the counts of all images together."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of the matched, the true and the predicted ones, as the pixels of `count_classes`."""

    @property
    def scores(self) -> dict[str, float]:
        """All scores and counts by the names that result files give them."""

    @property
    def score(self) -> float:
        """The score that orders images."""

    @property
    def quality(self) -> float:
        """The score by which ways to decode predictions are compared."""

    @property
    def headline(self) -> list[tuple[str, float]]:
        """The most important scores by name, the one that orders images first."""

    @property
    def brief(self) -> str:
        """The score that orders images, in words."""

    def describe(self) -> str:
        """Return a line about all images."""

    def caption(self) -> str:
        """Return words about one image."""


def total(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of one or more tallies."""
    return tallies[0].total(tallies)


UNSCORED = -1.0
"""Score of a run whose validation had nothing to score so far: below all others."""


@dataclass(frozen=True)
class Validation:
    """The result of scoring the validation images once."""

    scores: Scores
    """Scores of the most probable class in each pixel."""
    threshold: float | None
    """The foreground probability with the best Dice; None with more than two classes."""
    dice_at_threshold: float | None
    """The foreground's Dice with that threshold."""
    calibration_error: float
    score: float
    """What chooses the best epoch: the score that predictions will have, 0 to 1; nan if truth has nothing to score."""
    score_name: str = "Dice"

    @classmethod
    def from_counts(cls, counts: Counts) -> Validation:
        """Return scores, best threshold and calibration of `counts` over the whole set."""
        histogram = counts.histogram.cpu().numpy()
        threshold = dice = None
        scores = Scores.from_confusion(counts.confusion)
        if scores.is_binary:
            curve = ThresholdCurve.from_histogram(histogram)
            threshold, dice = curve.best, curve.best_dice
        error = Calibration.from_histogram(histogram).error
        score = scores.dice_of_true
        if dice is not None and not math.isnan(score):
            score = dice
        return cls(scores, threshold, dice, error, score)
