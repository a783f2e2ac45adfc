"""Hosts that come and go: connections to those that no longer answer, and torchruns that survive them."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

from unet_ddp.files.output import complain

_SILENCE = 15  # seconds; torchrun too takes a host for lost after them


def follow_launcher(rank: int) -> None:
    """Make an elastic run notice a lost host soon, and warn if a host that returns would end it.

    The others can continue without a host that is lost.
    """
    if not is_elastic():
        return
    end_silent_connections(_SILENCE)
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        complain(
            "--nnodes with a minimum, but without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in "
            "torchrun's environment: a host that comes back will end the run; see docs/several-hosts.md"
        )


def is_elastic() -> bool:
    """Return whether this process's torchrun continues with fewer hosts, as with --nnodes=1:2."""
    nodes = os.environ.get("PET_NNODES", "")
    with suppress(OSError):
        argv = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace")
        given = re.search(r"\0--nnodes[=\0]([\d:]+)\0", argv)
        nodes = given[1] if given else nodes
    fewest, _, most = nodes.partition(":")
    return "TORCHELASTIC_RUN_ID" in os.environ and bool(most) and fewest != most


def end_silent_connections(seconds: float) -> None:
    """Have the system end this process's connections on which the other host no longer answers.

    Otherwise it would repeat what it sends for a quarter of an hour, and wait for data without a limit.
    This is done on Linux; elsewhere --timeout alone decides.
    """
    if sys.platform != "linux":
        return
    probe = max(1, int(seconds / 3))
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it is the folder's, closed by now; or no connection
            if not str(handle.readlink()).startswith("socket:"):
                continue  # a handle of it would be left open
            with socket.socket(fileno=os.dup(int(handle.name))) as connection:
                connection.getpeername()  # an OSError if it only listens
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
                timeout = int(1000 * seconds)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
