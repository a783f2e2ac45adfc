"""Batch norm's running averages, without the bias of their start at mean 0 and variance 1.

With the usual momentum of 0.1 they need forty batches to forget it, and validation of the first
epochs would score the network with them. As in Adam, the first batches weigh more instead: each of
the first n alike, until 1 / n is the momentum.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Statistics = list[tuple[_BatchNorm, Tensor, Tensor]]

FIRST_STEPS = 100
"""Steps of a run in which averages may be biased: 1 / momentum, of which 0.01 is the lowest in use."""


def _batchnorms(network: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms with exponential averages."""
    norms = (module for module in network.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if norm.running_mean is not None and norm.momentum is not None]


def snapshot_statistics(network: nn.Module) -> Statistics:
    """Return each batch norm with a copy of its running mean and variance (C,)."""
    copies = []
    for norm in _batchnorms(network):
        assert norm.running_mean is not None and norm.running_var is not None
        copies.append((norm, norm.running_mean.clone(), norm.running_var.clone()))
    return copies


@torch.no_grad()
def correct_bias(before: Statistics, *, batches: int) -> None:
    """Weigh the last `batches` like all batches before them, if the momentum gives them less.

    On the device, after the forward passes that followed `before`. Batch norms that saw none of the
    batches, and those that have counted 1 / momentum of them, stay as they are.
    """
    for norm, mean, variance in before:
        assert norm.momentum is not None and norm.num_batches_tracked is not None
        weight = 1 - (1 - norm.momentum) ** batches  # that they have now
        count = norm.num_batches_tracked.clamp(min=1).to(mean.dtype)  # ()
        factor = (batches / weight / count).clamp(min=1)  # ()
        for now, old in ((norm.running_mean, mean), (norm.running_var, variance)):
            assert now is not None
            now.copy_(old.lerp(now, factor))
        assert norm.running_var is not None
        norm.running_var.clamp_(min=0)  # a constant channel's would be below it by rounding


def count_as_sound(network: nn.Module) -> None:
    """Count averages that came with weights, but without a count, as those of many batches."""
    for norm in _batchnorms(network):
        assert norm.running_mean is not None and norm.num_batches_tracked is not None
        if not norm.num_batches_tracked and norm.running_mean.any():
            norm.num_batches_tracked.fill_(FIRST_STEPS)
