"""The sockets of multiprocessing: a place for them, and what can't be sent by them."""

from __future__ import annotations

import errno
import multiprocessing.util
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from unet_ddp.errors import RunError, UserError, one_line
from unet_ddp.files import temporary_folder

OTHERS = ("/tmp", "/var/tmp", "/dev/shm")  # where sockets may be as well
_FOLDER, _SOCKET = "pymp-", "listener-12345678"  # as multiprocessing names them


def make_room_for_sockets() -> None:
    """Have multiprocessing keep its sockets in TMPDIR if they can be there, else in another temporary folder.

    A socket's name has at most 107 bytes, so a TMPDIR of 76 letters has no room for it; some file
    systems have no sockets. Processes that send each other arrays would wait forever.

    Raises:
        UserError: they can be in none.
    """
    usual = temporary_folder()
    if not hasattr(socket, "AF_UNIX"):  # Windows has pipes
        return
    problem = _find_problem(usual)
    if not problem:
        return
    found = next((each for each in map(Path, OTHERS) if not _find_problem(each)), None)
    if found is None:
        raise UserError(
            f"TMPDIR={usual}: no sockets of reading processes can be there ({problem}), nor in {OTHERS[0]}; set "
            "TMPDIR to a folder with a short name, or use --workers 0"
        )
    before, tempfile.tempdir = tempfile.tempdir, str(found)
    try:
        multiprocessing.util.get_temp_dir()  # of this process and those that it starts, from now on
    finally:
        tempfile.tempdir = before


def report_unsent() -> None:
    """Have a reading process send an error in place of what it can't send, and print no traceback for it."""
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]  # its hook for this
    # The thread that hands over shared memory calls it.
    sys.excepthook = partial(_show_error, sys.excepthook)


def _send_error(queue: Any, error: Exception, item: object) -> None:
    """Send why a batch could not be sent: its loader would wait for it until the time is over."""
    if isinstance(item, tuple):
        reason = f"a reading process can't send what it has read ({one_line(error)})"
        advice = "raise that limit (ulimit -a), or use --workers 0; continue with --resume"
        queue.put((item[0], RunError(f"{reason}; {advice}")))


def _show_error(
    show: Callable[..., object], kind: type[BaseException], error: BaseException, trace: object
) -> None:
    """Show an error, but for one of too many files, which the rank says in one line."""
    if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
        show(kind, error, trace)


def _find_problem(folder: Path) -> str:
    """Return why multiprocessing can have no socket in a new folder there; empty if it can."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix=_FOLDER, dir=folder) as place,
            socket.socket(socket.AF_UNIX) as trial,
        ):
            trial.bind(str(Path(place, _SOCKET)))
    except OSError as error:
        return error.strerror or str(error)  # Python's own words if the name is too long
    return ""
