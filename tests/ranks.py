"""A pool of processes that form worlds of any size, so that start-ups are paid once."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing as mp

LIMIT = 120  # seconds for one job: a hang is a failure, not a wait


class Ranks:
    """Up to `most` processes; `run` lets the first of them work together."""

    def __init__(self, most: int = 4) -> None:
        self.most = most
        self.workers: list[tuple[Any, Connection]] = []

    def run(self, size: int, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What `job(*args)` returns on each of `size` ranks; it may join a world of that size."""
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
        failures = [text for is_sound, text in outcomes if not is_sound]
        if failures:
            raise AssertionError("\n".join(failures))
        return [value for _, value in outcomes]

    def _add(self) -> None:
        context = mp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=False)
        process.start()
        there.close()
        self.workers.append((process, here))

    def close(self) -> None:
        for process, pipe in self.workers:
            with contextlib.suppress(OSError):
                pipe.close()
            process.join(5)
            process.kill()
        self.workers = []


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
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


def call_main(module: str, argv: list[str], folder: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a program's `main(argv)`, run in `folder`."""
    import importlib

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
