"""What an elastic torchrun asks of its processes, and connections to hosts that do not answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from unet_ddp.distributed import elastic
from unet_ddp.distributed.elastic import end_silent_connections, follow_launcher


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
    capsys: pytest.CaptureFixture[str],
    argv: str,
    variable: str | None,
    is_elastic: bool,
    shares: str,
) -> None:
    (tmp_path / "proc" / str(os.getppid())).mkdir(parents=True)
    command = tmp_path / "proc" / str(os.getppid()) / "cmdline"
    command.write_bytes(argv.replace(" ", "\0").encode() + b"\0")
    monkeypatch.setattr(elastic, "Path", lambda path: Path(f"{tmp_path}{path}"))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.delenv("PET_NNODES", raising=False)
    if variable:
        monkeypatch.setenv("PET_NNODES", variable)
    assert not elastic.is_elastic()  # not torchrun's
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shares)
    assert elastic.is_elastic() is is_elastic
    monkeypatch.setattr(elastic, "end_silent_connections", lambda seconds: None)
    for rank in range(2):
        follow_launcher(rank)
    warned = capsys.readouterr().err.splitlines()
    assert len(warned) == (is_elastic and shares == "True")
    assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in line for line in warned)
