"""Signals that ask a run to stop: every rank finishes the same step, then all stop together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.files import is_alive

Item = TypeVar("Item")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
TROUBLE = 1000
"""In the place of a signal: a rank can't go on, and says why once the run is saved."""
_LINGER = 60  # seconds that a reading process outlives a SIGTERM
_TWICE = 1.0  # seconds; terminal and launcher may both pass on one Ctrl-C


class StopSignal:
    """Within it, a signal to any rank stops all of them at one step.

    A thread of its own hears the signals, for the main one may be deep in a collective that
    will never end: torchrun sends the survivors of a dead rank the same SIGTERM that a cluster
    sends to all. If a rank on this machine is dead, and on a second Ctrl-C, the process leaves
    at once.
    """

    def __init__(self, world: World) -> None:
        self.number = 0
        """The signal that this rank was sent, or TROUBLE; 0 for none."""
        self._trouble: str | None = None  # not the error: its traceback would keep loaders alive
        self._world = world
        self._heard = 0.0
        self._pending: tuple[Any, torch.Tensor] | None = None
        # Agreeing is the hosts' business: on GPUs it goes beside NCCL, and no kernel waits for it.
        beside = world.store is not None and world.device.type == "cuda"
        self._group: Any = dist.new_group(backend="gloo") if beside else None

    def __enter__(self) -> StopSignal:
        self._inlet, self._outlet = os.pipe()
        os.set_blocking(self._outlet, False)
        self._before = {
            number: signal.signal(number, _nothing)
            for number in SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # as nohup sets it
        }
        self._fd_before = signal.set_wakeup_fd(self._outlet, warn_on_full_buffer=False)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._outlet, b"\0")
        self._listener.join()
        os.close(self._inlet)
        os.close(self._outlet)
        if error is None and self._pending is not None:
            self._pending[0].wait()

    def _listen(self) -> None:
        while number := os.read(self._inlet, 1)[0]:
            if number not in SIGNALS:
                continue
            again = number == self.number == signal.SIGINT
            if again and time.monotonic() - self._heard > _TWICE:
                os._exit(128 + number)
            if not all(map(is_alive, self._world.peers)):
                os._exit(128 + number)
            if not self.number:
                self.number, self._heard = number, time.monotonic()

    def poll(self) -> int:
        """The signal for which all ranks stop now; 0 to go on. Every rank calls it at each step.

        What one rank has heard is known to all a step later: the answer to the question of this
        step is looked at in the next, so that none waits for it.
        """
        if self._world.store is None:
            return self.number
        number = 0
        if self._pending is not None:
            work, flag = self._pending
            work.wait()
            number = int(flag)
        flag = torch.tensor(self.number)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = (work, flag)
        return number

    def poll_now(self) -> int:
        """As `poll`, but with an answer to the question of this moment, which is waited for."""
        return self.poll() or self.poll()

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """`items`, until this rank is to stop; for work that counts as a whole or not at all."""
        try:
            for item in items:
                if self.number:
                    return
                yield item
        except UserError as error:
            self.request_stop(error)

    def request_stop(self, error: UserError) -> None:
        """Ask all ranks to stop, as a signal would, for what this one has met with."""
        self._trouble, self.number = str(error), TROUBLE

    def raise_trouble(self) -> None:
        """Where the ranks have stopped for an error, raise it on all of them alike.

        Raises:
            UserError: that of the first rank that has one.
        """
        for words in self._world.gather(self._trouble):
            if words is not None:
                raise UserError(words)


def ignore_in_worker() -> None:
    """For processes that read data: the one they work for decides when to stop.

    A terminal or a cluster sends its signal to them too. A second SIGTERM ends them, which the
    loader sends to those that do not end by themselves; so does a minute after the first, for
    Python's own way out sends one only and waits for ever.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _linger)
    # Whatever it hangs in, it must not outlive its rank: it would hold the pipe by which a launcher
    # sees that the rank has ended.
    die_with_parent(signal.SIGKILL)
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def die_with_parent(number: signal.Signals) -> None:
    """Have the system send this process a signal when the one that has started it ends (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def _linger(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(_LINGER)


def _nothing(number: int, frame: Any) -> None:
    """A handler, so that Python tells the wake-up pipe."""
