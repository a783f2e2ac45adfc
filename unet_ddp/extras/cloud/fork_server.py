"""Reading processes that are forked from a server, and not from their rank.

A client's threads do not survive a fork. The server has the rank's imports and nothing else of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from unet_ddp.distributed.stop_signal import SIGNALS


def start_fork_server() -> BaseContext:
    """Return the context of processes forked from this rank's server, which begins to import."""
    context = multiprocessing.get_context("forkserver")
    ours = [
        name for name in sys.modules if name.partition(".")[0] in ("unet_ddp", "albumentations")
    ]
    context.set_forkserver_preload(ours)
    # Like its readers, the server leaves it to the rank when to stop; it inherits what is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def end_with_rank() -> None:
    """Have a reading process end with its rank, where the process that forked it is another one."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    rank = multiprocessing.parent_process()
    if rank is not None and rank.pid != os.getppid():
        threading.Thread(target=_exit_after, args=(rank,), daemon=True).start()


def _exit_after(rank: BaseProcess) -> None:
    rank.join()
    os._exit(1)
