"""Join the process group of a run, and leave it."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from unet_ddp.distributed.device import pick_device, usable_cores
from unet_ddp.distributed.elastic import follow_launcher
from unet_ddp.distributed.error_line import error_line, show_error
from unet_ddp.distributed.hosts import agree_on_attempt, host_id, wait_for_port
from unet_ddp.distributed.stop_signal import die_with_parent
from unet_ddp.distributed.world import World, separate_statistics
from unet_ddp.errors import RunError, UserError, one_line
from unet_ddp.files.output import complain, without_stdout

MISTAKE = 2  # exit status
_SOON = timedelta(seconds=5)
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_CONNECT = timedelta(seconds=30)  # ranks may be that late, if they are not torchrun's
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REFUSED = "refused"  # said of a rank in place of its GPU


def join(device: str, timeout: float) -> World:
    """Return this process's place in the world, from the variables that torchrun sets.

    Args:
        device: auto, cpu or cuda.
        timeout: seconds that a process waits in a collective.

    Raises:
        UserError: a process has no GPU, or shares one, or a variable is missing or impossible.
        RunError: this rank can't reach the store.
    """
    if os.environ.keys().isdisjoint(_PLACE):
        return World(device=pick_device(device))
    rank, size, local_rank, local_size = read_place()
    chosen = pick_device(device, local_rank, local_size)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if local_size > 1 and os.environ.get("OMP_NUM_THREADS", "1") == "1":  # torchrun sets 1
        torch.set_num_threads(max(1, usable_cores() // local_size))
    die_with_parent(signal.SIGTERM)  # an orphan would train on and keep the folder locked
    patience = timedelta(seconds=timeout)
    store = _connect_store(rank, size, patience)
    _check_start(store, rank, size, chosen)
    hosts = _open_groups(store, rank, size, chosen, patience)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        follow_launcher(rank)
    return World(rank, size, local_rank, local_size, chosen, store, _find_peers(), hosts)


def _open_groups(
    store: dist.Store, rank: int, size: int, device: torch.device, patience: timedelta
) -> Any:
    """Open the groups of a run, and return that of the hosts beside GPUs; None if there is none."""
    # Its functions keep the group that there is at its import, by torch._dynamo: the group's threads
    # would outlive `leave`, and one that lets a tensor go at Python's end aborts a run that ended well.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.distributed.nn.functional")
    place: Any = {"store": store, "rank": rank, "world_size": size}
    if device.type == "cpu":
        with without_stdout():
            dist.init_process_group("gloo", timeout=patience, **place)
        separate_statistics(None)
        return None
    # NCCL's watchdog ends the process: gloo is to be first, whose error becomes one line.
    timeout = 2 * patience
    dist.init_process_group("nccl", timeout=timeout, device_id=device, **place)
    separate_statistics(dist.new_group(timeout=timeout))
    is_one_machine = size == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(size)  # not if assumed
    if is_one_machine or _all_reachable(store, rank, size):
        with without_stdout():
            return dist.new_group(backend="gloo", timeout=patience)
    return None


def exit_with_error(error: UserError) -> NoReturn:
    """Print a mistake that this rank found before there is a group, and exit on all ranks.

    The lowest rank that has one prints it: it may be on this host alone.
    """
    with contextlib.suppress(UserError, RunError, dist.DistError):  # the others do not come
        if "RANK" in os.environ:
            rank, size, _, _ = read_place()
            store = _connect_store(rank, size, _CONNECT)
            _end_together(store, rank, _tell(store, rank, size, _REFUSED), error)
    print_error(error)
    sys.exit(MISTAKE)


def _check_start(store: dist.Store, rank: int, size: int, device: torch.device) -> None:
    """Exit on every rank if one has made a mistake, or some have no GPU, or two one, which NCCL refuses."""
    gpu = ""
    if device.type == "cuda":
        gpu = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    found = _tell(store, rank, size, gpu)
    problem = _find_problem(found)
    if problem or _REFUSED in found:
        _end_together(store, rank, found, UserError(problem))


def _tell(store: dist.Store, rank: int, size: int, item: str) -> list[str]:
    """Return the items of all ranks; there is no group yet."""
    store.set(f"start {rank}", item)
    return [store.get(f"start {other}").decode() for other in range(size)]


def _end_together(store: dist.Store, rank: int, found: Sequence[str], error: UserError) -> NoReturn:
    """Print `error` on the first rank that has refused to start, else on rank 0, then exit on all.

    torchrun ends all ranks of a host as soon as one ends, and rank 0 may host the store.
    """
    first = found.index(_REFUSED) if _REFUSED in found else 0
    if rank == first:
        print_error(error, store)
    store.set(f"ended {rank}", "")
    waited = range(len(found)) if rank == 0 else [first]
    with contextlib.suppress(dist.DistError):
        store.wait([f"ended {other}" for other in waited], _SOON)
    sys.exit(MISTAKE)


def print_error(error: object, store: dist.Store | None = None) -> None:
    """Print an error's line at once; a mistake once for all attempts of the launcher that has the `store`.

    torchrun restarts its processes after a mistake, too, and ends with a report, which shows the line.
    """
    message, line = one_line(error), error_line(error)
    if report := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        moment = int(time.time())
        if isinstance(error, UserError):
            moment -= 1  # the report names the first failure, in seconds: not a rank that follows this one
        said = {"message": message, "extraInfo": {"timestamp": str(moment)}}
        with contextlib.suppress(OSError):
            Path(report).write_text(json.dumps({"message": said}), encoding="utf-8")
    launcher = getattr(store, "underlying_store", None)  # which outlives the attempt
    if launcher is not None and isinstance(error, UserError):
        with contextlib.suppress(dist.DistError):
            if launcher.add(line, 1) > 1:
                return
    show_error(error)


def _find_problem(gpus: list[str]) -> str | None:
    """Return the line for ranks whose GPUs can't train together; a CPU is an empty name."""
    with_gpu = [rank for rank, gpu in enumerate(gpus) if gpu]
    if with_gpu and "" in gpus:
        return (
            f"rank {with_gpu[0]} has a GPU, rank {gpus.index('')} has none: use --device cpu on every host, "
            "or hosts with GPUs alone"
        )
    for second in with_gpu:
        gpu = gpus[second]
        first = gpus.index(gpu)
        if first < second:
            return (
                f"ranks {first} and {second} have one GPU ({gpu}): start one process for each GPU, "
                "show each its own (srun --gpus-per-task=1), or use --device cpu"
            )
    return None


