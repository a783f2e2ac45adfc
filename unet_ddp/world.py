"""The processes of a run: who I am, which device is mine, what we sum, how we fail.

The only file that imports torch.distributed and torch.nn.parallel. A world of one that was
started as plain ``python train.py`` has no process group; every function here is then the
identity, and no caller has to know.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unet_ddp.errors import UserError

Result = TypeVar("Result")
Config = TypeVar("Config")
Story = Callable[[Config, "World"], None]

FAULT, MISTAKE = 1, 2  # exit statuses: ours, the user's


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

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def cores(self) -> int:
        """Processor cores for this process alone, at least one."""
        return max(1, _cores() // self.local_size)

    def on_main(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on the main process, on every process.

        The others wait meanwhile. What it raises is raised on every process alike, so that
        none waits for ever.
        """
        if self.store is None:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = work()
            except Exception as error:
                outcome[1] = error
                dist.broadcast_object_list([None, _sendable(error)], src=0)
                raise
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        result: Result = outcome[0]
        return result

    def replicate(self, network: nn.Module, example: Tensor) -> nn.Module:
        """`network` such that its gradients are the mean over ranks: DDP, or itself alone.

        Buffers are not broadcast: batch norm computes them from the whole world's batch, so
        they are equal already.

        Args:
            example: an input of the network, of any values, on its device.
        """
        if self.store is None:
            return network
        replica = DistributedDataParallel(
            network,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **_UNSYNCED,
        )
        _settle_buckets(replica, example)
        return replica


def _settle_buckets(replica: DistributedDataParallel, example: Tensor) -> None:
    """Let DDP arrange its buckets now, by a backward pass whose gradients are thrown away.

    After its first backward pass DDP arranges them anew, in the order in which gradients came,
    and where a gradient lies decides in which order a ring of three or more ranks adds it up.
    Without this, the step after a resume would differ in the last bit from the undisturbed run.
    """
    buffers = [buffer.clone() for buffer in replica.buffers()]
    replica(example).sum().backward()
    replica.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(replica.buffers(), buffers, strict=True):
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
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all ranks, of the same shape, differentiable."""
    if not dist.is_initialized():
        return tensor
    total: Tensor = _Sum.apply(tensor)
    return total


# -- joining and leaving -------------------------------------------------------------------


def run(
    story: Story[Config], config: Config, *, nproc: int, device: str, timeout: float
) -> NoReturn:
    """Tell `story` on every process of the world and exit with its status.

    0 when it ended well; 2 after a UserError, which is said in one line and once; 1 after
    any other exception, with the traceback of the rank that failed first and no other.

    Args:
        story: a module-level function of the configuration and the world.
        nproc: processes to start here; 1 where torchrun has started them, or for one.
        device: auto, cpu or cuda.
        timeout: seconds that a process waits in a collective.
    """
    if nproc > 1:
        sys.exit(_spawn(story, config, nproc, device, timeout))
    sys.exit(_tell(story, config, device, timeout))


def _tell(story: Story[Config], config: Config, device: str, timeout: float) -> int:
    try:
        world = join(device, timeout)
    except UserError as error:
        fail_early(error)
    try:
        story(config, world)
        leave(world)
    except BaseException as error:
        status = _report(error, world)
        # DDP objects live on in the frames of the traceback; the group must outlive them.
        traceback.clear_frames(error.__traceback__)
        leave(world, failed=True)
        return status
    return 0


def fail_early(error: UserError) -> NoReturn:
    """Exit with a mistake that every rank finds by itself before there is a group."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"error: {error}", file=sys.stderr, flush=True)
    else:
        # torchrun ends all ranks as soon as one ends: let the main one speak first.
        time.sleep(5)
    sys.exit(MISTAKE)


