"""What is counted of the pixels, on the device and without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks

BINS = 1024
"""Bins of a probability: a power of two, so that ``p >= k / BINS`` is exactly ``bin >= k``."""


@dataclass(frozen=True)
class Counts:
    """All that scores, threshold curve and calibration are made from."""

    confusion: Tensor
    """(C, C) int64: rows are the truth, columns the prediction."""
    histogram: Tensor
    """(2, BINS) int64. Of two classes, pixels by the foreground's probability: those of the
    background, those of the foreground. Of more, by the winning class's: wrong ones, right ones."""

    @classmethod
    def zeros(cls, num_classes: int, device: torch.device) -> Counts:
        """Nothing counted yet."""
        sizes = (num_classes, num_classes), (2, BINS)
        return cls(*(torch.zeros(size, dtype=torch.int64, device=device) for size in sizes))

    @classmethod
    def of(cls, logits: Tensor, masks: Tensor) -> Counts:
        """Counts of logits (N, C, H, W) whose largest is the prediction.

        Args:
            masks: true class ids (N, H, W); IGNORE_ID is left out.
        """
        predicted = logits.max(1).indices  # argmax takes ten times as long on a CPU
        return cls(
            confusion(predicted, masks, logits.shape[1]),
            histogram(confidence(logits), predicted, masks, logits.shape[1]),
        )

    def add(self, other: Counts) -> None:
        """Count `other` in."""
        self.confusion.add_(other.confusion)
        self.histogram.add_(other.histogram)

    def over_ranks(self) -> Counts:
        """The sum over all ranks."""
        return Counts(sum_over_ranks(self.confusion), sum_over_ranks(self.histogram))


def confusion(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """How many pixels of which class were taken for which.

    Args:
        predicted: class ids (N, H, W).
        masks: true class ids (N, H, W); IGNORE_ID is left out.

    Returns:
        (C, C) int64 on the masks' device: rows are the truth, columns the prediction.
    """
    cells = masks.long() * num_classes + predicted
    return _count(cells, masks, num_classes**2).view(num_classes, num_classes)


def confidence(logits: Tensor) -> Tensor:
    """Of two classes, the foreground's probability; of more, the winning one's.

    Args:
        logits: (N, C, H, W).

    Returns:
        (N, H, W) float32.
    """
    logits = logits.float()
    if logits.shape[1] == 2:
        return (logits[:, 1] - logits[:, 0]).sigmoid()
    return logits.softmax(1).amax(1)


def histogram(probabilities: Tensor, predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """Pixels by `confidence` and by whether it came true.

    Args:
        probabilities: what `confidence` gave, (N, H, W).
        predicted: class ids (N, H, W).
        masks: true class ids (N, H, W); IGNORE_ID is left out.

    Returns:
        (2, BINS) int64, as `Counts.histogram`.
    """
    true = masks == (1 if num_classes == 2 else predicted)
    bins = (probabilities * BINS).long().clamp_(0, BINS - 1)  # nan falls into the first
    return _count(true * BINS + bins, masks, 2 * BINS).view(2, BINS)


def _count(cells: Tensor, masks: Tensor, size: int) -> Tensor:
    """How many pixels have each of the numbers below `size`; ignored ones fall into a last cell.

    bincount, and a mask of what to count, would have the host wait for a GPU.
    """
    kept = torch.where(masks == IGNORE_ID, size, cells).flatten()
    counts = torch.zeros(size + 1, dtype=torch.int64, device=masks.device)
    return counts.scatter_add_(0, kept, torch.ones_like(kept))[:size]
