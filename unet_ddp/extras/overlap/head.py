"""The head of classes that overlap: a sigmoid for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Ids
from unet_ddp.extras.overlap.bits import join_planes
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.heads import Scores, Tuner

if TYPE_CHECKING:
    from unet_ddp.config import OptimizationConfig
    from unet_ddp.data.dataset import PreparedData
    from unet_ddp.distributed.world import World
    from unet_ddp.metrics.counts import Counts
    from unet_ddp.training.losses import SegmentationLoss


class Sigmoid:
    """Each class by itself: it is where its probability reaches its threshold."""

    decision = "each class from its own threshold on"

    def __init__(self, labels: Labels) -> None:
        assert isinstance(labels, OverlapLabels)
        self._labels = labels
        # The inverse of the sigmoid.
        limits = [math.log(limit / (1 - limit)) for limit in labels.limits]
        self._limits = np.array(limits, np.float32)[:, None, None]  # (C, 1, 1)

    @property
    def counts(self) -> type[Counts]:
        """The class that counts pixels for scores."""
        from unet_ddp.extras.overlap.counts import ClassCounts

        return ClassCounts

    def make_loss(self, options: OptimizationConfig) -> SegmentationLoss:
        """Return the loss of a run with these settings."""
        from unet_ddp.extras.overlap.loss import OverlapLoss

        return OverlapLoss(options)

    def tuner(self, data: PreparedData, world: World, *, resize_masks: bool) -> Tuner:
        """Return what chooses `OverlapLabels.thresholds` by the counts of validation."""
        from unet_ddp.extras.overlap.tuning import ThresholdTuner

        return ThresholdTuner(self._labels)

    def reduce(self, logits: Tensor) -> Tensor:
        """Return the logits: all are needed."""
        return logits

    def find_ids(self, scores: Scores, threshold: float | None) -> Ids:
        """Return the bit fields (rows, W)."""
        return join_planes(scores >= self._limits, len(scores))

    def find_probabilities(self, scores: Scores) -> Scores:
        """Return the sigmoid of each class; they do not add up to 1."""
        return torch.from_numpy(scores).sigmoid().numpy()

    def normalise(self, logits: Tensor) -> Tensor:
        """Return the sigmoid of each class."""
        return logits.sigmoid()

    def to_logarithms(self, logits: Tensor) -> Tensor:
        """Return the logarithms for each class and for the rest, (2, N, C, H, W)."""
        return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)])

    def to_logits(self, logarithms: Tensor) -> Tensor:
        """Return their difference."""
        return logarithms[0] - logarithms[1]
