"""Losses over the global batch, the same on any number of ranks: a region term and a pixel term.

docs/losses.md has the formulas and their sources.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.config import PIXEL_TERMS, OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import sum_over_ranks
from unet_ddp.metrics.counts import count_cells

COLUMNS = {  # of metrics.csv, by the terms that the names of losses consist of
    "dice": "dice_loss",
    "tversky": "tversky_loss",
    "lovasz": "lovasz_loss",
    "ce": "cross_entropy",
    "focal": "focal_loss",
}
_FALSE_POSITIVES = {"dice": 0.5, "tversky": 0.3}  # their weight; the rest of 1 for false negatives
_GAMMA = 2.0  # of the focal loss
_WINDOW = 31  # pixels; of the boundary weights
_BINS, _BITS, _LEAST = 4096, 16, (127 - 24) << 7  # of losses: 128 for each power of two from 2^-24


class Losses(NamedTuple):
    """Scalars on the device, equal on all ranks; only the total has a gradient."""

    total: Tensor
    region: Tensor
    """Dice, Tversky or Lovász loss, without its weight; 0 if the loss has none of them."""
    pixel: Tensor
    """Cross-entropy or focal loss, without its weight; 0 if the loss has none of them."""


class _Batch(NamedTuple):
    """One rank's pixels, and the weights of the classes."""

    log_probabilities: Tensor  # (N, C, H, W)
    probabilities: Tensor  # (N, C, H, W); 0 where the mask is ignored
    truth: Tensor  # (N, C, H, W) bool; ignored pixels are in no class
    masks: Tensor  # (N, H, W) class ids
    weights: Tensor  # (C,)


