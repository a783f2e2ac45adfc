"""Attempts of a launcher, its port, and the names of hosts and launchers."""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist

from unet_ddp.errors import RunError

_POLL = 0.02  # seconds
_CONNECT = 5  # seconds until an address that says nothing is tried again


def agree_on_attempt(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """Return a name of this attempt: the same on all ranks, and no earlier attempt's.

    The store is the launcher's and has the keys of earlier attempts, and hosts count their
    restarts differently (pytorch issue 135712). So each rank writes a new random name, rank 0
    repeats the list of the names that it finds, and a rank waits for the list that has its own.

    Raises:
        RunError: a rank does not come within `timeout` seconds, or the store is lost.
    """
    mine, until = uuid.uuid4().hex, time.monotonic() + timeout
    store.set(f"rank {rank}", mine)
    with suppress(dist.DistError):  # a rank of whom there is no key yet; no store any more
        while time.monotonic() < until:
            if rank == 0:
                names = [store.get(f"rank {other}").decode() for other in range(size)]
                if names[0] != mine:  # a later rank 0 has come: this one was cut off
                    break
                store.set("ranks", " ".join(names))
                if all(store.check([f"{mine} {name}"]) for name in names[1:]):
                    return mine
            else:
                names = store.get("ranks").decode().split()
                if len(names) == size and names[rank] == mine:
                    store.set(f"{names[0]} {mine}", "")
                    return names[0]
            time.sleep(_POLL)
    raise RunError(
        f"rank {rank} of {size}: not all ranks came within {timeout:g} s, or the launcher's host is "
        "lost; look at the other hosts' output, and see --timeout"
    )


def wait_for_port(host: str, port: int, timeout: float) -> None:
    """Return as soon as a program listens at this address.

    torch's store tries it twice, for `timeout` seconds each, and logs frames of C++.

    Raises:
        DistError: none listens there within `timeout` seconds.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), _CONNECT).close()
            return
        except (OSError, UnicodeError) as error:  # also a name that a cluster resolves later
            if time.monotonic() > until:
                raise dist.DistNetworkError(f"no answer in {timeout:g} s: {error}") from None
        time.sleep(5 * _POLL)


def host_id() -> str:
    """Return what the processes of one host have in common: they see each other by their process ids.

    Each container on a machine is a separate host, and often has the machine's name.
    """
    with suppress(OSError):  # a system without /proc
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def launcher_names() -> list[str]:
    """Return the names by which a restart knows that it continues a run; none without torchrun.

    The first is this torchrun's own, the other that of --rdzv-id, with which a cluster starts it again.
    """
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None:
        return []
    name = f"{host_id()} {os.getppid()}"
    with suppress(OSError, IndexError):  # process ids come again, in containers soon
        status = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
        name += f" {status.rpartition(')')[2].split()[19]}"  # when it was started
    return [name] if run_id == "none" else [name, run_id]
