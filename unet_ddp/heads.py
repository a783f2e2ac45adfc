"""Heads: from a network's logits to probabilities, class ids, counts for scores, and the loss.

Each kind of labels has its head. A head imports what only training or scoring needs when it is asked for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Ids
from unet_ddp.plugins import find

if TYPE_CHECKING:
    from unet_ddp.config import OptimizationConfig
    from unet_ddp.data.dataset import PreparedData
    from unet_ddp.distributed.world import World
    from unet_ddp.metrics.counts import Counts
    from unet_ddp.training.losses import SegmentationLoss
    from unet_ddp.training.state import TrainState

Scores = NDArray[np.float32]
"""(C, rows, width): logits up to a constant per pixel; for background and foreground (1, …), their difference."""


class Head(Protocol):
    """A way from logits to probabilities, class ids, counts and a loss; it is made from the labels.

    Softmax is below; Sigmoid is in extras/overlap/head.py, ObjectSoftmax in extras/objects/head.py.
    """

    decision: str
    """How `find_ids` chooses a pixel's class without a threshold, in words."""

    @property
    def counts(self) -> type[Counts]:
        """The class that counts pixels for scores."""

    def make_loss(self, options: OptimizationConfig) -> SegmentationLoss:
        """Return the loss of a run with these settings."""

    def tuner(self, data: PreparedData, world: World, *, resize_masks: bool) -> Tuner | None:
        """Return what chooses how predictions are decoded, on a run's data; None if nothing is chosen."""

    def reduce(self, logits: Tensor) -> Tensor:
        """Return all of logits (N, C, h, w) that the rest needs, as `Scores` of each image."""

    def find_ids(self, scores: Scores, threshold: float | None) -> Ids:
        """Return the class ids (rows, W) of scores (C, rows, W); `threshold` as in `Prediction`."""

    def find_probabilities(self, scores: Scores) -> Scores:
        """Return the probabilities (C, rows, W) of scores (C, rows, W)."""

    def normalise(self, logits: Tensor) -> Tensor:
        """Return the probabilities (N, C, H, W) of logits (N, C, H, W); an exported network has it."""

    def to_logarithms(self, logits: Tensor) -> Tensor:
        """Return logarithms of probabilities, whose mean over networks is taken."""

    def to_logits(self, logarithms: Tensor) -> Tensor:
        """Return logits (N, C, H, W) of what `to_logarithms` returned, or of a mean of it."""


class Tuner(Protocol):
    """Chooses how the best network's predictions are decoded, as SeparationTuner of extras/objects/tuning.py."""

    def tune(
        self, state: TrainState, counts: Counts, watch: Callable[[Iterator[Any]], Iterable[Any]]
    ) -> tuple[Labels, float, str]:
        """Return the labels that decode the state's predictions best, their score and its name.

        All pixels have these `counts`. `watch` passes samples on until the run is to stop.
        """


class Softmax:
    """Each pixel has one class."""

    decision = "the most probable class"

    def __init__(self, labels: Labels | None = None) -> None:
        pass

    @property
    def counts(self) -> type[Counts]:
        """The class that counts pixels for scores."""
        from unet_ddp.metrics.counts import Counts

        return Counts

    def make_loss(self, options: OptimizationConfig) -> SegmentationLoss:
        """Return the loss of a run with these settings."""
        from unet_ddp.training.losses import SegmentationLoss

        return SegmentationLoss(options)

    def tuner(self, data: PreparedData, world: World, *, resize_masks: bool) -> Tuner | None:
        """Return None: the most probable class is not tuned."""
        return None

    def reduce(self, logits: Tensor) -> Tensor:
        """Return the logits (N, C, h, w); of two classes, the difference (N, 1, h, w)."""
        return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits

    def find_ids(self, scores: Scores, threshold: float | None) -> Ids:
        """Return the most probable class, or the second where it has the threshold's probability."""
        if len(scores) > 1:
            winning = torch.from_numpy(scores).max(0).indices  # not argmax: slow
            ids: Ids = winning.to(torch.uint8).numpy()
            return ids
        if threshold is None:
            foreground = scores[0] > 0
        else:  # the inverse of the sigmoid
            foreground = scores[0] >= math.log(threshold / (1 - threshold))
        return cast(Ids, foreground.view(np.uint8))

    def find_probabilities(self, scores: Scores) -> Scores:
        """Return the softmax over the classes."""
        if len(scores) > 1:
            return torch.from_numpy(scores).softmax(0).numpy()
        second = torch.from_numpy(scores[0]).sigmoid()
        return torch.stack([1 - second, second]).numpy()

    def normalise(self, logits: Tensor) -> Tensor:
        """Return the softmax over the classes."""
        return logits.softmax(1)

    def to_logarithms(self, logits: Tensor) -> Tensor:
        """Return the log-softmax (N, C, H, W)."""
        return logits.log_softmax(1)

    def to_logits(self, logarithms: Tensor) -> Tensor:
        """Return them as they are: softmax does not see a constant."""
        return logarithms


SOFTMAX = Softmax()


def find_head(labels: Labels) -> Head:
    """Return the head of these labels."""
    return find("heads", labels.kind)(labels)
