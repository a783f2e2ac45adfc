"""Files that are there whole or not at all, and lists to which several processes add."""

from __future__ import annotations

import glob
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from types import FrameType

from unet_ddp.errors import UserError

_HALF = re.compile(r"\.(.+)\.(\d+)\.tmp")
_unfinished: set[Path] = set()
"""Halves and parts that this process is writing, on any thread."""
_guard = RLock()  # a signal may come while the main thread holds it


def remove_on_signals() -> None:
    """From now on, Ctrl-C, SIGTERM and SIGHUP end the process at once and leave nothing half written.

    Threads that are in the midst of an image are not waited for.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    with _guard:  # and no other thread begins a file after this
        for path in _unfinished:
            with suppress(OSError):
                path.unlink()
        os.write(sys.stderr.fileno(), b"stopped; go on by --skip-existing\n")
        os._exit(128 + number)


def _begin(path: Path) -> None:
    with _guard:
        _unfinished.add(path)


def _end(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
    with _guard:
        _unfinished.discard(path)


def remove_stale(files: Iterable[Path]) -> None:
    """Remove what killed processes have left of these files."""
    names: dict[Path, set[str]] = {}
    for path in files:
        names.setdefault(path.parent, set()).add(path.name)
    for folder in names:
        for half in folder.glob(".*.tmp"):
            found = _HALF.fullmatch(half.name)
            if found and found[1] in names[folder] and not _is_alive(int(found[2])):
                half.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; it takes its place at the end.

    Raises:
        UserError: it can't be written; what was there before stays.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _begin(half)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield half
        half.replace(path)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
    finally:
        _end(half)


def check_writable(folder: Path) -> None:
    """Refuse a folder that can't be made or written to, before anything is computed.

    Raises:
        UserError: naming it.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(
            f"{folder}: can't be written: {there} is a file; choose another by --output"
        )
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = "no permission" if isinstance(error, PermissionError) else error.strerror
        raise UserError(f"{folder}: can't be written: {why}; choose another by --output") from None


class Part:
    """One process's texts for a list, each with the number of its image.

    They go to a file beside the list as they come: those of a hundred thousand images need not fit
    into memory, and every process has its own.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = _part_path(path, rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _begin(self.path)
            self._file = self.path.open("wb")
        except OSError as error:
            _end(self.path)
            raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
        self._lock = Lock()

    def add(self, number: int, text: str) -> None:
        """A line of image `number`, from any thread."""
        line = text.encode("utf-8", "surrogateescape")
        assert b"\n" not in line
        with self._lock:
            self._file.write(b"%d\t%s\n" % (number, line))

    def close(self) -> None:
        self._file.close()

    def drop(self) -> None:
        """Remove it."""
        self._file.close()
        _end(self.path)


def in_order(path: Path, size: int) -> Iterator[bytes]:
    """The lines of all `size` processes' closed parts, in the images' order."""
    files = [_part_path(path, rank).open("rb") for rank in range(size)]
    try:
        places: list[tuple[int, int, int]] = []
        for which, file in enumerate(files):
            start = 0
            for line in file:
                places.append((int(line[: line.index(b"\t")]), start, which))
                start += len(line)
        for _, start, which in sorted(places):
            files[which].seek(start)
            yield files[which].readline().partition(b"\t")[2].rstrip(b"\n")
    finally:
        for file in files:
            file.close()


def remove_stale_parts(path: Path) -> None:
    """Remove what a killed job, perhaps of more processes, has left of a list."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        part.unlink(missing_ok=True)


def _part_path(path: Path, rank: int) -> Path:
    return path.with_name(f".{path.name}.{rank}.part")
