"""Tversky, Lovász-Softmax and focal loss; docs/losses.md has their formulas and sources."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from unet_ddp.config import OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.training.losses import Batch, CrossEntropy, Dice

_GAMMA = 2.0  # of the focal loss


class Tversky(Dice):
    """Dice in which false negatives weigh more than false positives."""

    column: ClassVar[str] = "tversky_loss"
    false_positives: ClassVar[float] = 0.3


class Focal(CrossEntropy):
    """Cross-entropy in which pixels that the network is sure of count less."""

    column: ClassVar[str] = "focal_loss"

    def targets(self, batch: Batch) -> Tensor:
        """Return the factors of the pixels' log-probabilities (N, C, H, W)."""
        return super().targets(batch) * (1 - batch.probabilities) ** _GAMMA


class Lovasz:
    """The Lovász extension of the Jaccard loss, of each image."""

    column: ClassVar[str] = "lovasz_loss"

    def __init__(self, options: OptimizationConfig) -> None:
        pass

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of the images' losses, and the number of these images, (2,)."""
        return {"lovasz": lovasz_sums(batch)}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the mean loss () of the images of all ranks."""
        total, images = sums["lovasz"].unbind()
        return total / images.clamp(min=1)


def lovasz_sums(batch: Batch) -> Tensor:
    """Return (2,): the sum of the images' Lovász-Softmax losses, and the number of these images.

    The loss of an image is the weighted mean of the classes in it; one without a valid pixel has
    none.
    """
    truth = batch.truth.flatten(2)  # (N, C, H W)
    ignored = (batch.masks == IGNORE_ID).flatten(1).unsqueeze(1)  # (N, 1, H W)
    errors = (truth.to(batch.weights.dtype) - batch.probabilities.flatten(2)).abs()  # (N, C, H W)
    # Ignored pixels come last, where they change nothing. Stable: ties must not change a gradient.
    order = errors.detach().masked_fill(ignored, -1.0).argsort(dim=2, descending=True, stable=True)
    found = truth.gather(2, order)
    seen = found.cumsum(2)  # int64: a GPU adds up floats in random order
    total = seen[:, :, -1:]  # (N, C, 1)
    place = torch.arange(1, order.shape[2] + 1, device=order.device)
    union = total + place - seen
    # By how much a pixel raises the Jaccard loss of those before it: a closed form of the paper's
    # differences, which cancel in float32.
    missed = (total - seen).to(errors.dtype) / (union - 1).clamp(min=1)
    raised = torch.where(found, 1.0, missed) / union
    raised = torch.zeros_like(errors).scatter_(2, order, raised)
    weights = torch.where(total.squeeze(2) > 0, batch.weights, 0.0)  # (N, C)
    sums = (weights * (errors * raised).sum(2)).sum(1)
    losses = sums / weights.sum(1).clamp(min=1e-8)  # (N,)
    return torch.stack([losses.sum(), (~ignored).any(2).sum().to(losses.dtype)])
