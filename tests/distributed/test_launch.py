"""All processes of a program fail together, with one message and one exit status."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest
from torch import multiprocessing as mp

from tests.ranks import warm_python
from unet_ddp.distributed import launch
from unet_ddp.distributed.launch import run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError

TWO = World(1, 2, peers=(os.getppid(),))


# -- one process ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def raising(error: BaseException) -> Callable[[str, World], int]:
    def entrypoint(config: str, world: World) -> int:
        raise error

    return entrypoint


def status_of(entrypoint: Callable[[str, World], int]) -> Any:
    with pytest.raises(SystemExit) as stop:
        run_on_all_ranks(entrypoint, "config", nproc=1, device="cpu", timeout=5)
    return stop.value.code


def test_a_program_gets_its_configuration_and_gives_its_status() -> None:
    seen: list[tuple[str, World]] = []
    assert status_of(lambda config, world: seen.append((config, world)) or 7) == 7
    assert seen[0][0] == "config" and seen[0][1].size == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("a.png:\nempty"), 2, "error: a.png:\\nempty\n"),
        (RunError("disk full"), 1, "error: disk full\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(5), 5, ""),
        (SystemExit("odd"), 1, ""),
    ],
)
def test_errors_become_a_line_and_a_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    assert status_of(raising(error)) == status
    assert capsys.readouterr().err == line


def test_a_fault_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(raising(KeyError("broken"))) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.rstrip().endswith("KeyError: 'broken'")


def test_a_mistake_before_there_is_a_world_is_said_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(device: str, timeout: float) -> World:
        raise UserError(f"no {device} for {timeout}")

    monkeypatch.setattr(launch, "join", refuse)
    assert status_of(lambda config, world: 0) == 2
    assert capsys.readouterr().err == "error: no cpu for 5\n"


def test_the_group_is_left_without_the_frames_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo aborts the process if a DDP object outlives its group."""
    left: list[tuple[bool, int]] = []
    alive: list[Any] = []

    class Replica:
        def __del__(self) -> None:
            alive.pop()

    def fail(replica: Replica) -> None:  # in the frames of the inner error
        raise KeyError(id(replica))

    def entrypoint(config: str, world: World) -> int:
        alive.append(1)
        try:
            fail(Replica())
        except KeyError:
            raise UserError("outer") from None

    monkeypatch.setattr(
        launch, "leave", lambda world, failed=False: left.append((failed, len(alive)))
    )
    assert status_of(entrypoint) == 2
    assert left == [(True, 0)]
    assert status_of(lambda config, world: 0) == 0
    assert left[1:] == [(False, 0)]


# -- several processes ----------------------------------------------------------------------------


class Store:
    """A key-value store of a group."""

    def __init__(self, first: str = "1", printed: str = "2") -> None:
        self.first, self.values, self.waited = first, {"printed": printed}, []

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        assert (key, expected) == ("failed", "")
        return self.first.encode()

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waited.append((keys, timeout))

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException, Any], int]:
    """Return a function: the status of rank 1 of 2 that fails, by the store of their group."""

    def run(error: BaseException, store: Any) -> int:
        monkeypatch.setattr(launch, "join", lambda device, timeout: World(1, 2, store=store))
        return status_of(raising(error))  # type: ignore[no-any-return]

    return run


def test_the_rank_that_fails_first_speaks_for_all(
    capsys: pytest.CaptureFixture[str], report: Callable[[BaseException, Any], int]
) -> None:
    first = Store(first="1")
    assert report(RunError("disk full"), first) == 1
    assert capsys.readouterr().err == "error: disk full\n"
    assert first.values["printed"] == "1" and first.waited == []
    second = Store(first="0", printed="2")
    assert report(RuntimeError("connection closed"), second) == 2  # the other's status
    assert capsys.readouterr().err == ""
    assert second.waited == [(["printed"], timedelta(seconds=5))]
    assert report(KeyError("x"), Store(first="1")) == 1
    said = capsys.readouterr().err
    assert said.startswith("rank 1 of 2: Traceback") and said.endswith("KeyError: 'x'\n\n")


def test_without_the_store_s_host_each_rank_speaks(
    capsys: pytest.CaptureFixture[str], report: Callable[[BaseException, Any], int]
) -> None:
    class Gone(Store):
        def compare_set(self, key: str, expected: str, value: str) -> bytes:
            raise RuntimeError("connection reset")

        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection reset")

    assert report(UserError("a"), Gone()) == 2
    assert capsys.readouterr().err == "error: a\n"


def test_nproc_under_torchrun_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit) as stop:
        run_on_all_ranks(raising(KeyError()), "config", nproc=2, device="cpu", timeout=5)
    assert stop.value.code == 2
    assert "--nproc under torchrun" in capsys.readouterr().err


