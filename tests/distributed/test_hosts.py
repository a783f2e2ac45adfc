"""Ranks of one attempt agree on it, whatever earlier attempts left in the launcher's store."""

from __future__ import annotations

import os
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.conftest import SEED
from unet_ddp.distributed import hosts
from unet_ddp.distributed.hosts import agree_on_attempt, end_silent_connections, launcher_name
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


def test_a_rank_that_does_not_come_is_said(store: dist.Store) -> None:
    store.set_timeout(timedelta(seconds=0.05))
    for rank in range(2):
        with pytest.raises(RunError, match=f"rank {rank} of 3: not all ranks came within 0.05 s"):
            agree_on_attempt(store, rank, 3, 0.05)


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


def test_the_system_ends_connections_to_hosts_that_do_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with client, server.accept()[0] as accepted:
            before = len([*Path("/proc/self/fd").iterdir()])
            end_silent_connections(6)
            assert len([*Path("/proc/self/fd").iterdir()]) == before
            for connection in (client, accepted):
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 2
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000
            client.sendall(b"alive")
            assert accepted.recv(5) == b"alive"


def test_a_launcher_has_one_name_for_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launcher_name() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    name = launcher_name()
    assert name is not None and name == launcher_name()
    host, process, started = name.split()
    assert (host, process) == (socket.gethostname(), str(os.getppid()))
    assert int(started) > 0  # the process id alone comes again
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert launcher_name() != name


@pytest.mark.parametrize(
    ("argv", "variable", "is_elastic"),
    [
        ("torchrun --nnodes=1:2 train.py", None, True),
        ("torchrun --nnodes 2:4 train.py --nnodes=3", None, True),
        ("torchrun --nnodes=2:2 train.py", None, False),
        ("torchrun --nnodes=2 train.py", None, False),
        ("torchrun train.py", None, False),
        ("torchrun train.py", "1:4", True),
        ("torchrun --nnodes=2 train.py", "1:4", False),
    ],
)
@pytest.mark.parametrize("shares", ["True", "False"])
def test_an_elastic_launcher_is_warned_of_its_shared_store(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    argv: str,
    variable: str | None,
    is_elastic: bool,
    shares: str,
) -> None:
    (tmp_path / "proc" / str(os.getppid())).mkdir(parents=True)
    command = tmp_path / "proc" / str(os.getppid()) / "cmdline"
    command.write_bytes(argv.replace(" ", "\0").encode() + b"\0")
    monkeypatch.setattr(hosts, "Path", lambda path: Path(f"{tmp_path}{path}"))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.delenv("PET_NNODES", raising=False)
    if variable:
        monkeypatch.setenv("PET_NNODES", variable)
    assert not hosts.is_elastic()  # not torchrun's
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shares)
    assert hosts.is_elastic() is is_elastic
    warned = hosts.warn_of_launcher()
    assert len(warned) == (is_elastic and shares == "True")
    assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in line for line in warned)
