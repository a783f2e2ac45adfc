"""Files that are there whole or not at all, and lists to which several processes add."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from unet_ddp.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; it takes its place at the end.

    Raises:
        UserError: it can't be written; what was there before stays.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield half
        half.replace(path)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            half.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Refuse a folder that can't be made or written to, before anything is computed.

    Raises:
        UserError: naming it.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no permission" if there.is_dir() else f"{there} is a file"
        raise UserError(f"{folder}: can't be written: {why}; choose another by --output")


class Part:
    """One process's texts for a list, each with the number of its image.

    They go to a file beside the list as they come: those of a hundred thousand images need not fit
    into memory, and every process has its own.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = _part_path(path, rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
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
        self.path.unlink(missing_ok=True)


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


def _part_path(path: Path, rank: int) -> Path:
    return path.with_name(f".{path.name}.{rank}.part")
