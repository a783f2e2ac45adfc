"""A place for the sockets of multiprocessing."""

from __future__ import annotations

import multiprocessing.util
import socket
import tempfile
from pathlib import Path

from unet_ddp.errors import UserError
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
