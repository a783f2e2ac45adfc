"""The lock of a run's folder: one run at a time; no trace of a start that was refused."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from unet_ddp.errors import UserError
from unet_ddp.files import complain, open_own

_NAME = ".lock"
HELD: dict[tuple[int, int, int], IO[str]] = {}
"""Locks by process, device and inode. The system lets a process lock a file twice, and unlocks it at any close."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some network file systems


def lock_folder(folder: Path, flag: str, *, waits: bool = False) -> IO[str]:
    """Create `folder` and lock it until the returned file is closed or the process ends.

    If another process has locked it, this one `waits` for its end.

    Raises:
        UserError: another process has locked it, or it is not writable; `flag` names another one.
    """
    while True:
        _refuse_own(folder, flag)
        try:
            lock = _open(folder)
        except OSError as error:
            reason, ways = f"{folder}: {error.strerror or error}", flag
            if not os.path.lexists(folder):  # so no other name in this folder's helps
                ways = flag.partition(" or ")[0]
            raise UserError(f"{reason}; choose a writable folder with {ways}") from None
        if not _lock(lock, folder, flag, waits=waits):
            return lock
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (folder / _NAME).stat()):
                break
        lock.close()  # of a file that `unlock_folder` has deleted meanwhile
    status = os.fstat(lock.fileno())
    HELD[os.getpid(), status.st_dev, status.st_ino] = lock
    with suppress(OSError):  # it is only for a message, and for `unlock_folder`
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), str(os.getpid()).encode())
    return lock


def unlock_folder(lock: IO[str], folder: Path) -> None:
    """Close the lock of a folder that this process has made; delete both if nothing else is in it.

    They are locked meanwhile: whoever waits for the lock then makes a new one. Without locks they stay.
    """
    with lock, suppress(OSError):
        lock.seek(0)
        if lock.read() == str(os.getpid()) and [*folder.iterdir()] == [folder / _NAME]:
            (folder / _NAME).unlink()
            folder.rmdir()


def _refuse_own(folder: Path, flag: str) -> None:
    """Raise UserError if this process has locked the folder; its file must not even be opened then."""
    with suppress(OSError):
        status = (folder / _NAME).stat()
        lock = HELD.get((os.getpid(), status.st_dev, status.st_ino))
        if lock is not None and not lock.closed:
            raise UserError(
                f"{folder}: another run of this process uses it; call it when that has ended, or choose "
                f"another folder with {flag}"
            )


def _open(folder: Path) -> IO[str]:
    for _ in range(9):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # `unlock_folder` has removed the folder
            return open_own(folder / _NAME, "a+")
    return open_own(folder / _NAME, "a+")


def _lock(lock: IO[str], folder: Path, flag: str, *, waits: bool) -> bool:
    """Return whether the file is locked now; where there are no locks, print a warning."""
    try:
        import fcntl  # Windows has none

        # A record lock belongs to this process alone: reading processes do not inherit it, as they do
        # filelock's up to 3.20; and that is a file that a kill leaves where there is no flock.
        fcntl.lockf(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (ImportError, OSError) as error:
        if getattr(error, "errno", errno.ENOSYS) in _NO_LOCKS:
            complain(f"{folder}: Windows or its file system has no locks; start no other run in it")
            return False
        with lock:
            lock.seek(0)
            owner = lock.read().strip() or "?"
        raise UserError(
            f"{folder}: another run uses it (process {owner}); wait for its end, or choose another "
            f"folder with {flag}"
        ) from None
    return True
