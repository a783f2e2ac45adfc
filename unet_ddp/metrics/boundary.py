"""How well the outlines of classes agree, with a tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import IGNORE_ID

Ids = NDArray[np.uint8]


@dataclass(frozen=True)
class BoundaryCounts:
    """Boundary pixels of one class; they add up over images."""

    truth: int = 0
    truth_matched: int = 0
    """Those with a predicted boundary pixel within the tolerance."""
    predicted: int = 0
    predicted_matched: int = 0
    """Those with a true boundary pixel within the tolerance."""

    def __add__(self, other: BoundaryCounts) -> BoundaryCounts:
        return BoundaryCounts(
            self.truth + other.truth,
            self.truth_matched + other.truth_matched,
            self.predicted + other.predicted,
            self.predicted_matched + other.predicted_matched,
        )

    @property
    def f_score(self) -> float:
        """2PR / (P + R) of boundary precision and recall.

        nan where neither has a boundary, 0 where one has none.
        """
        if not self.truth and not self.predicted:
            return math.nan
        if not self.truth_matched or not self.predicted_matched:
            return 0.0
        precision = self.predicted_matched / self.predicted
        recall = self.truth_matched / self.truth
        return 2 * precision * recall / (precision + recall)


def default_tolerance(height: int, width: int) -> float:
    """0.75 percent of the image's diagonal, in pixels (Csurka et al., 2013)."""
    return 0.0075 * math.hypot(height, width)


def count_boundaries(
    predicted: Ids, truth: Ids, num_classes: int, *, tolerance: float
) -> list[BoundaryCounts]:
    """Boundary pixels of each class and how many of them are matched.

    The boundary F-score of Csurka et al., What is a good evaluation measure for semantic
    segmentation?, BMVC 2013, and of the DAVIS benchmark (Perazzi et al., CVPR 2016): a boundary
    pixel is right if the other side has one of the same class no farther than the tolerance. A
    boundary pixel of a class is one of its pixels beside (4 neighbours) a pixel of another class.
    The image's edge and ignored pixels make no boundary.

    Args:
        predicted: class ids (H, W).
        truth: class ids (H, W); where it is IGNORE_ID, `predicted` is ignored too.
        tolerance: Euclidean distance in pixels.
    """
    valid = truth != IGNORE_ID
    return [
        _match(
            _boundary(predicted == k, valid),
            _boundary(truth == k, valid),
            tolerance,
        )
        for k in range(num_classes)
    ]


def _boundary(inside: NDArray[np.bool_], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels of `inside` beside one that is outside."""
    inside = inside & valid
    outside = ~inside & valid
    beside = np.zeros_like(inside)
    beside[1:] |= outside[:-1]
    beside[:-1] |= outside[1:]
    beside[:, 1:] |= outside[:, :-1]
    beside[:, :-1] |= outside[:, 1:]
    return inside & beside


def _match(
    predicted: NDArray[np.bool_], truth: NDArray[np.bool_], tolerance: float
) -> BoundaryCounts:
    counts = int(truth.sum()), int(predicted.sum())
    if not all(counts):
        return BoundaryCounts(counts[0], 0, counts[1], 0)
    near_predicted, near_truth = _near(predicted, tolerance), _near(truth, tolerance)
    return BoundaryCounts(
        counts[0],
        int((truth & near_predicted).sum()),
        counts[1],
        int((predicted & near_truth).sum()),
    )


def _near(pixels: NDArray[np.bool_], tolerance: float) -> NDArray[np.bool_]:
    """Where the nearest of `pixels` is no farther than `tolerance`."""
    import cv2

    distance = cv2.distanceTransform((~pixels).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    near: NDArray[np.bool_] = distance <= tolerance
    return near
