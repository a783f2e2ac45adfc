"""Validation during training: count how many pixels of each class were found."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from unet_ddp.data.dataset import Sample
from unet_ddp.metrics.counts import Counts
from unet_ddp.training.prefetch import copy_to_device
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import forward


@torch.no_grad()  # what a network keeps is used in training, too
def count_pixels(
    state: TrainState, batches: Iterable[Sample], *, num_classes: int, kind: type[Counts] = Counts
) -> Counts:
    """Return this rank's counts, on the device; sum them over ranks for scores."""
    network, precision = state.validation_network, state.precision
    was_training = network.training
    network.eval()
    counts = kind.zeros(num_classes, precision.device)
    for batch in batches:
        images, masks, _ = copy_to_device(batch, precision.device)
        with precision.autocast():
            logits = forward(network, state.preprocess, images)  # (N, classes, H, W)
        counts.add(kind.of(logits, masks))
    network.train(was_training)
    return counts
