"""Ranks of one attempt agree on it, whatever earlier attempts left in the launcher's store."""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.conftest import SEED, data_flags, make_set
from tests.hosts import IS_POSSIBLE, Hosts, wait_for
from tests.ranks import LIMIT, ROOT, TRAIN, Ranks, call_train
from tests.test_resume import assert_same_state, call_main_in_float64
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.distributed import hosts
from unet_ddp.distributed.hosts import agree_on_attempt, launcher_names, wait_for_port
from unet_ddp.errors import RunError


@pytest.fixture
def store() -> dist.Store:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))
    return store


def test_all_ranks_have_one_name_and_no_attempt_has_another_s(store: dist.Store) -> None:
    """Twenty attempts of 1 to 4 ranks in one store; some end with ranks that never came."""
    dice, seen = random.Random(SEED), set()
    with ThreadPoolExecutor(4) as ranks:
        for _ in range(20):
            size = dice.randint(1, 4)
            if size > 1 and dice.random() < 0.5:  # rank 0 or another was killed before it came
                here = set(range(size)) - {dice.randrange(size)}
                store.set_timeout(timedelta(seconds=0.05))
                lost = [ranks.submit(agree_on_attempt, store, rank, size, 0.05) for rank in here]
                names = {one.result() for one in lost if not one.exception()}
                assert not names & seen
                store.set_timeout(timedelta(seconds=30))
                seen |= names  # some go on to wait for the group, under this attempt's name
            order = dice.sample(range(size), size)
            found = [ranks.submit(agree_on_attempt, store, rank, size, 30) for rank in order]
            (name,) = {one.result() for one in found}
            assert name not in seen
            seen.add(name)


def test_rank_0_may_come_later_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store is found as soon as it listens, and counts nobody who only looked for it."""
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        host, port = late.getsockname()
        monkeypatch.setattr(time, "sleep", lambda _: late.listen())
        wait_for_port(host, port, 30)
        monkeypatch.undo()
        store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=late.detach()
        )
    wait_for_port(host, port, 0)
    other = dist.TCPStore(host, port, timeout=timedelta(seconds=5))
    other.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize(
    "reason",
    [
        ConnectionRefusedError("refused"),
        socket.gaierror("no such name"),
        UnicodeError("a..b is no name"),
    ],
)
def test_an_address_where_nobody_listens_is_said(
    monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    def fail(*_: object) -> None:
        raise reason

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(dist.DistError, match=f"^no answer in 0 s: {reason}$"):
        wait_for_port("node0", 29500, 0)


def test_a_rank_that_does_not_come_is_said(store: dist.Store) -> None:
    store.set_timeout(timedelta(seconds=0.05))
    for rank in range(2):
        with pytest.raises(RunError, match=f"rank {rank} of 3: not all ranks came within 0.05 s"):
            agree_on_attempt(store, rank, 3, 0.05)


class LostStore(dist.HashStore):
    """A store whose host ends while a rank waits."""

    def get(self, key: str) -> bytes:
        raise dist.DistNetworkError("Failed to recv, got 0 bytes")


def test_a_store_that_is_lost_meanwhile_is_one_line() -> None:
    for rank in range(2):
        with pytest.raises(RunError, match=f"rank {rank} of 2: .* or the launcher's host is lost"):
            agree_on_attempt(LostStore(), rank, 2, 30)


def test_a_rank_0_that_was_cut_off_gives_up(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later rank 0 has come while it waited."""
    store.set("rank 1", "stale")
    began = time.monotonic()
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(agree_on_attempt, store, 0, 2, 30)
        while not store.check(["ranks"]):
            time.sleep(0.001)
        second = ranks.submit(agree_on_attempt, store, 0, 2, 30)
        assert isinstance(first.exception(), RunError)
        store.set("rank 1", "name")
        while "name" not in store.get("ranks").decode():
            time.sleep(0.001)
        store.set(f"{store.get('rank 0').decode()} name", "")
        assert second.result() == store.get("rank 0").decode()
    assert time.monotonic() - began < 20


def test_a_launcher_has_one_name_for_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launcher_names() == []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    (name,) = launcher_names()
    assert [name] == launcher_names()
    *_, process, started = name.split()
    assert name.startswith(hosts.host_id()) and process == str(os.getppid())
    assert int(started) > 0  # the process id alone comes again
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert launcher_names() != [name]
    (name,) = launcher_names()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")  # a cluster's, which starts torchrun again
    assert launcher_names() == [name, "job 7"]


# -- two network namespaces as hosts ------------------------------------------------------------

FLAGS = [
    "--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0", "--batch-size", "1",
    "--augmentation", "none",  # which each rank would import
]  # fmt: skip
FAULTS = str(ROOT / "tests" / "faults.py")


