"""The processes of a run: work on the main one, sums over ranks, averaged gradients."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import RunError, UserError

Result = TypeVar("Result")

LOOK = timedelta(seconds=10)  # between looks for a rank that has failed
_SPIN = 0.05  # seconds; a rank that is later than that does other work
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))  # Windows has no sched_yield


@dataclass(frozen=True)
class World:
    """The processes of this run, as one of them sees them.

    A world of one that was started as plain ``python train.py`` has no process group; every
    method is then the identity, and no caller has to know.
    """

    rank: int = 0
    """0 for the main process, which alone writes and prints."""
    size: int = 1
    """Number of processes on all machines."""
    local_rank: int = 0
    """This process's number on this machine, and that of its GPU."""
    local_size: int = 1
    """Number of processes on this machine, which share its cores."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    store: dist.Store | None = None
    """Key-value store of the group; None without a group."""
    peers: tuple[int, ...] = ()
    """Process ids of the other ranks on this machine."""
    hosts: Any = None
    """A gloo group beside NCCL, by which hosts agree without their GPUs; None if there is none."""
    _calls: Iterator[int] = field(default_factory=itertools.count, repr=False)
    """Numbers the calls of `on_main`, the same on every rank."""

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """Processor cores for this process alone, at least one."""
        return max(1, usable_cores() // self.local_size)

    @property
    def processors(self) -> int:
        """Logical processors for this process alone, at least one."""
        return max(1, usable_cores(logical=True) // self.local_size)

    def on_main(self, work: Callable[[], Result]) -> Result:
        """Run `work` on rank 0 and return its result on every rank.

        The other ranks wait. An exception of `work` is raised on every rank, so that none of them
        waits forever.
        """
        if self.store is None:
            return work()
        outcome: list[Any] = [None, None]  # result and error
        done = f"work {next(self._calls)} is done"
        if self.is_main:
            try:
                outcome[0] = work()
            except Exception as error:
                self.first_failed()  # on this host, as the others hear of it now
                self.store.set(done, "")
                is_known = isinstance(error, (UserError, RunError, MemoryError))
                said = error if is_known else RuntimeError(repr(error))  # can be sent
                dist.broadcast_object_list([None, said], src=0, group=self.hosts)
                raise
            self.store.set(done, "")
        else:  # by the store: the scan of many files may take longer than a collective's timeout
            self._wait_for(self.store, done)
        dist.broadcast_object_list(outcome, src=0, group=self.hosts)
        result, mistake = outcome
        if mistake is not None:
            raise mistake
        return cast(Result, result)

    @staticmethod
    def _wait_for(store: dist.Store, key: str) -> None:
        """Wait for a key of another rank, unless one has failed elsewhere and never comes to it."""
        while True:
            try:
                return store.wait([key], LOOK)
            except dist.DistStoreError:
                if store.check(["printed"]):
                    raise

    def first_failed(self) -> int:
        """Return the rank that failed first and says why, on its host; this one if no other has failed."""
        assert self.store is not None
        return int(self.store.compare_set("failed", "", str(self.rank)))

    def gather(self, item: Result) -> list[Result]:
        """Return the `item` of every rank, in rank order, on every rank."""
        if self.store is None:
            return [item]
        items = [item] * self.size
        dist.all_gather_object(items, item, group=self.hosts)
        return items

    def connect(self) -> None:
        """Take one sum in each group of this device, so that NCCL has allocated what it needs."""
        if self.store is None:
            return
        for group in dict.fromkeys((None, _statistics)):  # in the same order on all ranks
            dist.all_reduce(torch.zeros(1, device=self.device), group=group)


def without_sync(replica: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Return a context in which backward passes sum gradients locally, without the other ranks."""
    if isinstance(replica, DistributedDataParallel):
        return replica.no_sync()
    return contextlib.nullcontext()


class _Sum(torch.autograd.Function):
    """Sum over ranks whose gradient is the sum over ranks of the gradients.

    Each rank's backward pass then yields the gradient of the sum of all ranks' losses, and DDP's
    mean that of their mean. torch.distributed.nn has the same function; it is deprecated.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _add_up(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])


def _add_up(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Add up `values` over all ranks, in place, and return the sums; a GPU's host does not wait."""
    if torch.compiler.is_compiling():
        dist.all_reduce(values, group=group)
        return values.clone()  # compiled by torch 2.11, what is summed in place has no gradient
    with record_function("all-reduce"):
        if values.device.type != "cpu":
            dist.all_reduce(values, group=group)
        else:
            work = dist.all_reduce(values, group=group, async_op=True)
            # A sleeping core takes longer to wake up than a small sum takes: a tenth of a step in all.
            until = time.perf_counter() + _SPIN
            while not work.is_completed() and time.perf_counter() < until:
                _yield()
            work.wait()
    return values


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum of `tensor` over all ranks, of the same shape, differentiable."""
    if _is_local_only or not dist.is_initialized():
        return tensor
    total: Tensor = _Sum.apply(tensor)
    return total


@torch.no_grad()
def average_values(tensors: Sequence[Tensor]) -> None:
    """Replace tensors, of any types, by their means over ranks; those that are equal keep every bit."""
    if _is_local_only or not tensors or not dist.is_initialized():
        return
    values = torch.cat([tensor.flatten().double() for tensor in tensors])
    means = _add_up(values, _statistics) / dist.get_world_size()
    chunks = torch.split(means, [tensor.numel() for tensor in tensors])
    for tensor, chunk in zip(tensors, chunks, strict=True):
        tensor.copy_(chunk.view_as(tensor))


@contextlib.contextmanager
def local_only() -> Iterator[None]:
    """Make `sum_over_ranks` return this rank's own value, for work that may fail on one rank."""
    global _is_local_only
    _is_local_only = True
    try:
        yield
    finally:
        _is_local_only = False


_is_local_only = False


def separate_statistics(group: Any) -> None:
    """Send batch norm's sums through `group`; None: through the group of all else.

    A communicator of NCCL carries one collective at a time. On that of DDP's gradients each layer
    of the backward pass would wait for the buckets that are under way.
    """
    global _statistics
    _statistics = group  # not kept by the modules: the average is a deep copy of the network


_statistics: Any = None


def gather_statistics(values: Tensor) -> Tensor:
    """Return the `values` (n,) of all ranks, as (ranks, n), without a gradient."""
    if _is_local_only or not dist.is_initialized():
        return values.unsqueeze(0)
    gathered = values.new_empty(dist.get_world_size() * len(values))
    with record_function("all-gather"):
        dist.all_gather_into_tensor(gathered, values, group=_statistics)
    return gathered.view(-1, len(values))


def sum_statistics(values: Tensor) -> Tensor:
    """Add up `values` over all ranks in place, without a gradient, and return them."""
    if _is_local_only or not dist.is_initialized():
        return values
    return _add_up(values, _statistics)
