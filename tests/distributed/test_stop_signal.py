"""All ranks stop after the same step, for one reason."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.ranks import Ranks
from unet_ddp.distributed import stop_signal
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import (
    SIGNALS,
    StopReason,
    StopSignal,
    die_with_parent,
    ignore_signals_in_worker,
)
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError


def wait_until(is_true: Callable[[], object]) -> None:
    """Let the thread that listens to signals have its turn."""
    until = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0)


def wait_for_signal(stop: StopSignal) -> None:
    """Wait until this rank is asked to stop."""
    wait_until(lambda: not list(stop.until_stopped("a")))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (StopReason(signal.SIGTERM), 143),
        (StopReason(signal.SIGINT), 130),
        (StopReason(is_error=True), 0),
        (StopReason(is_limit=True), 0),
    ],
)
def test_the_exit_status_is_the_shell_s(reason: StopReason, status: int) -> None:
    assert reason.exit_status == status


@pytest.mark.parametrize("hosts", ["gloo", None])
def test_hosts_of_gpus_agree_without_them_or_at_the_end_of_a_step(
    monkeypatch: pytest.MonkeyPatch, hosts: Any
) -> None:
    """The GPUs are waited for where there is no group of the hosts, and then a step late."""
    calls: list[str] = []
    work: Any = SimpleNamespace(wait=lambda: calls.append("wait"))
    event = SimpleNamespace(
        record=lambda: calls.append("record"), synchronize=lambda: calls.append("synchronize")
    )

    def all_reduce(flag: torch.Tensor, *how: Any, group: Any, async_op: bool) -> Any:
        assert group is hosts and async_op
        calls.append(f"sum on {flag.device.type}")
        return work

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    world = World(size=2, device=torch.device("cuda"), store=object(), hosts=hosts)  # type: ignore[arg-type]
    with FakeTensorMode(allow_non_fake_inputs=True):  # a GPU's tensors without a GPU
        monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
        with StopSignal(world) as stop:  # at whose end the answer is awaited
            stop.poll()
    expected = {
        "gloo": ["sum on cpu", "wait"],
        None: ["sum on cuda", "wait", "record", "synchronize"],
    }
    assert calls == expected[hosts]


@pytest.mark.parametrize("error", [None, KeyError()])
def test_the_last_question_is_awaited_unless_an_error_ends_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Else a rank would leave with a collective under way; after an error the others may be gone."""
    waits: list[int] = []
    work = SimpleNamespace(wait=lambda: waits.append(1))
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: work)
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(KeyError), StopSignal(World(size=2, store=dist.HashStore())) as stop:
        stop.poll()
        if error is not None:
            raise error
    signal.signal(signal.SIGTERM, before)
    assert waits == [1] * (error is None)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_the_reason_to_stop(number: signal.Signals) -> None:
    before, threads = [signal.getsignal(each) for each in SIGNALS], threading.enumerate()
    inlet, outlet = os.pipe()
    os.set_blocking(outlet, False)
    signal.set_wakeup_fd(outlet)  # another library's
    with StopSignal(World()) as stop:
        assert stop.poll() is None and stop.poll_now() is None
        os.kill(os.getpid(), number)
        wait_for_signal(stop)
        assert stop.reason is None  # until it is asked for
        assert stop.poll() == StopReason(number)
        assert stop.reason == StopReason(number)
        stop.raise_error()  # it is no error
        assert list(stop.until_stopped("abc")) == []
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == outlet
    os.close(inlet)
    os.close(outlet)
    assert threading.enumerate() == threads


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with StopSignal(World()) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_for_signal(stop)
            assert stop.poll() == StopReason(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("heard", "seconds", "peers_alive", "exits", "code"),
    [
        ([signal.SIGINT], 9, True, None, signal.SIGINT),
        ([signal.SIGINT, signal.SIGINT], 9, True, 130, None),
        ([signal.SIGINT, signal.SIGINT], 0.5, True, None, signal.SIGINT),  # terminal and launcher
        ([signal.SIGTERM, signal.SIGTERM], 9, True, None, signal.SIGTERM),
        ([signal.SIGTERM, signal.SIGINT], 9, True, None, signal.SIGTERM),
        ([signal.SIGWINCH], 9, True, None, 0),
        ([signal.SIGTERM], 9, False, 143, None),  # torchrun ends the survivors of a dead rank
    ],
)
def test_a_second_ctrl_c_or_a_dead_rank_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch,
    heard: list[int],
    seconds: float,
    peers_alive: bool,
    exits: int | None,
    code: int | None,
) -> None:
    clock = iter(range(0, 10**6))
    monkeypatch.setattr(stop_signal.time, "monotonic", lambda: next(clock) * seconds)
    monkeypatch.setattr(stop_signal, "is_alive", lambda process: peers_alive)

    exited: list[int] = []

    monkeypatch.setattr(os, "_exit", exited.append)
    with StopSignal(World(peers=(7,))) as stop:
        outlet = signal.set_wakeup_fd(-1)
        os.write(outlet, bytes(heard))  # the thread reads them before it ends
        signal.set_wakeup_fd(outlet)
    assert exited == ([] if exits is None else [exits])
    if exits is None:
        assert stop.poll() == (StopReason(signal.Signals(code)) if code else None)