def two_hosts(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs two namespaces; each program in them takes seconds to start."""
    for mark in (
        pytest.mark.hosts,
        pytest.mark.thorough,
        pytest.mark.processes,
        pytest.mark.skipif(not IS_POSSIBLE, reason="two hosts take Linux, root and ip"),
    ):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def network() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    hosts.close()


@pytest.fixture
def pair(network: Hosts) -> Iterator[Hosts]:
    yield network
    network.end()
    for host in (1, 2):
        network.plug(host)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


@pytest.fixture(scope="module")
def one_host(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run of two processes on one host."""
    folder = tmp_path_factory.mktemp("one")
    outcomes = ranks.run(2, call_train, [*data_flags(images), *FLAGS], str(folder))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    return folder


def finish(*started: subprocess.Popen[bytes]) -> list[int]:
    return [process.wait(LIMIT) for process in started]


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")


@two_hosts
@pytest.mark.release
def test_two_hosts_that_share_a_folder_end_as_one(
    pair: Hosts, images: Path, one_host: Path, tmp_path: Path
) -> None:
    """By static rendezvous: a rank for each host, an address and a port."""
    started = [
        pair.start(
            host, tmp_path, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
            f"--node_rank={host - 1}", f"--master_addr={pair.address(1)}", "--master_port=29511",
            TRAIN, *data_flags(images), *FLAGS,
        )
        for host in (1, 2)
    ]  # fmt: skip
    assert finish(*started) == [0, 0], (tmp_path / "log.txt").read_text()
    assert_same_state(last(tmp_path), last(one_host))
    assert (tmp_path / "checkpoints" / "report.html").exists()


@two_hosts
def test_hosts_that_share_no_folder(
    pair: Hosts, images: Path, one_host: Path, tmp_path: Path
) -> None:
    """A run goes on where rank 0 is on its host; otherwise it is one line, and nothing begins anew."""
    folders = [tmp_path / "1", tmp_path / "2"]

    def run(*more: str, nodes: str = "2") -> tuple[list[int], list[str]]:
        for folder in folders:
            (folder / "log.txt").unlink(missing_ok=True)
        started = [
            pair.torchrun(host, folder, "--", *data_flags(images), *FLAGS, *more, nodes=nodes)
            for host, folder in enumerate(folders, start=1)
        ]
        statuses, logs = finish(*started), [(folder / "log.txt").read_text() for folder in folders]
        lines = [line for log in logs for line in log.splitlines()]
        return statuses, [line for line in lines if line.startswith("error: ")]

    assert run("--stop-after", "7") == ([0, 0], [])
    assert run("--resume") == ([0, 0], [])
    assert_same_state(last(folders[0]), last(one_host))
    assert scores(folders[0]) == scores(one_host)
    here, there = (folder / "checkpoints" for folder in folders)
    assert not there.exists()
    here.rename(there)
    here.mkdir()
    for flags, nodes, said in (
        (["--resume"], "2", f"is on {pair.name(2)}, not on {pair.name(1)} (rank 0)"),
        (["--overwrite"], "1:2", f"checkpoints on {pair.name(2)} is not that on {pair.name(1)}"),
    ):
        statuses, lines = run(*flags, nodes=nodes)
        assert statuses == [1, 1] and len(lines) == 1 and said in lines[0], lines
    assert [*here.glob("*.pt")] == []
    assert_same_state(last(folders[1]), last(one_host))


def scores(folder: Path) -> list[dict[str, str]]:
    rows = csv.DictReader((folder / "checkpoints" / "metrics.csv").read_text().splitlines())
    return [{name: row[name] for name in ("step", "loss", "validation_dice")} for row in rows]


@two_hosts
def test_different_hosts_are_refused_on_both(pair: Hosts, images: Path, tmp_path: Path) -> None:
    began, folders = time.monotonic(), [tmp_path / "1", tmp_path / "2"]
    started = [
        pair.torchrun(host, folder, "--", *data_flags(images), "--width", str(host))
        for host, folder in enumerate(folders, start=1)
    ]  # fmt: skip
    assert finish(*started) == [1, 1]  # torchrun's own
    logs = [(folder / "log.txt").read_text() for folder in folders]
    assert all(re.search(r"exitcode\s*: 2 ", log) for log in logs), logs
    (line,) = (line for log in logs for line in log.splitlines() if line.startswith("error:"))
    names = [pair.name(host) for host in (1, 2)]
    assert line == (
        f"error: --width is 2 on {names[1]}, but 1 on {names[0]} (rank 0): start the same program with "
        "the same settings on every host"
    )
    assert time.monotonic() - began < LIMIT


CONTAINER = [
    "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
    'for i in $(seq 300); do /bin/true; done; "$@"; exit $?', "sh",
]  # fmt: skip


@two_hosts
@pytest.mark.release
def test_ranks_in_containers_of_one_name_save_on_a_signal(images: Path, tmp_path: Path) -> None:
    """With --network=host they have the machine's name, and each its own process ids."""
    argv = [sys.executable, FAULTS, "slow steps", *data_flags(images), *FLAGS, "--epochs", "900"]
    place = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
    }
    with (tmp_path / "log.txt").open("ab") as log:
        started = [
            subprocess.Popen(
                [*CONTAINER * rank, *argv],
                cwd=tmp_path,
                env={**os.environ, **place, "RANK": str(rank), "MASTER_PORT": "29533", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=log,
                stderr=log,
            )
            for rank in range(2)
        ]  # fmt: skip
    try:
        wait_for(lambda: "\nepoch" in (tmp_path / "log.txt").read_text(), tmp_path / "log.txt")
        started[0].send_signal(signal.SIGTERM)
        assert finish(*started) == [143, 143]
        assert "stopped by SIGTERM after step" in (tmp_path / "log.txt").read_text()
    finally:
        for process in started:
            process.kill()


ELASTIC = [
    "--images-per-step", "4", "--batch-size", "1", "--validation", "17", "--width", "2", "--workers", "0",
    "--ema", "0.9", "--epochs", "900",
]  # fmt: skip


class Elastic:
    """A run that hosts leave and join, with its folder, which they share."""

    def __init__(self, pair: Hosts, flags: list[str], folder: Path) -> None:
        self.pair, self.flags, self.folder = pair, flags, folder
        self.log = folder / "log.txt"

    def start(self, host: int) -> subprocess.Popen[bytes]:
        """Start torchrun on a host."""
        return self.pair.torchrun(
            host, self.folder, "--max-restarts=9", "--", "slow steps", *self.flags,
            "--save-every-steps", "1", conf="last_call_timeout=2", nodes="1:2", program=FAULTS,
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", TORCH_CPP_LOG_LEVEL="ERROR",
        )  # fmt: skip

    def count(self, text: str) -> int:
        """Return how often a text is in the log."""
        return self.log.read_text().count(text)

    def wait_for_world(self, size: int) -> None:
        """Wait until an epoch has ended since the latest start of a world of this size."""
        text = {1: "(2 at a time on 1 process), ", 2: "at a time on each of 2 processes"}
        wait_for(
            lambda: (
                "\nepoch" in self.log.read_text().rpartition("\nrun: ")[2].partition(text[size])[2]
            ),
            self.log,
        )


@pytest.mark.release
@two_hosts
def test_hosts_come_and_go(pair: Hosts, ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """A cable that is cut and plugged in again, one that is loose, a host that dies and comes back."""
    flags = [*data_flags(images), *ELASTIC]
    run = Elastic(pair, flags, tmp_path / "run")
    first, second = run.start(1), run.start(2)
    wait_for(run.log.exists, run.log)
    run.wait_for_world(2)
    pair.plug(2, to="down")
    cut = time.monotonic()
    run.wait_for_world(1)  # long before --timeout, 600 s
    assert time.monotonic() - cut < 90
    assert run.count(f"error: rank 0 of 2 lost host {pair.address(2)}")
    pair.plug(2)
    run.wait_for_world(2)  # the same torchrun on host 2, which asks again
    starts, epochs = run.count("\nrun: "), run.count("\nepoch ")
    for _ in range(3):  # the cable is loose
        pair.plug(2, to="down")
        pair.plug(2)
    wait_for(lambda: run.count("\nepoch ") > epochs + 1, run.log)
    assert run.count("\nrun: ") == starts
    pair.kill(2)
    run.wait_for_world(1)
    second = run.start(2)
    run.wait_for_world(2)
    assert [started.poll() for started in (first, second)] == [None, None]
    pair.end()
    assert run.count("warning") == 0
    check_undisturbed(run, ranks, tmp_path / "undisturbed")


def check_undisturbed(run: Elastic, ranks: Ranks, folder: Path) -> None:
    """Compare the scores of each epoch with those of a run of two processes on one host."""
    found = scores(run.folder)
    folder.mkdir()
    flags = [*run.flags, "--stop-after", str(2 * len(found))]
    outcomes = ranks.run(2, call_main_in_float64, flags, str(folder))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert last(run.folder)["images_per_step"] == 4
    assert [row["step"] for row in found] == [str(2 * n + 2) for n in range(len(found))]
    for row, other in zip(found, scores(folder), strict=True):
        for name in row:
            assert float(row[name]) == pytest.approx(float(other[name]), abs=1e-6), row


@two_hosts
@pytest.mark.release
def test_the_rendezvous_host_is_lost(pair: Hosts, images: Path, tmp_path: Path) -> None:
    """The run ends, and says what to type."""
    flags = ["slow steps", *data_flags(images), *FLAGS, "--epochs", "900"]
    _, second = (
        pair.torchrun(
            host, tmp_path, "--max-restarts=9", "--", *flags, nodes="1:2", program=FAULTS,
            TORCH_CPP_LOG_LEVEL="ERROR",
        )
        for host in (1, 2)
    )  # fmt: skip
    log = tmp_path / "log.txt"
    wait_for(lambda: log.exists() and "\nepoch" in log.read_text(), log)
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in log.read_text()  # the warning
    pair.kill(1)
    assert finish(second) == [1]
    said = log.read_text()
    assert f"error: rank 1 of 2 lost host {pair.address(1)}" in said, said
    assert "start it again on all hosts with --resume" in said
