"""Run a program on every process of the world; all of them fail together, with one message."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, TypeVar

from unet_ddp.distributed.elastic import end_silent_connections
from unet_ddp.distributed.failures import explain_error
from unet_ddp.distributed.join import MISTAKE, exit_with_error, host_store, join, leave, print_error
from unet_ddp.distributed.stop_signal import SIGNALS
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError, hide_secrets
from unet_ddp.files import read_errors, temporary_folder
from unet_ddp.files.output import emit, survive_lost_output, use_json, uses_json

if TYPE_CHECKING:
    from torch.multiprocessing import ProcessExitedException

Config = TypeVar("Config")
Parsed = TypeVar("Parsed")
Entrypoint = Callable[[Config, World], int]
"""A program of one process in the world; it returns its exit status, 0 for success."""

_SAY_WITHIN = 5  # seconds
FAULT = 1  # exit status
_SIGNAL_NAMES = {128 + each: each.name for each in signal.Signals}  # by exit status


def parse_program(parse: Callable[..., Parsed], argv: Sequence[str] | None, name: str) -> Parsed:
    """Return what `parse` makes of a program's command line: sys.argv, or `argv` of a command.

    A mistake in it is said once, and ends all ranks.
    """
    survive_lost_output()
    prog = f"{name}.py" if argv is None else f"python -m unet_ddp {name}"
    words = sys.argv[1:] if argv is None else argv
    if "--log=json" in words or ("--log", "json") in pairwise(words):  # also where it has mistakes
        use_json()
    try:
        return parse(words, prog=prog)
    except UserError as error:
        exit_with_error(error)


def run_on_all_ranks(
    entrypoint: Entrypoint[Config], config: Config, *, nproc: int, device: str, timeout: float
) -> NoReturn:
    """Run `entrypoint` on every process of the world and exit with its status.

    The status is 2 after a UserError and 1 after a RunError, each printed in one line and once;
    and 1 after any other exception, with the traceback of the rank that failed first.

    Args:
        entrypoint: a module-level function.
        config: its first argument.
        nproc: processes to start here; 1 under torchrun, which has started them.
        device: auto, cpu or cuda.
        timeout: seconds that a process waits in a collective.
    """
    if nproc > 1:
        if "LOCAL_RANK" in os.environ:
            said = "--nproc under torchrun: it starts the processes; leave --nproc out"
            exit_with_error(UserError(said))
        if not hasattr(signal, "pthread_sigmask"):
            exit_with_error(UserError(f"--nproc {nproc}: not on Windows; use one process"))
        run = partial(run_on_all_ranks, entrypoint, config, nproc=1, device=device, timeout=timeout)
        sys.exit(_spawn(run, nproc))
    try:
        world = join(device, timeout)
    except UserError as error:
        exit_with_error(error)
    except RunError as error:  # of this rank alone, about the address that it was given
        print_error(error)
        sys.exit(MISTAKE)
    try:
        status = read_errors()(entrypoint)(config, world)
        leave(world)
    except BaseException as error:
        status = _report_error(error, world)
        _clear_frames(error)
        leave(world, failed=True)
    if world.is_main:
        emit("end", exit_status=status, signal=_SIGNAL_NAMES.get(status))
    sys.exit(status)


def _clear_frames(error: BaseException | None) -> None:
    """Free the DDP objects that a traceback's frames keep: the group must outlive them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _report_error(error: BaseException, world: World) -> int:
    """Print `error` once for the whole world, on the rank that failed first; return the status.

    The other ranks fail because of it, or for the same reason, and print nothing.
    """
    status, store = exit_status_of(error), world.store
    if store is None:
        _print(error, world)
        return status
    patience = timedelta(seconds=_SAY_WITHIN)
    end_silent_connections(_SAY_WITHIN)  # the store's host may be what is lost
    is_first = True
    with contextlib.suppress(RuntimeError):  # the store's host is gone: print rather than be silent
        if world.first_failed() != world.rank:
            store.wait(["printed"], patience)
            status, is_first = int(store.get("printed")), False
    if is_first:
        _print(error, world)
    with contextlib.suppress(RuntimeError):  # a rank that hears of nothing
        if is_first:
            store.set("printed", str(status))
        if status == MISTAKE:
            store.set(f"heard {world.rank}", "")
            if world.is_main:  # the store is its own, or its launcher's, and may end with it
                store.wait([f"heard {rank}" for rank in range(world.size)], patience)
    return status


def _print(error: BaseException, world: World) -> None:
    """Print the line for an error, or its traceback; nothing for one that only ends the program."""
    message = explain_error(error, world)
    if message is not None:
        print_error(error if isinstance(error, UserError) else message, world.store)
    elif not isinstance(error, (KeyboardInterrupt, SystemExit)):
        text = "".join(traceback.format_exception(error))
        if world.size > 1:
            text = f"rank {world.rank} of {world.size}: {text}"
        if uses_json():
            emit("error", text=repr(error), exit_status=FAULT, traceback=text)
        else:
            print(hide_secrets(text), file=sys.stderr, flush=True)


def exit_status_of(error: BaseException) -> int:
    """Return the status with which a program ends that raises `error`."""
    if isinstance(error, UserError):
        return MISTAKE
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return FAULT


# -- --nproc N ------------------------------------------------------------------------------


def _spawn(run: Callable[[], NoReturn], nproc: int) -> int:
    """Start `nproc` processes on this machine, wait for them, and return their status."""
    from multiprocessing import resource_tracker

    from torch import multiprocessing as mp

    # It would warn of each rank that ends after the first; what was wrong is said in our own line.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    temporary_folder()  # torch writes the errors of processes there
    store = host_store()
    resource_tracker.ensure_running()  # its start would let SIGINT through again
    started, heard = list[int](), list[int]()

    def pass_on(number: int, frame: object) -> None:
        heard.append(number)
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    for number in handlers:  # now: the mask is the children's, other threads here still hear them
        if handlers[number] is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    given = run, nproc, store.port, uses_json()
    children = mp.start_processes(  # type: ignore[no-untyped-call]
        _run_child, args=given, nprocs=nproc, start_method="spawn", join=False
    )
    started += children.pids()
    for earlier in list(heard):
        pass_on(earlier, None)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        while not children.join():
            pass
    except mp.ProcessExitedException as failure:
        if heard:
            _end_program(handlers[signal.Signals(heard[0])], heard[0])
        return _status_of(failure, heard)
    return 0


def _end_program(handler: object, number: int) -> None:
    """Have the program's own handler of a signal end it, if it has one: its processes say nothing."""
    if callable(handler) and handler is not signal.default_int_handler:
        handler(number, None)


def _status_of(failure: ProcessExitedException, heard: Sequence[int]) -> int:
    """Return the status after the first process failed, and signals were heard; print by which one it was ended."""
    if failure.signal_name is None:
        return failure.exit_code
    if heard and failure.exit_code == -heard[0]:  # in the imports, where nothing hears it
        return 128 + heard[0]
    print_error(f"process {failure.error_index} was ended by {failure.signal_name}")
    return FAULT


def _run_child(
    rank: int, run: Callable[[], NoReturn], nproc: int, port: int, is_json: bool
) -> None:
    survive_lost_output()
    if is_json:
        use_json()
    for _, name in socket.if_nameindex():
        # gloo and NCCL would listen on the machine's address in its network.
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the parent hosts the store
        UNET_DDP_NPROC=str(nproc),
    )
    # Ctrl-C during the imports comes now; the terminal's and the parent's are two, so no exception.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    run()
