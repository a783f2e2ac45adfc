"""Results of an evaluation: counts per image, and the scores they give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.metrics.curves import Calibration, Integers, ThresholdCurve
from unet_ddp.metrics.scores import Scores, Tally, count_classes, total


class ClassScores(NamedTuple):
    """Scores of one class; nan where there is no pixel to score.

    A score that is added here is in scores.json, per_image.csv, the printed table and the report.
    """

    name: str
    dice: float
    iou: float
    precision: float
    recall: float
    boundary_f: float

    @classmethod
    def of_all(
        cls, names: list[str], scores: Scores, boundaries: Iterable[BoundaryCounts]
    ) -> list[ClassScores]:
        """Return the scores of each class."""
        f_scores = [counts.f_score for counts in boundaries]
        dice, iou = scores.dice_per_class, scores.iou_per_class
        precision, recall = scores.precision_per_class, scores.recall_per_class
        columns = (names, dice, iou, precision, recall, f_scores)  # in the order of the fields
        return [cls(*row) for row in zip(*columns, strict=True)]


COLUMNS = ("Dice", "IoU", "precision", "recall", "boundary F")
"""Headings for the scores in `ClassScores`."""


@dataclass(frozen=True)
class ImageRecord:
    """Counts of one image."""

    name: str
    pair: int  # index of its pair among those that were scored
    confusion: Integers  # as `Counts.confusion`
    boundaries: list[BoundaryCounts]  # boundary pixels of each class
    tallies: list[Tally] = field(default_factory=list)  # what `ObjectMasks.score` counts
    source: str | None = None  # of the image, if a list names it

    @cached_property
    def tally(self) -> Tally | None:
        """Sum of the tallies; None if there are none."""
        return total(self.tallies) if self.tallies else None

    @cached_property
    def scores(self) -> Scores:
        """Scores of this image alone."""
        return Scores.from_confusion(self.confusion)

    @property
    def score(self) -> float:
        """The score that orders the images: the tally's, otherwise Dice."""
        return self.tally.score if self.tally else self.scores.dice


class SourceScores(NamedTuple):
    """Scores of the images of one source."""

    images: int
    scores: Scores
    tally: Tally | None


@dataclass(frozen=True)
class Evaluation:
    """Scores of a network over a set of pairs."""

    labels: Labels
    records: list[ImageRecord]
    """In the order of names."""
    histogram: Integers
    """As `Counts.histogram`."""
    as_trained: Integers
    """Confusion matrix of the most probable classes at the network's scale, which is what training's
    validation counts."""
    threshold: float | None
    """Lowest probability of the foreground; None for the most probable class."""
    tolerance: float | None
    """Pixels that a boundary may be off; None for 0.75 percent of each image's diagonal."""
    full_size: bool
    """Scored at the images' own size, or at the network's scale."""

    @cached_property
    def confusion(self) -> Integers:
        """`Counts.confusion` over all images."""
        total: Integers = np.sum([record.confusion for record in self.records], axis=0)
        return total

    @cached_property
    def scores(self) -> Scores:
        """Scores from the counts of all images."""
        return Scores.from_confusion(self.confusion)

    @cached_property
    def classes(self) -> list[ClassScores]:
        """Scores of each class from the counts of all images."""
        per_class = zip(*(record.boundaries for record in self.records), strict=True)
        boundaries = map(BoundaryCounts.total, per_class)
        return ClassScores.of_all(self.labels.class_names, self.scores, boundaries)

    @cached_property
    def tally(self) -> Tally | None:
        """Sum of the tallies of all images; None if there are none."""
        tallies = [record.tally for record in self.records if record.tally]
        return total(tallies) if tallies else None

    @cached_property
    def sources(self) -> dict[str, SourceScores]:
        """Scores of the images of each source, by its name; images without a source are in none."""
        found: dict[str, list[ImageRecord]] = {}
        for record in self.records:
            if record.source is not None:
                found.setdefault(record.source, []).append(record)
        scores = {}
        for name in sorted(found):
            own = replace(self, records=found[name])
            scores[name] = SourceScores(len(own.records), own.scores, own.tally)
        return scores

    @property
    def class_tallies(self) -> dict[str, Tally]:
        """Sums over all images by class, if there are several."""
        columns = list(zip(*(record.tallies for record in self.records), strict=True))
        if len(columns) < 2:
            return {}
        names = self.labels.foreground_names
        return {name: total(tallies) for name, tallies in zip(names, columns, strict=True)}

    @property
    def shares(self) -> list[float]:
        """Share of the true pixels that each class has."""
        trues = [true for _, true, _ in count_classes(self.confusion)]
        pixels = self.confusion.sum(axis=(-2, -1))  # (), or (C,) of classes that overlap
        shares: list[float] = (trues / np.maximum(1, pixels)).tolist()
        return shares

    @cached_property
    def curve(self) -> ThresholdCurve | None:
        """Scores by threshold; None for more than two classes."""
        if not self.labels.is_binary:
            return None
        return ThresholdCurve.from_histogram(self.histogram)

    @cached_property
    def calibration(self) -> Calibration:
        """Probabilities against the shares that came true."""
        return Calibration.from_histogram(self.histogram)

    @property
    def dice_as_trained(self) -> float:
        """The Dice that training's validation gives for this network and these images."""
        return Scores.from_confusion(self.as_trained).dice

    def worst(self, count: int) -> list[ImageRecord]:
        """Return `count` images, the lowest score first, those with nothing to score last."""

        def order(record: ImageRecord) -> tuple[bool, float, str]:
            return math.isnan(record.score), record.score, record.name

        return sorted(self.records, key=order)[:count]