def _all_reachable(store: dist.Store, rank: int, size: int) -> bool:
    """Return whether gloo finds every rank by its machine's name, the same on every rank.

    Where a name does not resolve, or to the machine itself as 127.0.1.1 in Debian's /etc/hosts, gloo
    tells other machines an address that they can't reach.
    """
    is_found = "GLOO_SOCKET_IFNAME" in os.environ
    if not is_found:
        with contextlib.suppress(OSError):
            is_found = not socket.gethostbyname(socket.gethostname()).startswith("127.")
    store.set(f"found {rank}", str(int(is_found)))
    lost = [other for other in range(size) if store.get(f"found {other}") == b"0"]
    if lost and rank == 0:
        complain(
            f"rank {lost[0]}: its machine's name has no address for the others, so ranks agree "
            "through NCCL, which waits for the GPU; set GLOO_SOCKET_IFNAME, e.g. to eth0"
        )
    return not lost


def read_place() -> tuple[int, int, int, int]:
    """Return rank, size, local rank and local size from the variables, of which there is at least one.

    Raises:
        UserError: some of them are missing or impossible.
    """
    found = {name: os.environ[name] for name in _PLACE if name in os.environ}
    advice = f"start with torchrun or --nproc, which set them, or unset {', '.join(found)}"
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        first = next(iter(found))
        lack = "empty" if first in missing else f"not {', '.join(missing)}"
        raise UserError(f"{first} is set, but {lack}: {advice}")
    texts = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": found["WORLD_SIZE"], **found}
    texts["MASTER_PORT"] = os.environ["MASTER_PORT"]
    if all(map(str.isdecimal, texts.values())):
        rank, size, local_rank, local_size = (int(texts[name]) for name in _PLACE)
        is_port = int(texts["MASTER_PORT"]) < 1 << 16
        if is_port and rank < size and local_rank < local_size <= size:
            return rank, size, local_rank, local_size
    shown = " ".join(f"{name}={text}" for name, text in texts.items())
    raise UserError(f"{shown}: no place of a process, a rank is a number below its size: {advice}")


def _find_peers() -> tuple[int, ...]:
    """Return the process ids of the other ranks on this machine."""
    here, own = host_id(), os.getpid()
    found = [(here, own)] * dist.get_world_size()
    dist.all_gather_object(found, (here, own))
    return tuple(process for host, process in found if host == here and process != own)


def _connect_store(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Return the store of this attempt, whose keys no earlier attempt has.

    Raises:
        RunError: this rank does not find the store, or another rank does not come.
    """
    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_master = rank == 0 and not agent_has_it
    how: Any = {"world_size": size, "timeout": min(timeout, _CONNECT), "multi_tenant": True}
    try:
        if not is_master:
            wait_for_port(host, port, how["timeout"].total_seconds())
        store = dist.TCPStore(host, port, is_master=is_master, **how)
    except dist.DistError as error:
        reason = str(error).partition("\n")[0][:160]
        raise RunError(
            f"MASTER_ADDR={host} MASTER_PORT={port}: rank {rank} of {size} does not find the others there ({reason}); "
            "use the address of rank 0's host, which this host must reach, and a port that is free there, or unset "
            f"{', '.join(name for name in _PLACE if name in os.environ)} if this process is alone"
        ) from None
    store.set_timeout(timeout)
    if not agent_has_it:  # rank 0 hosts it: it is as new as the attempt
        return store
    return dist.PrefixStore(agree_on_attempt(store, rank, size, timeout.total_seconds()), store)


def host_store() -> dist.TCPStore:
    """Return a store on a free port of 127.0.0.1: it has no password, and torch's listens everywhere.

    Raises:
        UserError: processes can't reach each other there; torch would wait for minutes.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as trial:
            socket.create_connection(trial.getsockname(), _SOON.total_seconds()).close()
    except OSError as error:
        raise UserError(
            f"processes of this machine can't reach each other at 127.0.0.1 ({error.strerror or error}): turn its "
            "loopback on (ip link set lo up), or use one process"
        ) from None
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    how: Any = {"is_master": True, "wait_for_workers": False}
    return dist.TCPStore("127.0.0.1", port, master_listen_fd=listener.detach(), **how)


def leave(world: World, *, failed: bool = False) -> None:
    """Destroy the process group.

    gloo aborts the process if a DDP object outlives its group, so those go first; the barrier
    keeps the store's host alive until the last rank has left.
    """
    if world.store is None or not dist.is_initialized():
        return
    gc.collect()
    if failed and world.device.type == "cuda":
        # Destroying waits for collectives that a dead peer never joins; aborting does not. It is
        # private to torch: where it is gone or fails, the process ends with its groups as they are.
        with contextlib.suppress(Exception):
            dist.distributed_c10d._abort_process_group()
        return
    if not failed:
        world.on_main(lambda: None)  # which may still put files, for longer than --timeout
        dist.barrier()
    dist.destroy_process_group()
