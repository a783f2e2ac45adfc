"""The loss of classes that overlap: each class is background and foreground by itself."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.config import OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.errors import UserError
from unet_ddp.extras.overlap.bits import find_truth
from unet_ddp.training.losses import Batch, SegmentationLoss


class OverlapLoss(SegmentationLoss):
    """The terms of `SegmentationLoss`, with a sigmoid for each class in the place of the softmax.

    The region term sees C classes. The pixel term sees 2 C: the rest of each class, then the classes;
    so cross-entropy is binary cross-entropy, its mean over all pixels of all classes.

    Raises:
        UserError: a setting of the loss that has no meaning for such classes.
    """

    def __init__(self, options: OptimizationConfig | None = None) -> None:
        super().__init__(options)
        if self.options.label_smoothing:
            raise UserError(
                f"--label-smoothing {self.options.label_smoothing:g}: is not for classes that overlap; "
                "leave it out"
            )

    def split(self, logits: Tensor, masks: Tensor, weights: Tensor) -> tuple[Batch, Batch]:
        """Return the batch of the region term, (N, C, H, W), and that of the pixel term, (N, 2 C, H, W)."""
        truth = find_truth(masks, logits.shape[1])
        valid = (masks != IGNORE_ID).unsqueeze(1)
        logarithms, others = F.logsigmoid(logits), F.logsigmoid(-logits)
        probabilities = logarithms.exp() * valid
        regions = Batch(logits, logarithms, probabilities, truth, masks, weights)
        pixels = Batch(
            logits,
            torch.cat([others, logarithms], 1),
            torch.cat([others.exp() * valid, probabilities], 1),
            torch.cat([~truth & valid, truth], 1),
            masks,
            torch.cat([weights, weights]),
        )
        return regions, pixels
