"""The processes of a run together: what one finds for all, sums over ranks, mean gradients."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import RunError, UserError

Result = TypeVar("Result")

_PATIENCE = timedelta(days=7)
_AWAKE = 0.05  # seconds; another rank that is later than that does something else
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has none


@dataclass(frozen=True)
class World:
    """The processes of this run, as one of them sees them."""

    rank: int = 0
    """0 for the main process, which alone writes and speaks."""
    size: int = 1
    """Number of processes on all machines."""
    local_rank: int = 0
    """Which of this machine's processes this is: which GPU it takes."""
    local_size: int = 1
    """Number of processes on this machine: how many share its cores."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: dist.Store | None = None
    """Key-value store beside the group; None where no group was made."""
    peers: tuple[int, ...] = ()
    """Process numbers of the other ranks on this machine."""
    works: Iterator[int] = field(default_factory=itertools.count, repr=False)
    """Numbers for what `on_main` does, the same on every rank."""
    _counted: set[str] = field(default_factory=set, repr=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def cores(self) -> int:
        """Processor cores for this process alone, at least one."""
        return max(1, usable_cores() // self.local_size)

    def on_main(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on the main process, on every process.

        The others wait meanwhile. What it raises is raised on every process alike, so that
        none waits for ever.
        """
        if self.store is None:
            return work()
        outcome: list[Any] = [None, None]
        done = f"main did work {next(self.works)}"
        if self.is_main:
            try:
                outcome[0] = work()
            except Exception as error:
                outcome[1] = error
                self.store.set(done, "")
                dist.broadcast_object_list([None, _sendable(error)], src=0)
                raise
            self.store.set(done, "")
        else:  # by the store: looking at many files may take longer than a collective may
            self.store.wait([done], _PATIENCE)
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        result: Result = outcome[0]
        return result

    def gather(self, item: Result) -> list[Result]:
        """The `item` of every rank, in their order, on every rank."""
        if self.store is None:
            return [item]
        items = [item] * self.size
        dist.all_gather_object(items, item)
        return items

    def count_once(self, what: str) -> tuple[int, bool]:
        """How many different things have been counted on all ranks, and whether this one is new.

        Any rank may call it at any time: it is no collective.
        """
        if self.store is None:
            new = what not in self._counted
            self._counted.add(what)
            return len(self._counted), new
        new = self.store.add(f"counted {what!r}", 1) == 1
        return self.store.add("counted", int(new)), new

    def replicate(self, network: nn.Module, example: Tensor) -> nn.Module:
        """`network` such that its gradients are the mean over ranks: DDP, or itself alone.

        Buffers are not broadcast: batch norm computes them from the whole world's batch, so
        they are equal already.

        Args:
            example: an input of the network, of any values, on its device.
        """
        if self.store is None:
            return network
        _freeze_unused(network, example)
        replica = DistributedDataParallel(
            network,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_UNSYNCED,
        )
        _settle_buckets(replica, example)
        return replica


def _freeze_unused(network: nn.Module, example: Tensor) -> None:
    """Parameters that no output depends on (some of smp's encoders have such) are left alone.

    DDP would wait for their gradients for ever. The buffers stay as they were.
    """
    buffers = [buffer.clone() for buffer in network.buffers()]
    network(example).sum().backward()
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.grad is not None)
    network.zero_grad(set_to_none=True)
    _restore(network, buffers)


def _settle_buckets(replica: DistributedDataParallel, example: Tensor) -> None:
    """Let DDP arrange its buckets now, by a backward pass whose gradients are thrown away.

    After its first backward pass DDP arranges them anew, in the order in which gradients came,
    and where a gradient lies decides in which order a ring of three or more ranks adds it up.
    Without this, the step after a resume would differ in the last bit from the undisturbed run.
    """
    buffers = [buffer.clone() for buffer in replica.buffers()]
    replica(example).sum().backward()
    replica.zero_grad(set_to_none=True)
    _restore(replica, buffers)


@torch.no_grad()
def _restore(module: nn.Module, buffers: list[Tensor]) -> None:
    for buffer, before in zip(module.buffers(), buffers, strict=True):
        buffer.copy_(before)


# torch 2.15 gave DDP's broadcast_buffers a new name and warns of the old one.
_UNSYNCED: Any = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


def without_sync(replica: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Backward passes in here gather gradients locally: all micro-batches but the last."""
    if isinstance(replica, DistributedDataParallel):
        return replica.no_sync()
    return contextlib.nullcontext()


class _Sum(torch.autograd.Function):
    """Sum over ranks whose gradient is the sum over ranks of the gradients.

    Each rank's backward pass then yields the gradient of the sum of all ranks' losses, and
    DDP's mean that of their mean. torch.distributed.nn has had the same; it is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        with record_function("all-reduce"):
            total = tensor.clone(memory_format=torch.contiguous_format)
            work = dist.all_reduce(total, async_op=True)
            if total.device.type == "cpu":
                _yield_until_done(work)
            work.wait()
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])


def _yield_until_done(work: dist.Work) -> None:
    """A core that fell asleep takes longer to wake up than a small sum takes: a tenth of a step in all."""
    until = time.perf_counter() + _AWAKE
    while not work.is_completed() and time.perf_counter() < until:
        _yield()


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all ranks, of the same shape, differentiable."""
    if _is_alone or not dist.is_initialized():
        return tensor
    total: Tensor = _Sum.apply(tensor)
    return total


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Within it, a sum over ranks is this rank's own value: for work that may fail on one of them."""
    global _is_alone
    _is_alone = True
    try:
        yield
    finally:
        _is_alone = False


_is_alone = False


def _sendable(error: Exception) -> Exception:
    return (
        error
        if isinstance(error, (UserError, RunError, MemoryError))
        else RuntimeError(repr(error))
    )
