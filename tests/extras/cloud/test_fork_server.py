"""Reading processes that are forked from a server."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from tests.ranks import warm_context
from unet_ddp.distributed.stop_signal import SIGNALS, ignore_signals_in_worker
from unet_ddp.extras.cloud import fork_server
from unet_ddp.extras.cloud.fork_server import end_with_rank, start_fork_server


def be_rank(pipe: Connection) -> None:
    fork_server.sys = SimpleNamespace(modules={})  # type: ignore[attr-defined]  # imports take seconds
    reader = start_fork_server().Process(target=be_reader, args=(pipe,), daemon=True)
    reader.start()
    pipe.close()
    signal.pause()


def be_reader(pipe: Connection) -> None:
    ignore_signals_in_worker()
    end_with_rank()
    pipe.send((os.getpid(), os.getppid()))
    while True:
        pipe.send(pipe.recv())


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="readers are forked on Linux alone")
def test_readers_outlive_signals_to_all_and_end_with_their_rank() -> None:
    here, there = warm_context().Pipe()
    rank = warm_context().Process(target=be_rank, args=(there,))
    rank.start()
    there.close()
    assert here.poll(60)
    reader, server = here.recv()
    assert server != rank.pid
    for number in SIGNALS:
        os.kill(server, number)
    for number in set(SIGNALS) - {signal.SIGTERM}:
        os.kill(reader, number)
    here.send("alive")
    assert here.poll(60) and here.recv() == "alive"
    rank.kill()
    rank.join()
    assert here.poll(60)
    with pytest.raises(EOFError):  # the reader, which had the other end, has ended
        here.recv()
