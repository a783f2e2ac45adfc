"""Processes whose imports are paid once: a pool that forms worlds of any size, and whole programs."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import multiprocessing as mp

ROOT = Path(__file__).parent.parent
TRAIN, PREDICT = str(ROOT / "train.py"), str(ROOT / "predict.py")
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
LIMIT = 300  # seconds for one job, on a slow and busy machine too: a hang is a failure, not a wait
HEAVY = [
    "tests.jobs",
    "unet_ddp.commands.train",
    "torch._dynamo",  # by DistributedDataParallel
    "torch.utils.tensorboard",
    "albumentations",
    "tyro",
    "unet_ddp.extras.report.charts",  # matplotlib
]


def warm_context() -> Any:
    """Return a context whose processes begin with what a run imports: one server pays the seconds."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    return context


class Ranks:
    """A pool of up to `most` processes that form worlds of any size."""

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self.workers: list[tuple[Any, Connection]] = []

    def run(self, size: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `job(*args)` returns on each of `size` ranks; it may join their world."""
        while len(self.workers) < size:
            self._add()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        crew = self.workers[:size]
        for rank, (_, pipe) in enumerate(crew):
            pipe.send((rank, size, store.port, job, args))
        outcomes = []
        for rank, (_, pipe) in enumerate(crew):
            if not pipe.poll(LIMIT):
                self.close()
                raise AssertionError(f"rank {rank} of {size} does not answer in {LIMIT} s")
            outcomes.append(pipe.recv())
        failures = [text for is_ok, text in outcomes if not is_ok]
        if failures:
            raise AssertionError("\n".join(failures))
        return [value for _, value in outcomes]

    def _add(self) -> None:
        context = warm_context()
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=False)
        process.start()
        there.close()
        self.workers.append((process, here))

    def close(self) -> None:
        for _, pipe in self.workers:  # all at once: to end takes them some tenths of a second
            pipe.close()
        for process, _ in self.workers:
            process.join(5)
            process.kill()
        self.workers = []


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # a run collects garbage at its end: not among all that has been imported
    while True:
        try:
            rank, size, port, job, args = pipe.recv()
        except EOFError:
            return
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            OMP_NUM_THREADS="2",  # keeps the one thread set above
        )
        try:
            pipe.send((True, job(*args)))
        except BaseException:
            pipe.send((False, f"rank {rank} of {size}: {traceback.format_exc()}"))


def warm_python(folder: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGV` in `folder`, in a new process that has its imports already.

    No report is written, as by `call_train`, but by ranks of torchrun.
    Ranks of `--nproc` are forked from it and have them too; those of torchrun import them again.
    """
    with tempfile.TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("out", "err")]
        process = warm_context().Process(
            target=_run_program, args=(folder, argv, {**os.environ, **environment}, streams)
        )
        process.start()
        process.join(LIMIT)
        out, err = (path.read_text() if path.exists() else "" for path in streams)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(argv), LIMIT, out, err)
        return subprocess.CompletedProcess(list(argv), process.exitcode, out, err)


def _run_program(
    folder: Path, argv: tuple[str, ...], environment: dict[str, str], streams: list[Path]
) -> None:
    gc.freeze()  # as in _serve
    torch.set_num_threads(1)
    hear_interrupts()
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)  # as at a start
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    mp.start_processes = functools.partial(_forked, mp.start_processes)
    mock.patch("unet_ddp.extras.report.write.write_reports").start()
    if argv[0] == "-m":
        sys.argv = list(argv[1:])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")


def _forked(start: Callable[..., Any], *args: Any, **how: Any) -> Any:
    return start(*args, **{**how, "start_method": "fork"})


def python(folder: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGV` in `folder`, from the interpreter's start."""
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """Undo what a shell does to background jobs: they ignore SIGINT, and so does what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def call_main(module: str, argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run a program's `main(argv)` in `folder`; return its exit status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = importlib.import_module(module).main(argv) or 0
    except SystemExit as stop:
        status = stop.code or 0
    finally:
        os.chdir(before)
    return status, out.getvalue(), err.getvalue()


def call_train(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py without its report, which takes half of a short run."""
    with mock.patch("unet_ddp.extras.report.write.write_reports"):
        return call_main("train", argv, folder)
