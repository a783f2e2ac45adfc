"""The replica of a network, whose gradients are the mean over ranks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError


def replicate(
    network: nn.Module,
    example: Tensor,
    world: World,
    *,
    compress: bool = False,
    may_skip: bool = False,
) -> nn.Module:
    """Wrap `network` in DDP, which averages gradients over ranks; without a group return it.

    Buffers are not broadcast: batch norm computes them from the global batch, or takes their
    mean over ranks, so they are equal already.

    Args:
        network: on the device.
        example: an input of the network (N, C, H, W), of any values, on the device.
        world: of this process.
        compress: send the gradients in bfloat16.
        may_skip: passes may use other layers; DDP then finds in each which gradients will not come.
    """
    if world.store is None:
        return network
    if may_skip:
        _take_advice(world.device)
    else:
        freeze_unused(network, example)
    replica = DistributedDataParallel(
        network,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=may_skip,
        **_DDP_OPTIONS,
    )
    if compress:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        replica.register_comm_hook(None, bf16_compress_hook)
    if not may_skip:
        _arrange_buckets(replica, example)
    return replica


def _arrange_buckets(replica: nn.Module, example: Tensor) -> None:
    """Take the pass after which DDP arranges its buckets again, in the order in which gradients arrived.

    The place of a gradient decides in which order a ring of three or more ranks adds it up. Without this pass the
    step after a resume would differ in the last bit.
    """
    _backward(replica, example)
    replica.zero_grad(set_to_none=True)


@contextmanager
def without_reentrant(name: str) -> Iterator[None]:
    """Make reentrant checkpointing in a network `name` a mistake: DDP fails at it where passes may skip layers.

    Raises:
        UserError: the network uses it.
    """

    def refuse(*_: object) -> None:
        raise UserError(
            f"--model {name}: checkpoint(..., use_reentrant=True) fails on several processes; use use_reentrant=False"
        )

    CheckpointFunction.apply = staticmethod(refuse)
    try:
        yield
    finally:
        del CheckpointFunction.apply  # that of its base again


def _take_advice(device: torch.device) -> None:
    """Let torch advise against find_unused_parameters where nobody reads it: it does so once in a process, at a first pass without need for it."""
    example, stderr = torch.zeros(1, 1, device=device), os.dup(2)
    small = DistributedDataParallel(nn.Linear(1, 1, device=device), find_unused_parameters=True)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            small(example)
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def freeze_unused(network: nn.Module, example: Tensor) -> None:
    """Freeze parameters that no output depends on (some of smp's encoders have them).

    DDP would wait forever for their gradients.
    """
    _backward(network, example)
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.grad is not None)
    network.zero_grad(set_to_none=True)


def _backward(module: nn.Module, example: Tensor) -> None:
    """Compute gradients for `example`, and leave the buffers as they were."""
    before = [buffer.clone() for buffer in module.buffers()]
    module(example).sum().backward()
    with torch.no_grad():
        for buffer, old in zip(module.buffers(), before, strict=True):
            buffer.copy_(old)


# torch 2.15 renamed DDP's broadcast_buffers and warns of the old name. From then on gradients can be
# copied into a bucket by one kernel instead of one each.
_known = inspect.signature(DistributedDataParallel).parameters
_DDP_OPTIONS: Any = {"broadcast_buffers": False}
if "forward_sync_buffers" in _known:
    _DDP_OPTIONS = {"forward_sync_buffers": False}
if "batched_grad_copy" in _known:
    _DDP_OPTIONS["batched_grad_copy"] = True
