"""Counts of pixels, made on the device without a host sync: every score comes from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks

if TYPE_CHECKING:
    from typing_extensions import Self

BINS = 1024
"""Bins of a probability: a power of two, so that ``p >= k / BINS`` is exactly ``bin >= k``."""
_ADDRESSES = 1 << 18  # that a GPU counts at


@dataclass(frozen=True)
class Counts:
    """The counts that scores, threshold curve and calibration are computed from."""

    confusion: Tensor
    """(C, C) int64: rows are the truth, columns the prediction."""
    histogram: Tensor
    """(2, BINS) int64. Two classes: pixels by the foreground's probability, row 0 of background,
    row 1 of foreground. More: pixels by the winning class's, row 0 of wrong ones, row 1 of right.
    Of classes that overlap, (C, 2, BINS), and `confusion` is (C, 2, 2): of each class and the rest."""

    @classmethod
    def zeros(cls, num_classes: int, device: torch.device) -> Self:
        """Return counts of no pixels."""
        sizes = (num_classes, num_classes), (2, BINS)
        return cls(*(torch.zeros(size, dtype=torch.int64, device=device) for size in sizes))

    @classmethod
    def of(cls, logits: Tensor, masks: Tensor, predicted: Tensor | None = None) -> Self:
        """Return the counts of logits (N, C, H, W), whose largest is the prediction; see `confusion`.

        `predicted` has other class ids (N, H, W), of two classes and by a threshold.
        """
        num_classes = logits.shape[1]
        if predicted is None:
            predicted = cls.decide(logits)
        return cls(
            cls.confuse(predicted, masks, num_classes),
            histogram(confidence(logits), predicted, masks, num_classes),
        )

    @staticmethod
    def decide(logits: Tensor) -> Tensor:
        """Return the class ids (N, H, W) that logits (N, C, H, W) predict without a threshold."""
        return logits.max(1).indices  # argmax takes ten times as long on a CPU

    @staticmethod
    def confuse(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
        """Return `confusion` of class ids (N, H, W); pixels where the true `masks` are IGNORE_ID are left out."""
        cells = masks.long() * num_classes + predicted
        return count_cells(cells, masks, num_classes**2).view(num_classes, num_classes)

    def add(self, other: Counts) -> None:
        """Add `other` in place."""
        self.confusion.add_(other.confusion)
        self.histogram.add_(other.histogram)

    def over_ranks(self) -> Self:
        """Return the sum over all ranks."""
        return type(self)(sum_over_ranks(self.confusion), sum_over_ranks(self.histogram))


def confidence(logits: Tensor) -> Tensor:
    """Return the foreground's probability; of more than two classes, the winning one's."""
    logits = logits.float()  # (N, C, H, W) to (N, H, W)
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0]).sigmoid()
    return logits.softmax(1).amax(1)


def histogram(probabilities: Tensor, predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """Return `Counts.histogram`, (2, BINS) int64, of the result of `confidence` (N, H, W)."""
    is_true = masks == (1 if num_classes == 2 else predicted)
    bins = (probabilities * BINS).long().clamp_(0, BINS - 1)  # nan goes to the first bin
    return count_cells(is_true * BINS + bins, masks, 2 * BINS).view(2, BINS)


def count_cells(cells: Tensor, masks: Tensor, size: int, copies: int | None = None) -> Tensor:
    """Return how often each integer below `size` occurs in `cells` where `masks` is not ignored.

    Ignored pixels go to one more cell: bincount, or indexing by a mask, would be a host sync. A GPU adds
    up at one address one pixel after the other, and most pixels belong to two cells: there, neighbours
    take `copies` of the counters in turns.
    """
    kept = torch.where(masks == IGNORE_ID, size, cells).flatten()
    if copies is None:
        copies = 1 if kept.device.type == "cpu" else max(1, _ADDRESSES // (size + 1))
    if copies > 1:
        kept += torch.arange(len(kept), device=kept.device) % copies * (size + 1)
    counts = torch.zeros(copies * (size + 1), dtype=torch.int64, device=kept.device)
    counts.scatter_add_(0, kept, torch.ones_like(kept))
    return counts.view(copies, size + 1).sum(0)[:size]
