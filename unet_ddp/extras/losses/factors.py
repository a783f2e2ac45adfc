"""Factors of pixels in the pixel term: the hardest alone, or more near other classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.config import OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks
from unet_ddp.metrics.counts import count_cells
from unet_ddp.training.losses import Batch

_WINDOW = 31  # pixels; of the boundary weights
_BINS, _BITS, _LEAST = 4096, 16, (127 - 24) << 7  # of losses: 128 for each power of two from 2^-24


class BoundaryWeight:
    """More for pixels among other classes' pixels: --boundary-weight."""

    def __init__(self, options: OptimizationConfig) -> None:
        self.weight = options.boundary_weight or 0.0

    def __call__(self, batch: Batch) -> Tensor:
        """Return the factors (N, 1, H, W)."""
        return 1 + self.weight * share_of_others(batch.truth.to(batch.weights.dtype))


class HardPixels:
    """1 for the pixels with the largest losses, 0 for the others: --hard-pixels."""

    def __init__(self, options: OptimizationConfig) -> None:
        self.percent = options.hard_pixels

    def __call__(self, batch: Batch) -> Tensor:
        """Return the factors (N, 1, H, W)."""
        losses = -(batch.log_probabilities.detach() * batch.truth).sum(1)  # (N, H, W)
        return is_hard(losses, batch.masks, self.percent).unsqueeze(1).to(losses.dtype)


def is_hard(losses: Tensor, masks: Tensor, percent: float) -> Tensor:
    """Return (N, H, W) bool: the valid pixels with the largest losses of all ranks.

    They are at least `percent` of the valid ones. The least loss among them is found by a
    histogram, so pixels whose loss is less than 1/128 below theirs may be among them, too.
    """
    bits = losses.float().view(torch.int32) >> _BITS  # exponent and 7 binary digits
    bins = (bits - _LEAST).clamp(0, _BINS - 1).long()
    counts = sum_over_ranks(count_cells(bins, masks, _BINS))
    at_least = counts.flip(0).cumsum(0).flip(0)  # pixels in a bin and those above it
    wanted = (at_least[0].double() * (percent / 100)).ceil()
    least = (at_least >= wanted).sum() - 1
    return (bins >= least) & (masks != IGNORE_ID)


def share_of_others(truth: Tensor) -> Tensor:
    """Return the share of other classes' pixels in the window around each pixel, (N, 1, H, W).

    `truth` (N, C, H, W) is 1 at a pixel's class; an ignored pixel is in none, and in no window.
    """
    half = _WINDOW // 2
    columns = F.avg_pool2d(truth, (_WINDOW, 1), stride=1, padding=(half, 0))
    around = F.avg_pool2d(columns, (1, _WINDOW), stride=1, padding=(0, half))
    own = (around * truth).sum(1, keepdim=True)
    every = around.sum(1, keepdim=True)
    return 1 - own / every.clamp(min=1e-8)