def join(device: str, timeout: float) -> World:
    """This process's place in the world, from the variables that torchrun sets.

    Raises:
        UserError: a GPU was asked for, or more of them, than there are.
    """
    rank, size, local_rank, local_size = (
        int(os.environ.get(name, default))
        for name, default in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")),
        )
    )
    mine = pick_device(device, local_rank)
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    if local_size > 1 and os.environ.get("OMP_NUM_THREADS", "1") == "1":
        torch.set_num_threads(max(1, _cores() // local_size))  # torchrun says 1, whatever there is
    if "RANK" not in os.environ:
        return World(device=mine)
    patience = timedelta(seconds=timeout)
    store = _store(rank, size, local_size, patience)
    dist.init_process_group(
        "nccl" if mine.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=patience,
        device_id=mine if mine.type == "cuda" else None,
    )
    return World(rank, size, local_rank, local_size, mine, store)


def pick_device(device: str, local_rank: int = 0) -> torch.device:
    """The device for this process.

    Raises:
        UserError: there is no such GPU.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU on this machine; try --device cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError(
            f"more processes than the {count} GPU(s) of this machine: start {count}, "
            "or give --device cpu"
        )
    return torch.device("cuda", local_rank)


def _store(rank: int, size: int, local_size: int, timeout: timedelta) -> dist.Store:
    """The store of this attempt.

    torchrun's restarted workers get the store of the workers before them, and would read
    their stale addresses there (pytorch issue 135712): each attempt has keys of its own. On
    several machines the attempts' numbers can differ, so there the keys stay plain.
    """
    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size=size,
        is_master=rank == 0 and not agent_has_it,
        timeout=timeout,
        multi_tenant=True,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if local_size == size else "0"
    return dist.PrefixStore(f"attempt_{attempt}", store)


def leave(world: World, *, failed: bool = False) -> None:
    """End the process group.

    gloo aborts the process if a DDP object outlives its group, so those go first; the
    barrier keeps the store's host alive until the last rank is through.
    """
    if world.store is None or not dist.is_initialized():
        return
    gc.collect()
    if failed and world.device.type == "cuda":
        # Destroying waits for collectives that a dead peer will never join; aborting does not.
        dist.distributed_c10d._abort_process_group()
        return
    if not failed:
        dist.barrier()
    dist.destroy_process_group()


def _report(error: BaseException, world: World) -> int:
    """Say `error`, once for the whole world: the rank that failed first speaks.

    The others fail because it did, or for the same reason, and stay quiet.
    """
    status = _status(error)
    if world.store is not None:
        try:
            first = world.store.compare_set("failed", "", str(world.rank)).decode()
            if first != str(world.rank):
                world.store.wait(["said"], timedelta(seconds=5))
                return int(world.store.get("said"))
        except RuntimeError:  # the store's host is gone: speak rather than be silent
            pass
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    elif not isinstance(error, (KeyboardInterrupt, SystemExit)):
        where = f"rank {world.rank} of {world.size}: " if world.size > 1 else ""
        print(f"{where}{''.join(traceback.format_exception(error))}", file=sys.stderr, flush=True)
    if world.store is not None:
        with contextlib.suppress(RuntimeError):
            world.store.set("said", str(status))
    return status


def _status(error: BaseException) -> int:
    if isinstance(error, UserError):
        return MISTAKE
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAULT
    return FAULT


def _sendable(error: Exception) -> Exception:
    return error if isinstance(error, UserError) else RuntimeError(repr(error))


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- --nproc N -----------------------------------------------------------------------------


def _spawn(story: Story[Config], config: Config, nproc: int, device: str, timeout: float) -> int:
    """Start `nproc` processes on this machine, wait, and return their status."""
    from torch import multiprocessing as mp

    host = "127.0.0.1"
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # any free port
    try:
        mp.start_processes(  # type: ignore[no-untyped-call]
            _child,
            args=(story, config, nproc, host, store.port, device, timeout),
            nprocs=nproc,
            start_method="spawn",
        )
    except mp.ProcessExitedException as failure:
        if failure.signal_name is not None:
            print(
                f"error: process {failure.error_index} was ended by {failure.signal_name}",
                file=sys.stderr,
            )
            return FAULT
        return failure.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _child(
    rank: int,
    story: Story[Config],
    config: Config,
    nproc: int,
    host: str,
    port: int,
    device: str,
    timeout: float,
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the parent hosts it
    )
    sys.exit(_tell(story, config, device, timeout))
