"""Train from Python: `unet_ddp.train(...)`, and the run that it returns."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import IO, Any
from uuid import uuid4

import numpy as np
import torch

from unet_ddp.cli import parse_train
from unet_ddp.cli.python import refuse_twice, to_words
from unet_ddp.cli.signature import sign
from unet_ddp.commands import train as command
from unet_ddp.commands.data_arguments import placing_data, without_objects
from unet_ddp.commands.trained_run import TrainedRun
from unet_ddp.config import TrainConfig
from unet_ddp.distributed.defaults import usual_defaults
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.error_line import MARK
from unet_ddp.distributed.join import MISTAKE
from unet_ddp.distributed.launch import FAULT, Entrypoint, run_on_all_ranks
from unet_ddp.distributed.stop_signal import SIGNALS, dying_with_parent
from unet_ddp.distributed.world import World
from unet_ddp.errors import BAR, RunError, UserError, hides_bars
from unet_ddp.files import handling, read_errors
from unet_ddp.files.output import json_lines
from unet_ddp.plugins import is_own
from unet_ddp.training.own_functions import setting_back

_INTERRUPTED = 128 + signal.SIGINT
_NOTEBOOK = 120  # columns of a bar there


def train(**settings: Any) -> TrainedRun:
    """Train a U-Net, as train.py does, and return its run.

    The run trains in this process, so a debugger works. With `nproc=4` it trains in four new processes; this one
    shows what they print, and Ctrl-C stops them. A script that torchrun has started trains on torchrun's ranks.
    There a mistake is printed once and ends all of them.

    Example:
        run = unet_ddp.train(images="imgs", masks="masks", epochs=2, exp_name="first")
        print(run.path, run.metrics[-1]["validation_score"])
        run.predictor()("new.jpg").to_image().save("mask.png")

    Args:
        **settings: flags of train.py with underscores, e.g. `batch_size=8`, `crop_size=(256, 256)` or `resume=True`.
            A setting that is None counts as left out. A part of your own is "module:Name", or the object itself.
            `images` and `masks` may also be sequences of arrays, or `images` a data set of (name, image, mask).

    Raises:
        UserError: the settings or the data have a mistake.
        RunError: the run failed by nobody's mistake, such as a full disk.
        KeyboardInterrupt: after Ctrl-C, once the run is saved; `resume=True` continues it.
        SystemExit: another signal has stopped the run, or it failed on ranks that torchrun started.
    """
    began = time.monotonic()  # this process may have worked for hours before
    find_folder = lambda: _read(without_objects(settings))[1].folder  # noqa: E731
    with _as_in_a_new_process(), read_errors(), placing_data(settings, find_folder) as placed:
        argv, config = _read(placed)
        if "RANK" not in os.environ and config.launch.nproc > 1:
            status = _train_in_others(argv)
        else:
            with json_lines() if config.launch.log == "json" else nullcontext():
                status = _train_here(partial(command.train, began=began), config)
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        sys.exit(status)
    model = config.network.model
    return TrainedRun(config.folder, model if is_own("networks", model) else None)


train.__signature__ = sign(TrainedRun)  # type: ignore[attr-defined]  # train_stub.pyi is of the same


def _read(settings: Mapping[str, object]) -> tuple[list[str], TrainConfig]:
    """Return settings as the words of a command line, and as it reads them."""
    refuse_twice(settings)
    argv = [word for name, value in settings.items() for word in to_words(name, value)]
    return argv, parse_train(argv, prog="unet_ddp.train")


def _train_here(entrypoint: Entrypoint[TrainConfig], config: TrainConfig) -> int:
    """Return the exit status of the run, of all ranks under torchrun: there the first that fails says why."""
    if threading.current_thread() is not threading.main_thread():
        raise UserError(
            "train() in a thread: signals, as Ctrl-C, reach the main thread alone; call it there, or have it "
            "train in other processes by nproc=2"
        )
    launch = config.launch
    if "RANK" not in os.environ:
        return entrypoint(config, World(device=pick_device(launch.device)))
    try:
        run_on_all_ranks(
            entrypoint, config, nproc=launch.nproc, device=launch.device, timeout=launch.timeout
        )
    except SystemExit as end:
        return int(end.code or 0)


@contextmanager
def _as_in_a_new_process() -> Iterator[None]:
    """Context in which torch computes as no cell before has asked; afterwards all is as it was.

    The run seeds the random numbers, and a search that draws its settings from them would draw the same ones after
    each run.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with usual_defaults(), setting_back():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


# -- other processes -----------------------------------------------------------------------


def _train_in_others(argv: list[str]) -> int:
    """Start the ranks in a new program, pass on what they print, and return its exit status.

    The caller's script is not run again, as multiprocessing's spawn would: it needs no `__main__` guard.

    Raises:
        UserError: the ranks have found a mistake.
        RunError: the run failed by nobody's mistake.
    """
    mistakes: list[str] = []
    mark = uuid4().hex  # a user's code prints no line that begins with it
    begins = mark + "error: "

    def show_unless_error(line: str, file: Any) -> None:
        if line.startswith(begins):
            mistakes.append(line.removeprefix(begins).rstrip())
        else:
            print(line, end="", file=file, flush=True)

    with _start(argv, mark) as child, _passing_on(child):
        threads = [
            _follow(child.stdout, partial(show_unless_error, file=sys.stdout)),
            _follow(child.stderr, partial(show_unless_error, file=sys.stderr)),
        ]
        try:
            status = _wait(child)
        finally:
            child.terminate()
        for thread in threads:
            thread.join()
    if mistakes and status in (MISTAKE, FAULT):
        said = "; ".join(mistakes)
        raise UserError(said) if status == MISTAKE else RunError(said)
    for said in mistakes:  # of what the user's code has started, and the run goes on without
        print(f"error: {said}", file=sys.stderr)
    if status == FAULT:
        raise RunError("a process of the run failed; its traceback is above")
    return status if status >= 0 else 128 - status


def _start(argv: list[str], mark: str) -> subprocess.Popen[bytes]:
    """Return the program that starts the ranks: that of the command line.

    Where bars are seen it has one stream for its lines and its bar, which come in order.
    """
    folders = os.pathsep.join(filter(None, sys.path))  # a part of the user's is found there, too
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHONUNBUFFERED": "1", MARK: mark}
    shows_bar = hides_bars() is False or all(
        stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)
    )
    if shows_bar:
        columns = shutil.get_terminal_size((_NOTEBOOK, 0)).columns
        environment |= {BAR: "1", "COLUMNS": str(columns)}
    return subprocess.Popen(
        [sys.executable, "-m", "unet_ddp", "train", *argv],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if shows_bar else subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to this process alone, which passes it on once
        preexec_fn=dying_with_parent(signal.SIGTERM),  # a killed notebook
    )


def _passing_on(child: subprocess.Popen[bytes]) -> AbstractContextManager[None]:
    """Return a context in which signals to this process go to a child; for Ctrl-C see `_wait`."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        return nullcontext()
    numbers = [number for number in SIGNALS if number != signal.SIGINT]
    return handling(lambda number, frame: child.send_signal(number), *numbers)


def _follow(stream: IO[bytes] | None, show: Callable[[str], object]) -> threading.Thread:
    """Return a thread that shows each line of a stream, if there is one, until its end."""

    def read() -> None:
        if stream is not None:
            # A bar's line ends by a carriage return, which stays one.
            with io.TextIOWrapper(stream, "utf-8", "replace", newline="") as lines:
                for line in lines:
                    show(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a process, to which each Ctrl-C is passed on."""
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
