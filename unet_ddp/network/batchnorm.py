"""Batch norm's running averages, without the bias of their start at mean 0 and variance 1.

With the usual momentum of 0.1 they need forty batches to forget it, and validation of the first
epochs would score the network with them. As in Adam, the first batches weigh more instead: each of
the first n alike, until 1 / n is the momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unet_ddp.distributed.world import sum_statistics

FIRST_STEPS = 100
"""Steps of a run in which averages may be biased: 1 / momentum, of which 0.01 is the lowest in use."""


class _Averaging(Protocol):
    """A batch norm with exponential averages, which its batches change."""

    training: bool
    momentum: float
    running_mean: Tensor  # (C,)
    running_var: Tensor  # (C,)
    num_batches_tracked: Tensor  # ()


def _batchnorms(network: nn.Module) -> Iterator[_Averaging]:
    for module in network.modules():
        if not isinstance(module, _BatchNorm):
            continue
        if module.running_mean is not None and module.momentum:  # 0: they stay as they are
            yield cast(_Averaging, module)


@torch.no_grad()
def correct_bias(network: nn.Module, before: Mapping[Tensor, Tensor], *, batches: int) -> None:
    """Weigh the last `batches` like all batches before them, if the momentum gives them less.

    On the device, after the forward passes; `before` has the buffers' values before these. Batch
    norms that saw none of the batches, and those that have counted 1 / momentum of them, stay as
    they are.
    """
    for norm in _batchnorms(network):
        weight = 1 - (1 - norm.momentum) ** batches  # that they have now
        count = norm.num_batches_tracked.clamp(min=1).to(norm.running_mean.dtype)  # ()
        factor = (batches / weight / count).clamp(min=1)  # ()
        for now in (norm.running_mean, norm.running_var):  # (C,)
            now.copy_(before[now].lerp(now, factor))
        norm.running_var.clamp_(min=0)  # a constant channel's would be below it by rounding


@torch.no_grad()
def average_over_ranks(network: nn.Module) -> None:
    """Replace the running averages by their mean over ranks, where each rank normalises its own batch.

    This is done in each step, so that all ranks have one network whenever it is validated or saved. The averages
    are linear: once an epoch would give the same.
    """
    averages: list[Tensor] = []
    for norm in _batchnorms(network):
        if norm.training:
            averages += [norm.running_mean, norm.running_var]
    if averages:
        one = averages[0].new_ones(1)
        sums = sum_statistics(torch.cat([*averages, one]))  # one collective
        means = torch.split(sums[:-1] / sums[-1], [*map(len, averages)])
        torch._foreach_copy_(averages, means)


def count_as_sound(network: nn.Module) -> None:
    """Set the count of averages that came with weights, but without a count, to `FIRST_STEPS`."""
    for norm in _batchnorms(network):
        if not norm.num_batches_tracked and norm.running_mean.any():
            norm.num_batches_tracked.fill_(FIRST_STEPS)
