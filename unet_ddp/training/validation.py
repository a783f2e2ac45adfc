"""Validation during training: count how many pixels of each class were found."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.metrics.counts import Counts
from unet_ddp.network.precision import Precision
from unet_ddp.training.prefetch import copy_to_device


@torch.inference_mode()
def count_pixels(
    network: nn.Module,
    batches: Iterable[Sample],
    preprocess: Preprocessing,
    precision: Precision,
    *,
    num_classes: int,
) -> Counts:
    """Return this rank's counts, on the device; sum them over ranks for scores."""
    was_training = network.training
    network.eval()
    counts = Counts.zeros(num_classes, precision.device)
    dtype = next(network.parameters()).dtype
    for batch in batches:
        images, masks, _ = copy_to_device(batch, precision.device)
        with precision.autocast():
            logits = network(preprocess(images, dtype))  # (N, classes, H, W)
        counts.add(Counts.of(logits, masks))
    network.train(was_training)
    return counts
