"""How long this process's threads wait for a core, and what is said of it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable

import pytest
import torch

from unet_ddp.runs import core_wait
from unet_ddp.runs.core_wait import CoreWait, read_wait


def compute_on(processor: int, seconds: float) -> None:
    """Use a core for some seconds, without Python's lock."""
    os.sched_setaffinity(0, {processor})  # of this thread
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 20_000)


@pytest.mark.skipif(not core_wait.THREADS.exists(), reason="only Linux tells it")
def test_two_threads_on_one_core_wait_for_it() -> None:
    processor, before = min(os.sched_getaffinity(0)), read_wait()
    threads = [threading.Thread(target=compute_on, args=(processor, 0.2)) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    waited = read_wait() - before  # while both live: what ended threads have waited is not kept
    for thread in threads:
        thread.join()
    assert waited > 0.05, "of 0.2 s, each thread has waited about half"


def take_steps(
    monkeypatch: pytest.MonkeyPatch, *, threads: int, wait: Callable[[float], float], until: int
) -> list[str]:
    """Return what is said in steps of a second until then; `wait` has the seconds by that of the clock."""
    said = list[str]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    steps = CoreWait(said.append)
    for now in range(100, until):
        monkeypatch.setattr(core_wait, "read_wait", lambda now=now: wait(float(now)))
        steps.step(float(now))
    return said


@pytest.mark.parametrize(
    ("threads", "share", "seconds", "fewer"),
    [(2, 0.9, "9.0", 1), (8, 1.2, "12.0", 7), (8, 3.4, "34.0", 5), (4, 9.0, "90.0", 1), (8, 0.35, "3.5", 7)],
)  # fmt: skip
def test_a_busy_machine_is_said_once_with_the_threads_to_use(
    monkeypatch: pytest.MonkeyPatch, threads: int, share: float, seconds: str, fewer: int
) -> None:
    before = 50.0  # of the imports
    said = take_steps(
        monkeypatch, threads=threads, wait=lambda now: before + share * (now - 100), until=200
    )
    assert said == [
        f"warning: other programs use the cores of this run: in 10.0 s its {threads} threads waited {seconds} s for a "
        "core; end those programs, or stop this run and continue it on fewer threads: "
        f"OMP_NUM_THREADS={fewer}, and --resume"
    ]


@pytest.mark.parametrize(
    ("threads", "share", "until"),
    [
        (2, 0.2, 200),  # as with a reading process of the run's own
        (1, 0.9, 200),  # it waits for no other thread
        (2, 0.9, 109),  # a run this short is not judged
    ],
)
def test_nothing_is_said_of_a_run_that_gets_its_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int, share: float, until: int
) -> None:
    assert not take_steps(
        monkeypatch, threads=threads, wait=lambda now: share * (now - 100), until=until
    )
