"""A warning of threads that wait for a core, once, in a run's first seconds on a CPU.

Between two layers all threads wait for the last one. If another program has its core, a step can take many times as
long as with one thread alone (docs/performance-log.md has the figures).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

THREADS = Path("/proc/self/task")
_TIMED = 10  # seconds of training
_MOST = 0.3  # of them; 0.03 to 0.14 on a machine with nothing else, its reading process included


def read_wait() -> float:
    """Return the seconds for which threads of this process were ready to run and had no core.

    It is 0 where the system does not say: only Linux does.
    """
    nanoseconds = 0
    for thread in THREADS.glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            nanoseconds += int(thread.read_text(encoding="ascii").split()[1])
    return nanoseconds / 1e9


class CoreWait:
    """Says that other programs slow the run, and what helps."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._is_open = torch.get_num_threads() > 1  # else nothing waits for another thread
        self._start: tuple[float, float] | None = None

    def step(self, now: float) -> None:
        """Note that a step has ended at this time."""
        if not self._is_open:
            return
        if self._start is None:  # the first step is over, with its compilation
            self._start = now, read_wait()
            return
        seconds = now - self._start[0]
        if seconds < _TIMED:
            return
        self._is_open = False
        waited, threads = read_wait() - self._start[1], torch.get_num_threads()
        if waited > _MOST * seconds:
            fewer = max(1, threads - max(1, round(waited / seconds)))
            self._log(
                f"warning: other programs use the cores of this run: in {seconds:.1f} s its {threads} threads waited "
                f"{waited:.1f} s for a core; end those programs, or stop this run and continue it on fewer threads: "
                f"OMP_NUM_THREADS={fewer}, and --resume"
            )
