"""Counts of pixels of classes that overlap: each class against the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unet_ddp.extras.overlap.bits import find_truth, sum_bits
from unet_ddp.metrics.counts import BINS, Counts, count_cells

if TYPE_CHECKING:
    from typing_extensions import Self


class ClassCounts(Counts):
    """Counts of each class by itself.

    `confusion` is (C, 2, 2): of a class, rows are the rest and the class in truth, columns in the
    prediction. `histogram` is (C, 2, BINS): pixels by the class's probability, row 0 of the rest, row 1
    of the class.
    """

    @classmethod
    def zeros(cls, num_classes: int, device: torch.device) -> Self:
        """Return counts of no pixels."""
        sizes = (num_classes, 2, 2), (num_classes, 2, BINS)
        return cls(*(torch.zeros(size, dtype=torch.int64, device=device) for size in sizes))

    @classmethod
    def of(cls, logits: Tensor, masks: Tensor, predicted: Tensor | None = None) -> Self:
        """Return the counts of logits (N, C, H, W); a class is predicted from probability 0.5 on.

        `predicted` has other bit fields (N, H, W), by other thresholds.
        """
        masks, count = masks.long(), logits.shape[1]
        truth = find_truth(masks, count)
        bins = (logits.float().sigmoid() * BINS).long().clamp_(0, BINS - 1)  # nan: the first bin
        histograms = [
            count_cells(BINS * truth[:, k] + bins[:, k], masks, 2 * BINS).view(2, BINS)
            for k in range(count)
        ]
        predicted = cls.decide(logits) if predicted is None else predicted
        return cls(cls.confuse(predicted, masks, count), torch.stack(histograms))

    @staticmethod
    def decide(logits: Tensor) -> Tensor:
        """Return the bit fields (N, H, W) of the classes whose probability is at least 0.5."""
        return sum_bits(logits >= 0)

    @staticmethod
    def confuse(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
        """Return the confusion matrices (C, 2, 2) of bit fields (N, H, W)."""
        found, truth = (find_truth(each.long(), num_classes) for each in (predicted, masks))
        return torch.stack(
            [
                count_cells(2 * truth[:, k] + found[:, k], masks, 4).view(2, 2)
                for k in range(num_classes)
            ]
        )
