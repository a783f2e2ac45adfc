"""The boundary F-score: how well the outlines of classes agree, with a tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from unet_ddp.data.masks import IGNORE_ID, Flags, Ids


class BoundaryCounts(NamedTuple):
    """Boundary pixels of one class; they add up over images."""

    truth: int = 0
    truth_matched: int = 0  # those with a predicted boundary pixel within the tolerance
    predicted: int = 0
    predicted_matched: int = 0  # those with a true boundary pixel within the tolerance

    @classmethod
    def total(cls, counts: Iterable[BoundaryCounts]) -> BoundaryCounts:
        """Return the counts of all images together."""
        return cls(*map(sum, zip(*counts, strict=True)))

    @property
    def f_score(self) -> float:
        """2PR / (P + R) of boundary precision and recall.

        nan where neither side has a boundary, 0 where one has none.
        """
        if not self.truth and not self.predicted:
            return math.nan
        if not self.truth_matched or not self.predicted_matched:
            return 0.0
        precision = self.predicted_matched / self.predicted
        recall = self.truth_matched / self.truth
        return 2 * precision * recall / (precision + recall)


def default_tolerance(height: int, width: int) -> float:
    """Return 0.75 percent of the image's diagonal, in pixels (Csurka et al., 2013)."""
    return 0.0075 * math.hypot(height, width)


def count_boundaries(
    predicted: Ids, truth: Ids, planes: Callable[[Ids], Iterable[Flags]], *, tolerance: float
) -> list[BoundaryCounts]:
    """Count the boundary pixels of each class in class ids (H, W), and those that are matched.

    `planes` is `Labels.planes`, which yields where ids have each class. They make the boundary F-score of Csurka et al. (What is a good evaluation measure for semantic
    segmentation?, BMVC 2013) and of the DAVIS benchmark (Perazzi et al., CVPR 2016). A boundary pixel
    is matched if the other side has one of the same class within the tolerance. A boundary pixel of a
    class is one of its pixels with one of another class among its 4 neighbours. The
    image's edge and pixels where `truth` is IGNORE_ID make no boundary. The tolerance is a
    Euclidean distance in pixels.
    """
    valid = truth != IGNORE_ID
    return [
        _match(_boundary(found, valid), _boundary(true, valid), tolerance)
        for found, true in zip(planes(predicted), planes(truth), strict=True)
    ]


def _boundary(inside: Flags, valid: Flags) -> Flags:
    """Return the valid pixels of `inside` with a valid neighbour outside."""
    import cv2

    inside, outside = inside & valid, ~inside & valid
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    boundary: Flags = inside & (cv2.dilate(outside.view(np.uint8), cross) > 0)
    return boundary


def _match(predicted: Flags, truth: Flags, tolerance: float) -> BoundaryCounts:
    true_pixels, predicted_pixels = int(truth.sum()), int(predicted.sum())
    if not (true_pixels and predicted_pixels):  # the distance to nothing is undefined
        return BoundaryCounts(true_pixels, 0, predicted_pixels, 0)
    return BoundaryCounts(
        true_pixels,
        int((truth & _near(predicted, tolerance)).sum()),
        predicted_pixels,
        int((predicted & _near(truth, tolerance)).sum()),
    )


def _near(pixels: Flags, tolerance: float) -> Flags:
    """Return the pixels at most `tolerance` away from one of `pixels`."""
    import cv2

    distance = cv2.distanceTransform((~pixels).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    near: Flags = distance <= tolerance
    return near
