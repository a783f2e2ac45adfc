"""Telling a story on every process of the world, and failing together."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch.distributed as dist

from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import SIGNALS
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError, one_line
from unet_ddp.files import is_alive

Config = TypeVar("Config")
Entrypoint = Callable[[Config, World], int]
"""What a process does in the world; its exit status, 0 when it ended well."""

FAULT, MISTAKE = 1, 2  # exit statuses: ours, the user's


def run_on_all_ranks(
    entrypoint: Entrypoint[Config], config: Config, *, nproc: int, device: str, timeout: float
) -> NoReturn:
    """Tell `entrypoint` on every process of the world and exit with its status.

    The story's own, 0 when it ended well; 2 after a UserError and 1 after a RunError, each said in
    one line and once; 1 after any other exception, with the traceback of the rank that failed
    first and no other.

    Args:
        entrypoint: a module-level function of the configuration and the world.
        nproc: processes to start here; 1 where torchrun has started them, or for one.
        device: auto, cpu or cuda.
        timeout: seconds that a process waits in a collective.
    """
    if nproc > 1:
        if "LOCAL_RANK" in os.environ:
            exit_with_error(
                UserError("--nproc under torchrun: it starts the processes; leave --nproc out")
            )
        sys.exit(_spawn(entrypoint, config, nproc, device, timeout))
    sys.exit(_run_entrypoint(entrypoint, config, device, timeout))


def _run_entrypoint(
    entrypoint: Entrypoint[Config], config: Config, device: str, timeout: float
) -> int:
    try:
        world = join(device, timeout)
    except UserError as error:
        exit_with_error(error)
    try:
        status = entrypoint(config, world)
        leave(world)
    except BaseException as error:
        status = _report(error, world)
        _clear_frames(error)
        leave(world, failed=True)
    return status


def _clear_frames(error: BaseException | None) -> None:
    """DDP objects live on in the frames of tracebacks; the group must outlive them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def exit_with_error(error: UserError) -> NoReturn:
    """Exit with a mistake that every rank finds by itself before there is a group."""
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
    else:
        # torchrun ends all ranks as soon as one ends: let the main one speak first.
        time.sleep(5)
    sys.exit(MISTAKE)


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
    told = explain_error(error, world)
    if told is not None:
        print(f"error: {one_line(told)}", file=sys.stderr, flush=True)
    elif not isinstance(error, (KeyboardInterrupt, SystemExit)):
        where = f"rank {world.rank} of {world.size}: " if world.size > 1 else ""
        print(f"{where}{''.join(traceback.format_exception(error))}", file=sys.stderr, flush=True)
    if world.store is not None:
        with contextlib.suppress(RuntimeError):
            world.store.set("said", str(status))
    return status


def explain_error(error: BaseException, world: World) -> str | None:
    """One line for what is no fault in the code; None where the traceback is wanted."""
    if isinstance(error, (UserError, RunError)):
        return str(error)
    reason = str(error)
    if isinstance(error, MemoryError) or "Caught MemoryError" in reason:
        return (
            f"rank {world.rank} of {world.size}: the machine is out of memory ({_last_line(reason)}); "
            "give fewer --workers, a smaller --batch-size with --accumulate in its place, or a smaller "
            "--scale; a run that had begun goes on by --resume"
        )
    if not isinstance(error, RuntimeError):
        return None
    dead = [str(process) for process in world.peers if not is_alive(process)]
    if dead:
        return (
            f"rank {world.rank} of {world.size} can't go on: process {' and '.join(dead)} of this "
            "run has died (out of memory, or killed); go on by --resume"
        )
    if "DataLoader timed out" in reason:
        return (
            f"rank {world.rank} of {world.size}: a reading process hangs ({reason.splitlines()[0]}): the "
            "file system does not answer, or a file takes for ever; try --workers 0, or a longer "
            "--timeout where storage is slow; go on by --resume"
        )
    if "timed out" in reason.lower() or "timeout" in reason.lower():
        where = [
            f.name for f in traceback.extract_tb(error.__traceback__) if "torch" not in f.filename
        ]
        return (
            f"rank {world.rank} of {world.size} has waited too long for the others, in "
            f"{' > '.join(where[-3:])}: one of them hangs or is far slower; see --timeout, and go "
            "on by --resume"
        )
    if "unable to allocate shared memory" in reason:
        return (
            f"a reading process of rank {world.rank} finds no room for a batch ({_last_line(reason)}): "
            "the machine's shared memory is full; give --workers 0, a smaller batch or less of it to "
            "--cache ram by --cache-limit, and in a container a larger --shm-size; go on by --resume"
        )
    if "DataLoader worker" in reason and ("killed by signal" in reason or "exited" in reason):
        return (
            f"a reading process of rank {world.rank} has died ({reason.splitlines()[0]}): the "
            "machine, or its shared memory, is out of memory; give fewer --workers, or 0, and in a "
            "container a larger --shm-size; go on by --resume"
        )
    return None


def _last_line(text: str) -> str:
    """What a message, or a traceback in it, ends with."""
    return (text.strip().splitlines() or ["a MemoryError"])[-1]


def _status(error: BaseException) -> int:
    if isinstance(error, UserError):
        return MISTAKE
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAULT
    return FAULT


# -- --nproc N -----------------------------------------------------------------------------


def _spawn(
    entrypoint: Entrypoint[Config], config: Config, nproc: int, device: str, timeout: float
) -> int:
    """Start `nproc` processes on this machine, wait, and return their status."""
    from torch import multiprocessing as mp

    host = "127.0.0.1"
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # any free port
    children = mp.start_processes(  # type: ignore[no-untyped-call]
        _child,
        args=(entrypoint, config, nproc, host, store.port, device, timeout),
        nprocs=nproc,
        start_method="spawn",
        join=False,
    )

    def pass_on(number: int, frame: Any) -> None:
        for process in children.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    try:
        while not children.join():
            pass
    except mp.ProcessExitedException as failure:
        if failure.signal_name is not None:
            print(
                f"error: process {failure.error_index} was ended by {failure.signal_name}",
                file=sys.stderr,
            )
            return FAULT
        return failure.exit_code
    return 0


def _child(
    rank: int,
    entrypoint: Entrypoint[Config],
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
    sys.exit(_run_entrypoint(entrypoint, config, device, timeout))