class Children:
    """Processes that end after a second look, or fail."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure, self.looks = failure, 0

    def pids(self) -> list[int]:
        return [71, 72]

    def join(self) -> bool:
        self.looks += 1
        if self.looks == 1:
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)
            handler(signal.SIGTERM, None)
            return False
        if self.failure is not None:
            raise self.failure
        return True


@pytest.mark.parametrize(
    ("failure", "status", "err"),
    [
        (None, 0, ""),
        (mp.ProcessExitedException("", 1, 71, 143, None), 143, ""),
        (mp.ProcessExitedException("", 1, 71, -9, "SIGKILL"), 1, "error: process 1 was ended by SIGKILL\n"),
    ],
)  # fmt: skip
def test_nproc_starts_processes_and_passes_signals_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: Exception | None,
    status: int,
    err: str,
) -> None:
    started: list[dict[str, Any]] = []
    killed: list[tuple[int, int]] = []

    def start(function: Any, **how: Any) -> Children:
        started.append(how)
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        handler(signal.SIGTERM, None)  # before the first process is known
        return Children(failure)

    def kill(process: int, number: int) -> None:
        killed.append((process, number))
        raise ProcessLookupError  # it has ended already

    monkeypatch.setattr(mp, "start_processes", start)
    monkeypatch.setattr(launch, "host_store", lambda: SimpleNamespace(port=4321))
    before = {number: signal.getsignal(number) for number in launch.SIGNALS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # A shell's background job ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", kill)
            with pytest.raises(SystemExit) as stop:
                run_on_all_ranks(raising(KeyError()), "config", nproc=2, device="cpu", timeout=5)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # under nohup
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stop.value.code == status
    assert capsys.readouterr().err == err
    assert killed == 2 * [(71, signal.SIGTERM), (72, signal.SIGTERM)]  # the early one, too
    (how,) = started
    assert how["nprocs"] == 2 and how["start_method"] == "spawn" and how["join"] is False
    run, *place = how["args"]
    assert place == [2, 4321, False] and run.func is run_on_all_ranks and run.args[1] == "config"
    assert run.keywords == {"nproc": 1, "device": "cpu", "timeout": 5}


def test_a_child_of_nproc_finds_its_place_in_the_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    joined: list[Any] = []
    environment: dict[str, str] = {}

    def start(function: Any, **how: Any) -> Children:
        started.append((function, how["args"]))
        return Children(None)

    def note_place(*how: Any) -> World:
        joined.append((*how, {**environment}))
        return World()

    handlers = {number: signal.getsignal(number) for number in launch.SIGNALS}
    with monkeypatch.context() as patch:
        patch.setattr(mp, "start_processes", start)
        patch.setattr(launch, "host_store", lambda: SimpleNamespace(port=4321))
        patch.setattr(os, "kill", lambda process, number: None)
        with pytest.raises(SystemExit):
            run_on_all_ranks(raising(KeyError()), "config", nproc=2, device="cpu", timeout=5)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(launch, "join", note_place)
    ((function, arguments),) = started
    with pytest.raises(SystemExit) as stop:
        function(1, *arguments)
    assert stop.value.code == 1 and capsys.readouterr().err.startswith("Traceback")
    ((device, timeout, found),) = joined
    assert (device, timeout) == ("cpu", 5)
    assert found == {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "UNET_DDP_NPROC": "2",
    }  # fmt: skip


LISTENING = """
import glob, os, re
from pathlib import Path
from unet_ddp.distributed.launch import run_on_all_ranks

def listen(config, world):
    open_ = {os.readlink(f) for p in (os.getpid(), os.getppid()) for f in glob.glob(f"/proc/{p}/fd/*") if os.path.islink(f)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in open_:
                os.write(1, f"listens {words[1].partition(':')[0]}\\n".encode())  # whole
    return 0

run_on_all_ranks(listen, None, nproc=2, device="cpu", timeout=30)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nobody_outside_reaches_what_nproc_listens_on(tmp_path: Path) -> None:
    """The store has no password: who sets two of its keys ends a run with exit status 0."""
    (tmp_path / "listen.py").write_text(LISTENING)
    done = warm_python(tmp_path, "listen.py")
    assert done.returncode == 0, done.stderr
    found = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("listens")}
    assert found == {"0100007F"}  # 127.0.0.1, as the system writes it


def test_without_a_loopback_nproc_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(
        UserError, match=r"127\.0\.0\.1 \(Network is unreachable\): turn its loopback"
    ):
        run_on_all_ranks(Mock(), None, nproc=2, device="cpu", timeout=9)
