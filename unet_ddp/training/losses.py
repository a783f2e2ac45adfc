"""Dice loss and cross-entropy over the global batch, the same on any number of ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks


class Losses(NamedTuple):
    """Scalars on the device, equal on all ranks; only the total has a gradient."""

    total: Tensor
    dice: Tensor
    cross_entropy: Tensor


class DiceCrossEntropy(nn.Module):
    """Weighted sum of soft Dice loss and cross-entropy, over the batches of all ranks.

    Sums go over ranks before the ratio is taken: the Dice of ten images is not the mean of
    ten Dices, nor is the mean over valid pixels the mean of the ranks' means. DDP's mean of
    the gradients then is exactly the gradient of one process with the whole batch.

    Dice is the soft one of Milletari et al., "V-Net" (2016), without squares,
    1 - 2 Σ p t / (Σ p + Σ t) per class, averaged over the classes that occur in the batch.
    Everything is computed in float32 or better, also under autocast: sums over pixels overflow
    half precision. The class weights, one per class, are for both parts.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        dice_weight: float = 1.0,
        cross_entropy_weight: float = 1.0,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.dice_weight = dice_weight
        self.cross_entropy_weight = cross_entropy_weight
        weights = (
            torch.tensor(class_weights, dtype=torch.float64) if class_weights is not None else None
        )
        self.register_buffer("class_weights", weights)

    def forward(self, logits: Tensor, masks: Tensor) -> Losses:
        """Return the losses of logits (N, C, H, W), of any floating dtype, for class ids (N, H, W)."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        with torch.autocast(logits.device.type, enabled=False):
            return self._global(logits, masks.long())

    def _global(self, logits: Tensor, masks: Tensor) -> Losses:
        num_classes = logits.shape[1]
        weights = (
            logits.new_ones(num_classes)
            if self.class_weights is None
            else self.class_weights.to(logits)
        )
        classes = torch.arange(num_classes, device=masks.device).view(1, -1, 1, 1)
        truth = masks.unsqueeze(1) == classes  # (N, C, H, W) bool; ignored pixels are in no class
        valid = (masks != IGNORE_ID).unsqueeze(1)  # (N, 1, H, W)
        # One softmax for both parts. Not F.cross_entropy, which a GPU adds up in random order.
        log_probabilities = logits.log_softmax(1)  # (N, C, H, W)
        probabilities = log_probabilities.exp() * valid
        entropies = -(log_probabilities * truth).sum((0, 2, 3))  # (C,)
        occurring = truth.sum((0, 2, 3)).to(logits.dtype)  # (C,)
        sums = sum_over_ranks(  # (3 C + 1,): one collective for all of it
            torch.cat(
                [
                    (probabilities * truth).sum((0, 2, 3)),
                    probabilities.sum((0, 2, 3)),
                    occurring,
                    (weights * entropies).sum().view(1),
                ]
            )
        )
        overlap, predicted, occurring = sums[:-1].view(3, num_classes)
        cross_entropy = sums[-1] / (weights * occurring).sum().clamp(min=1e-8)
        dice = 1 - 2 * overlap / (predicted + occurring).clamp(min=1e-8)
        weights = weights * (occurring > 0)
        dice = (weights * dice).sum() / weights.sum().clamp(min=1e-8)
        total = self.dice_weight * dice + self.cross_entropy_weight * cross_entropy
        return Losses(total, dice.detach(), cross_entropy.detach())
