"""A process's way into the process group, and out of it."""

from __future__ import annotations

import gc
import os
import signal
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from unet_ddp.distributed.device import pick_device, usable_cores
from unet_ddp.distributed.stop_signal import die_with_parent
from unet_ddp.distributed.world import World


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
    mine = pick_device(device, local_rank, local_size)
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    if local_size > 1 and os.environ.get("OMP_NUM_THREADS", "1") == "1":
        torch.set_num_threads(
            max(1, usable_cores() // local_size)
        )  # torchrun says 1, whatever there is
    if "RANK" not in os.environ:
        return World(device=mine)
    die_with_parent(
        signal.SIGTERM
    )  # orphans would train on and hold the folder: they save and stop
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
    return World(rank, size, local_rank, local_size, mine, store, _peers())


def _peers() -> tuple[int, ...]:
    """Process numbers of the other ranks on this machine, for the time when one has died."""
    me = (socket.gethostname(), os.getpid())
    found: list[tuple[str, int]] = [me] * dist.get_world_size()
    dist.all_gather_object(found, me)
    return tuple(number for host, number in found if host == me[0] and number != me[1])


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
