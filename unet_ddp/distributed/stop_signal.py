"""Stop all ranks after the same step: for a signal, an unreadable file, or the last step asked for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.files import is_alive

Item = TypeVar("Item")

_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")
SIGNALS = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))  # Windows has two
_LINGER = 60  # seconds that a reading process outlives a SIGTERM
_LAST_WORDS = 10  # seconds that a rank which has failed outlives one: fewer than torchrun waits, 30
_TWICE = 1.0  # seconds; terminal and launcher may both pass on one Ctrl-C


@dataclass(frozen=True)
class StopReason:
    """The reason why all ranks stop after the same step."""

    signal: signal.Signals | None = None  # the signal that a rank was sent; None for another reason
    is_error: bool = False  # True if a rank met a file that it can't read
    is_limit: bool = False  # True if a limit on steps is reached, or a callback asks for the end

    @property
    def exit_status(self) -> int:
        """Exit status of the program: 128 plus the signal, as shells have it."""
        return 0 if self.signal is None else 128 + self.signal


# Above all signals, as ranks agree on the maximum: an error wins, and a callback would ask again.
_ASKED, _ERROR = 999, 1000
_REASONS = {_ASKED: StopReason(is_limit=True), _ERROR: StopReason(is_error=True)}


class StopSignal:
    """Context in which a signal to any rank stops all of them after the same step.

    A thread waits for the signals, as the main one may be deep in a collective that never ends. After
    the death of a rank, torchrun sends the others the same SIGTERM that a cluster sends to all. If a
    rank on this machine is dead, and on a second Ctrl-C, the process exits at once.
    """

    def __init__(self, world: World) -> None:
        self.reason: StopReason | None = None
        """The reason on which all ranks have agreed; None to continue."""
        self._code = 0  # this rank's: a signal's number, _ASKED, _ERROR, or 0
        self._error: str | None = None  # no exception: its traceback would keep loaders alive
        self._world = world
        self._heard = 0.0
        self._pending: tuple[Callable[[], object], torch.Tensor] | None = None

    def __enter__(self) -> StopSignal:
        self._inlet, self._outlet = socket.socketpair()  # Windows has no pipes that do not block
        self._outlet.setblocking(False)
        self._before = {}
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup sets it
                self._before[number] = signal.signal(number, _do_nothing)
        self._fd_before = signal.set_wakeup_fd(self._outlet.fileno(), warn_on_full_buffer=False)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._outlet.send(b"\0")
        self._listener.join()
        self._inlet.close()
        self._outlet.close()
        if error is None and self._pending is not None:
            self._pending[0]()
        if error is not None and self._world.store is not None:
            # torchrun, too, sees that a host is lost, and ends what has not said it yet.
            outlive_signal(signal.SIGTERM, _LAST_WORDS)

    def _listen(self) -> None:
        while number := self._inlet.recv(1)[0]:
            if number not in SIGNALS:
                continue
            is_again = number == self._code == signal.SIGINT
            is_second = is_again and time.monotonic() - self._heard > _TWICE
            if is_second or not all(map(is_alive, self._world.peers)):
                os._exit(128 + number)
            if not self._code:
                self._code, self._heard = number, time.monotonic()

    def poll(self) -> StopReason | None:
        """Return the reason for which all ranks stop now; every rank calls it at each step.

        A reason on one rank is known to all a step later: the answer to the question of this step
        is read at the next, so that no rank waits for it.
        """
        code = self._code
        if self._world.store is not None:
            code = 0
            if self._pending is not None:
                wait, flag = self._pending
                wait()
                code = int(flag)
            self._pending = self._ask()
        if code and self.reason is None:
            self.reason = _REASONS.get(code) or StopReason(signal.Signals(code))
        return self.reason

    def _ask(self) -> tuple[Callable[[], object], torch.Tensor]:
        """Return the maximum of all ranks' codes, and what to call before it is read.

        The hosts agree, not the GPUs, where there is a group for it: no kernel waits then.
        """
        group = self._world.hosts
        is_gpu = group is None and self._world.device.type == "cuda"
        # Filled on the device: to copy a value there would wait for it.
        flag = torch.full((), self._code, device=self._world.device if is_gpu else None)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=group, async_op=True)
        if not is_gpu:
            return work.wait, flag
        work.wait()  # on the GPU's stream
        flag = flag.to("cpu", non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.synchronize, flag

    def poll_now(self) -> StopReason | None:
        """Return the reason known at this moment, as `poll` does a step later; it waits for it."""
        return self.poll() or self.poll()

    def until_stopped(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items` until this rank is asked to stop, for work that counts as a whole or not."""
        try:
            for item in items:
                if self._code:
                    return
                yield item
        except UserError as error:
            self.request_stop(error)

    def request_stop(self, error: UserError | None = None) -> None:
        """Ask all ranks to stop, as a signal would, for an error of this rank or because a callback wants it."""
        if error is not None:
            self._error, self._code = str(error), _ERROR
        elif self._code != _ERROR:
            self._code = _ASKED

    def check_limit(self, done: int, limit: int | None) -> None:
        """Stop if `done` steps of the run reach the limit; every rank knows it without asking."""
        if limit is not None and done >= limit and self.reason is None:
            self.reason = StopReason(is_limit=True)

    def raise_error(self) -> None:
        """Raise the error that a rank has met, the same one on all of them; none after a signal.

        Raises:
            UserError: that of the lowest rank that has one.
        """
        if self.reason is not None and self.reason.signal is not None:
            return
        if self._error is not None and self._world.store is not None:
            self._world.first_failed()  # before the others know: it is said on this host
        for message in self._world.gather(self._error):
            if message is not None:
                raise UserError(self._error or message)


def ignore_signals_in_worker() -> None:
    """Make a reading process leave it to its rank when to stop.

    A terminal or a cluster sends its signal to reading processes too. A second SIGTERM, which the
    loader sends to those that do not end, ends them; so does a minute after the first, as Python
    sends one only at its exit and waits forever.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    outlive_signal(signal.SIGTERM, _LINGER)
    # It must not outlive its rank: it would keep the pipe open by which a launcher sees that the
    # rank has ended.
    die_with_parent(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has none
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def die_with_parent(number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, number)


def dying_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return what a new process is to call at its start, so that it ends with its parent (Linux)."""
    return partial(die_with_parent, number) if sys.platform == "linux" else None


def outlive_signal(number: signal.Signals, seconds: int) -> None:
    """Let this process go on for some seconds after a signal; a second one ends it at once."""

    def linger(_: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if hasattr(signal, "alarm"):  # not on Windows, where no process sends SIGTERM
            signal.alarm(seconds)

    signal.signal(number, linger)


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal, so that Python writes to the wake-up pipe."""