class SegmentationLoss(nn.Module):
    """Weighted sum of a term over regions and a term over pixels, over the batches of all ranks.

    Sums go over ranks before the ratio is taken: the Dice of ten images is not the mean of
    ten Dices, nor is the mean over valid pixels the mean of the ranks' means. DDP's mean of
    the gradients then is exactly the gradient of one process with the whole batch.

    Everything is computed in float32 or better, also under autocast: sums over pixels overflow
    half precision.

    Args:
        options: the settings of the loss; default: the program's.
    """

    class_weights: Tensor | None

    def __init__(self, options: OptimizationConfig | None = None) -> None:
        super().__init__()
        self.options = options or OptimizationConfig()
        terms, weights = self.options.loss.split("_"), self.options.class_weights
        self.region = next((term for term in terms if term not in PIXEL_TERMS), None)
        self.pixel = next((term for term in terms if term in PIXEL_TERMS), None)
        weighed = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        self.register_buffer("class_weights", weighed)

    @property
    def columns(self) -> tuple[str | None, str | None]:
        """Names of the region and the pixel term in metrics.csv; None for one that there is not."""
        region, pixel = (COLUMNS.get(str(term)) for term in (self.region, self.pixel))
        return region, pixel

    def forward(self, logits: Tensor, masks: Tensor) -> Losses:
        """Return the losses of logits (N, C, H, W).

        Args:
            logits: of any floating dtype.
            masks: class ids (N, H, W); IGNORE_ID marks pixels to leave out.
        """
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        with torch.autocast(logits.device.type, enabled=False):
            return self._global(logits, masks.long())

    def _global(self, logits: Tensor, masks: Tensor) -> Losses:
        num_classes = logits.shape[1]
        given = self.class_weights
        weights = logits.new_ones(num_classes) if given is None else given.to(logits)
        classes = torch.arange(num_classes, device=masks.device).view(1, -1, 1, 1)
        truth = masks.unsqueeze(1) == classes
        # One softmax for both terms. Not F.cross_entropy, which a GPU adds up in random order.
        log_probabilities = logits.log_softmax(1)
        probabilities = log_probabilities.exp() * (masks != IGNORE_ID).unsqueeze(1)
        batch = _Batch(log_probabilities, probabilities, truth, masks, weights)
        own = self._sums(batch)
        sizes = [len(part) for part in own.values()]
        total = sum_over_ranks(torch.cat([*own.values()]))  # one collective for all of it
        sums = dict(zip(own, torch.split(total, sizes), strict=True))
        region, pixel = self._region(sums, weights), self._pixel(sums, weights)
        loss = self.options.dice_weight * region + self.options.cross_entropy_weight * pixel
        return Losses(loss, region.detach(), pixel.detach())

    def _sums(self, batch: _Batch) -> dict[str, Tensor]:
        """Return this rank's sums over pixels, vectors by name."""
        log_probabilities, probabilities, truth, _, weights = batch
        sums = {}
        if self.region == "lovasz":
            sums["lovasz"] = lovasz_sums(batch)  # (2,)
        elif self.region is not None:
            sums["overlap"] = (probabilities * truth).sum((0, 2, 3))  # (C,)
            sums["predicted"] = probabilities.sum((0, 2, 3))  # (C,)
        sums["occurring"] = truth.sum((0, 2, 3)).to(weights.dtype)  # (C,)
        if self.pixel is None:
            return sums
        targets = self._targets(batch)
        factors = self._pixel_factors(batch)
        if factors is not None:
            targets = targets * factors
            sums["counted"] = (truth * factors).sum((0, 2, 3))  # (C,)
        entropies = -(log_probabilities * targets).sum((0, 2, 3))  # (C,)
        sums["entropy"] = (weights * entropies).sum().view(1)
        return sums

    def _targets(self, batch: _Batch) -> Tensor:
        """Return the factors of the pixels' log-probabilities (N, C, H, W)."""
        targets, share = batch.truth, self.options.label_smoothing
        if share:
            valid = (batch.masks != IGNORE_ID).unsqueeze(1).to(batch.weights.dtype)
            targets = valid * share / targets.shape[1] + targets * (1 - valid * share)
        if self.pixel == "focal":
            targets = targets * (1 - batch.probabilities) ** _GAMMA
        return targets

    def _pixel_factors(self, batch: _Batch) -> Tensor | None:
        """Return a factor for each pixel, (N, 1, H, W) without gradient; None if all are 1."""
        factors = None
        if self.options.boundary_weight:
            others = share_of_others(batch.truth.to(batch.weights.dtype))
            factors = 1 + self.options.boundary_weight * others
        if self.options.hard_pixels < 100:
            losses = -(batch.log_probabilities.detach() * batch.truth).sum(1)  # (N, H, W)
            hard = is_hard(losses, batch.masks, self.options.hard_pixels).unsqueeze(1)
            factors = hard.to(losses.dtype) if factors is None else factors * hard
        return factors

    def _region(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the region term () of sums over all ranks."""
        if self.region is None:
            return weights.new_zeros(())
        if self.region == "lovasz":
            total, images = sums["lovasz"].unbind()
            return total / images.clamp(min=1)
        false = _FALSE_POSITIVES[self.region]
        occurring = sums["occurring"]
        cardinality = false * sums["predicted"] + (1 - false) * occurring
        losses = 1 - sums["overlap"] / cardinality.clamp(min=5e-9)  # (C,)
        weights = weights * (occurring > 0)
        return (weights * losses).sum() / weights.sum().clamp(min=1e-8)

    def _pixel(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the pixel term () of sums over all ranks."""
        if self.pixel is None:
            return weights.new_zeros(())
        counted = sums.get("counted", sums["occurring"])
        mean: Tensor = sums["entropy"].squeeze() / (weights * counted).sum().clamp(min=1e-8)
        return mean


def lovasz_sums(batch: _Batch) -> Tensor:
    """Return (2,): the sum of the images' Lovász-Softmax losses, and the number of these images.

    The loss of an image is the weighted mean of the classes in it; one without a valid pixel has
    none.
    """
    truth, ignored = batch.truth.flatten(2), (batch.masks == IGNORE_ID).flatten(1).unsqueeze(1)
    errors = (truth.to(batch.weights.dtype) - batch.probabilities.flatten(2)).abs()  # (N, C, H W)
    # Ignored pixels come last, where they change nothing. Stable: ties must not change a gradient.
    order = errors.detach().masked_fill(ignored, -1.0).argsort(dim=2, descending=True, stable=True)
    found = truth.gather(2, order)
    seen = found.cumsum(2)  # int64: a GPU adds up floats in random order
    total = seen[:, :, -1:]  # (N, C, 1)
    union = total + torch.arange(1, order.shape[2] + 1, device=order.device) - seen
    # By how much a pixel raises the Jaccard loss of those before it: a closed form of the paper's
    # differences, which cancel in float32.
    missed = (total - seen).to(errors.dtype) / (union - 1).clamp(min=1)
    raised = torch.where(found, 1.0, missed) / union
    raised = torch.zeros_like(errors).scatter_(2, order, raised)
    weights = batch.weights * (total.squeeze(2) > 0)  # (N, C)
    losses = (weights * (errors * raised).sum(2)).sum(1) / weights.sum(1).clamp(min=1e-8)  # (N,)
    return torch.stack([losses.sum(), (~ignored).any(2).sum().to(losses.dtype)])


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
    around, half = truth, _WINDOW // 2
    for size, padding in (((_WINDOW, 1), (half, 0)), ((1, _WINDOW), (0, half))):
        around = F.avg_pool2d(around, size, stride=1, padding=padding)
    own = (around * truth).sum(1, keepdim=True)
    return 1 - own / around.sum(1, keepdim=True).clamp(min=1e-8)