def test_an_unreadable_file_stops_the_run_with_its_error() -> None:
    stop = StopSignal(World())

    def files() -> Iterator[str]:
        yield "a"
        raise UserError("b.png: corrupt")

    assert list(stop.until_stopped(files())) == ["a"]
    assert stop.poll() == StopReason(is_error=True)
    with pytest.raises(UserError, match=r"^b.png: corrupt$"):
        stop.raise_error()


def test_work_goes_on_until_it_is_asked_to_stop() -> None:
    stop = StopSignal(World())
    assert list(stop.until_stopped("abc")) == ["a", "b", "c"]
    items = stop.until_stopped("abc")
    assert next(items) == "a"
    stop.request_stop(UserError("x"))
    assert list(items) == []
    with pytest.raises(KeyError):
        list(StopSignal(World()).until_stopped({}[key] for key in "a"))


@pytest.mark.parametrize(("done", "limit", "stops"), [(4, None, False), (4, 5, False), (5, 5, True), (6, 5, True)])  # fmt: skip
def test_the_last_step_asked_for_is_a_reason(done: int, limit: int | None, stops: bool) -> None:
    stop = StopSignal(World())
    stop.check_limit(done, limit)
    assert stop.reason == (StopReason(is_limit=True) if stops else None)
    stop.reason = StopReason(signal.SIGTERM)
    stop.check_limit(done, limit)
    assert stop.reason == StopReason(signal.SIGTERM)


def test_the_first_reason_stays() -> None:
    with StopSignal(World()) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for_signal(stop)
        stop.poll()
        stop.request_stop(UserError("x"))
        assert stop.poll() == StopReason(signal.SIGTERM)
        stop.raise_error()


# -- two ranks ------------------------------------------------------------------------------------


def stop_after_one_rank(kind: str) -> tuple[list[bool], Any, bool, str]:
    """Polls of a rank, where rank 1 alone has a reason before its second one."""
    world = join("cpu", 60)
    polls, error = [], ""
    with StopSignal(world) as stop:
        for step in range(4):
            if step == 1 and world.rank == 1:
                if kind == "error":
                    stop.request_stop(UserError("b.png: corrupt"))
                elif kind == "callback":
                    stop.request_stop()
                else:
                    os.kill(os.getpid(), signal.SIGTERM)
                    wait_for_signal(stop)
            if step == 1 and world.rank == 0 and kind == "both":
                stop.request_stop(UserError("a.png: corrupt"))
            polls.append(stop.poll() is not None)
        reason = stop.reason
        try:
            stop.raise_error()
        except UserError as failure:
            error = str(failure)
    with StopSignal(world) as fresh:
        if world.rank == 1:
            fresh.request_stop(UserError("x"))
        is_known_now = fresh.poll_now() is not None
    leave(world)
    return polls, reason, is_known_now, error


@pytest.mark.parametrize(
    ("kind", "reason", "error"),
    [
        ("signal", StopReason(signal.SIGTERM), ""),
        ("error", StopReason(is_error=True), "b.png: corrupt"),
        ("callback", StopReason(is_limit=True), ""),
        ("both", StopReason(is_error=True), "a.png: corrupt"),  # an error wins over a signal
    ],
)
def test_ranks_stop_together_one_step_after_the_reason(
    ranks: Ranks, kind: str, reason: StopReason, error: str
) -> None:
    outcomes = ranks.run(2, stop_after_one_rank, kind)
    assert outcomes == [([False, False, True, True], reason, True, error)] * 2


# -- reading processes ----------------------------------------------------------------------------


def child_status(work: Callable[[], None]) -> int:
    """Return the end of a child that does `work`: its exit status, or minus its signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork")
def test_reading_processes_leave_it_to_their_rank_when_to_stop() -> None:
    def once() -> None:
        ignore_signals_in_worker()
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert signal.alarm(0) > 50  # it ends a minute after a SIGTERM by itself
        os._exit(0)

    def twice() -> None:
        ignore_signals_in_worker()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    assert child_status(once) == 0
    assert child_status(twice) == -signal.SIGTERM


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("signals", [1, 2])
def test_a_rank_that_fails_outlives_the_signal_of_its_launcher(signals: int) -> None:
    """It says why: torchrun sees a lost host as early as the rank does."""

    def fail() -> None:
        with contextlib.suppress(KeyError), StopSignal(World(size=2, store=dist.HashStore())):
            raise KeyError
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
        assert 0 < signal.alarm(0) < 30  # torchrun kills after 30 seconds
        os._exit(0)

    assert child_status(fail) == {1: 0, 2: -signal.SIGTERM}[signals]


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_ends_with_its_parent() -> None:
    inlet, outlet = os.pipe()

    def parent() -> None:
        ready, told = os.pipe()
        if os.fork() == 0:
            os.close(inlet)
            die_with_parent(signal.SIGKILL)
            os.write(told, b"x")
            signal.pause()
        os.read(ready, 1)
        os._exit(0)

    assert child_status(parent) == 0
    os.close(outlet)
    assert os.read(inlet, 1) == b""  # the grandchild, which kept it open, has ended
    os.close(inlet)
