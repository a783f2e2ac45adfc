"""Scores of objects: how many are found, at which overlap, split or merged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.extras.objects.separation import Numbers
from unet_ddp.metrics.scores import ratio, show

OVERLAPS = tuple(percent / 100 for percent in range(50, 100, 5))
"""IoUs above which a predicted object is a true one."""


class ObjectCounts(NamedTuple):
    """Counts of objects; they add up over images."""

    truth: int
    predicted: int
    matched: NDArray[np.int64]
    """(10,): predicted objects whose IoU with a true one is above each of `OVERLAPS`."""
    overlap: float
    """Sum of the IoUs above 0.5."""
    split: int
    """True objects in each of which two or more predicted ones have most of their pixels."""
    merged: int
    """Predicted objects in each of which two or more true ones have most of their pixels."""

    @classmethod
    def total(cls, counts: Iterable[ObjectCounts]) -> ObjectCounts:
        """Return the counts of all images together."""
        truth, predicted, matched, overlap, split, merged = zip(*counts, strict=True)
        return cls(
            sum(truth),
            sum(predicted),
            np.sum(matched, axis=0),
            math.fsum(overlap),
            sum(split),
            sum(merged),
        )

    @property
    def precisions(self) -> list[float]:
        """Average precision at each of `OVERLAPS`: matched / (matched + missed + false).

        As in the Data Science Bowl 2018 and StarDist; nan without an object on either side.
        """
        either = self.truth + self.predicted
        return [ratio(found, either - found) for found in self.matched.tolist()]

    @property
    def panoptic_quality(self) -> float:
        """Mean IoU of the matched, times their F1 score (Kirillov et al., CVPR 2019)."""
        objects = self.truth + self.predicted
        return 2 * self.overlap / objects if objects else math.nan

    @property
    def name(self) -> str:
        """Name of what is counted."""
        return "objects"

    @property
    def counts(self) -> tuple[int, int, int]:
        """Objects that match at an IoU of 0.5, true ones and predicted ones."""
        return int(self.matched[0]), self.truth, self.predicted

    @property
    def score(self) -> float:
        """Average precision at IoU 0.5."""
        return self.precisions[0]

    @property
    def quality(self) -> float:
        """Mean average precision: over all `OVERLAPS`."""
        return sum(self.precisions) / len(OVERLAPS)

    @property
    def headline(self) -> list[tuple[str, float]]:
        """Average precision at IoU 0.5 and panoptic quality."""
        return [("AP at IoU 0.5", self.score), ("panoptic quality", self.panoptic_quality)]

    @property
    def brief(self) -> str:
        """Average precision at IoU 0.5, in words."""
        return f"AP {show(self.score)} at IoU 0.5"

    def describe(self) -> str:
        """Return a line about all images."""
        return (
            f"objects: {self.brief}, {show(self.quality)} over 0.5 to 0.95; "
            f"panoptic quality {show(self.panoptic_quality)}; {self.truth} true, {self.predicted} "
            f"predicted, {self.split} split, {self.merged} merged"
        )

    def caption(self) -> str:
        """Return words about one image."""
        return (
            f"{self.brief}; {self.truth} true objects, {self.predicted} predicted, "
            f"{self.split} split, {self.merged} merged"
        )

    @property
    def scores(self) -> dict[str, float]:
        """All scores and counts by the names that result files give them."""
        names = [f"ap_{overlap:.2f}" for overlap in OVERLAPS]
        return dict(zip(names, self.precisions, strict=True)) | {
            "mean_ap": self.quality,
            "panoptic_quality": self.panoptic_quality,
            "true_objects": self.truth,
            "predicted_objects": self.predicted,
            "matched_objects": int(self.matched[0]),
            "split_objects": self.split,
            "merged_objects": self.merged,
        }


def count_objects(predicted: Numbers, truth: Numbers) -> ObjectCounts:
    """Count the objects in masks of numbers (H, W), 0 for none; numbers may have gaps.

    Two objects match if their IoU is above 0.5: no third then can have such an IoU with either.
    """
    from scipy.sparse import coo_array

    places = truth.ravel(), predicted.ravel()
    table = coo_array((np.ones(truth.size, np.int64), places)).tocsr().tocoo()  # adds up
    rows, columns = table.coords
    true_areas, predicted_areas = table.sum(1), table.sum(0)
    both = (rows > 0) & (columns > 0)
    shared, rows, columns = table.data[both], rows[both], columns[both]
    overlaps = shared / (true_areas[rows] + predicted_areas[columns] - shared)
    in_truth = np.bincount(rows[2 * shared > predicted_areas[columns]])
    in_predicted = np.bincount(columns[2 * shared > true_areas[rows]])
    return ObjectCounts(
        int(np.count_nonzero(true_areas[1:])),
        int(np.count_nonzero(predicted_areas[1:])),
        (overlaps > np.array(OVERLAPS)[:, None]).sum(1),
        math.fsum(overlaps[overlaps > OVERLAPS[0]]),
        int((in_truth > 1).sum()),
        int((in_predicted > 1).sum()),
    )
