"""A disk that fails: notes the file operations below a folder, and has one of them go wrong."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

OPEN, TIME, CLOCK = io.open, time.time, time.monotonic
REFUSED = {
    "ENOSPC": {"open", "write", "mkdir", "link"},
    "EDQUOT": {"open", "write", "mkdir", "link", "fsync"},
    "EROFS": {"open", "mkdir", "link", "rename", "unlink", "truncate"},
    "EIO": {"write", "fsync"},
    "EPERM": {"link"},  # a file system without links
}
"""The operations that each error can be the answer to."""


def absolute(path: Any) -> str:
    """Return a path without links followed."""
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100


class Killed(BaseException):
    """The process is dead: nothing that it does from now on reaches the disk."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong: a kind of `REFUSED` below checkpoints, or kill, clock, the name of a signal."""

    kind: str
    at: int = 0
    """Number of the operation; writes to one file that follow each other are one."""
    lasts: bool = False
    """Goes wrong from then on, too."""
    on: str = ""
    """Part of a file's name: only operations on such files are counted, and go wrong."""


@dataclass(frozen=True)
class Operation:
    """A change of the disk."""

    name: str
    path: str
    other: str = ""
    data: bytes = b""
    offset: int = 0


class _File(io.FileIO):
    def __init__(self, disk: Disk, file: Any, mode: str, *how: Any) -> None:
        self.disk = disk
        super().__init__(file, mode, *how)

    def write(self, data: Any) -> int:
        offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        return self.disk.write(self.fileno(), bytes(data), offset, super().write)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        path = self.disk.name_of(self.fileno())
        self.disk.do("truncate", path, lambda: io.FileIO.truncate(self, size), offset=size)
        return size


@dataclass
class Disk:
    """Context in which what this thread and others do below `root` is noted, and goes wrong.

    Saves and other work of thread pools are done at once, or `late`: when their result is asked for.
    """

    root: Path
    fault: Fault | None = None
    late: bool = False
    process: int = 0
    """Id of the process as it sees itself, so that a killed one is dead for the next."""
    on_rename: Callable[[Path], None] = lambda path: None
    log: list[Operation] = field(default_factory=list)
    is_dead: bool = False
    count: int = 0
    _offset: float = 0.0
    _is_short: bool = False
    _is_over: bool = False

    def name_of(self, handle: int) -> str:
        """Return the path of an open file; one outside of all folders for a pipe."""
        return str("/" / Path(f"/proc/self/fd/{handle}").readlink()).removesuffix(" (deleted)")

    def watches(self, path: Any) -> bool:
        return absolute(path).startswith(f"{self.root}/")

    def do(self, name: str, path: Any, action: Callable[[], Any], **more: Any) -> Any:
        """Note an operation and return what `action` does; or die, or raise an error, instead.

        A dead process's other threads do nothing, and None is returned: they would end in noise.
        """
        path = absolute(path)
        if not (self.watches(path) or self.watches(more.get("other", ""))):
            return action()
        last = self.log[-1] if self.log else None
        is_same = last is not None and last.path == path
        is_more = name == "write" == (last.name if last else "") or "tfevents" in path
        if self.fault and self.fault.on in Path(path).name:
            if not (is_same and is_more):  # an event file is opened again and again
                self.count += 1
            if not self.is_dead:
                self._fail(self.fault, name, path)
        if self.is_dead:
            if threading.current_thread() is threading.main_thread():
                raise Killed
            return None
        done = action()
        self.log.append(Operation(name, path, **more))
        if name == "rename":
            self.on_rename(Path(more["other"]))
        return done

    def _fail(self, fault: Fault, name: str, path: str) -> None:
        if self._is_over or self.count <= fault.at:
            return
        if fault.kind in REFUSED:
            if name in REFUSED[fault.kind] and path.startswith(f"{self.root}/checkpoints"):
                self._is_over = not fault.lasts
                number = getattr(errno, fault.kind)
                raise OSError(number, os.strerror(number), path)
            return
        self._is_over = True
        if fault.kind == "clock":
            self._offset = 1e7 if fault.lasts else -1e7
        elif fault.kind != "kill" and callable(signal.getsignal(signal.Signals[fault.kind])):
            signal.raise_signal(signal.Signals[fault.kind])
            time.sleep(0.02)  # a thread hears of it
        else:
            self.is_dead = True

    def write(self, handle: int, data: bytes, offset: int, action: Callable[[Any], int]) -> int:
        """Write; the first write that goes wrong writes half."""
        path, half, was_dead = self.name_of(handle), data[: len(data) // 2], self.is_dead
        if was_dead:  # a pipe still wakes the threads that are to end
            return len(data) if self.watches(path) else action(data)
        try:
            done = self.do("write", path, lambda: action(data), data=data, offset=offset)
            return len(data) if done is None else int(done)
        except Killed:
            action(half)
            raise
        except OSError:
            if self._is_short or not half:
                raise
            self._is_short, self._is_over = True, False  # the rest of it is refused
            self.log.append(Operation("write", path, data=half, offset=offset))
            return action(half)

    # -- what is put in place of the system's functions -------------------------------------------

    def open(self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
             errors: Any = None, newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        is_new = not isinstance(file, int)
        path = os.fspath(file) if is_new else self.name_of(file)
        if not set(mode) & set("wax+") or not self.watches(path):
            return OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        make = lambda: _File(self, file, plain, closefd, opener)  # noqa: E731
        kept = b"keep" if set(plain) & set("ra") else b""
        raw = self.do("open", path, make, data=kept) if is_new else make()
        if raw is None:
            return OPEN(os.devnull, mode, buffering, encoding, errors, newline)
        if buffering == 0:
            return raw
        buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    def _named(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return the system's `plain`, noted by name."""

        def one(path: Any, *args: Any, **how: Any) -> Any:
            return self.do(name, path, lambda: plain(path, *args, **how))

        def two(path: Any, other: Any, *args: Any, **how: Any) -> Any:
            target = absolute(other)
            return self.do(name, path, lambda: plain(path, other, *args, **how), other=target)

        def handle(number: int, *args: Any) -> Any:
            size = args[-1] if args else 0
            return self.do(name, self.name_of(number), lambda: plain(number, *args), offset=size)

        def opened(path: Any, flags: int, *args: Any, **how: Any) -> Any:
            act = lambda: plain(path, flags, *args, **how)  # noqa: E731
            is_new = flags & (os.O_CREAT | os.O_TRUNC) and flags & os.O_TMPFILE != os.O_TMPFILE
            kept = b"" if flags & os.O_TRUNC else b"keep"
            return self.do(name, path, act, data=kept) if is_new else act()

        if name in ("rename", "link"):
            return two
        return handle if name in ("fsync", "truncate") else opened if name == "open" else one

    @contextlib.contextmanager
    def watching(self) -> Iterator[Disk]:
        """Put this disk in place of the system's, for the whole process."""
        places = [os, getattr(pathlib, "_NormalAccessor", os)]  # the latter in Python 3.10
        names = {
            "open": "open", "replace": "rename", "rename": "rename", "unlink": "unlink",
            "remove": "unlink", "rmdir": "rmdir", "mkdir": "mkdir", "link": "link",
            "fsync": "fsync", "fdatasync": "fsync", "ftruncate": "truncate",
        }  # fmt: skip
        plain = {name: getattr(os, name) for name in names}
        with contextlib.ExitStack() as stack:
            put = lambda *args: stack.enter_context(mock.patch.object(*args))  # noqa: E731
            for place in dict.fromkeys(places):
                for name, kind in names.items():
                    if hasattr(place, name):
                        put(place, name, self._named(kind, plain[name]))
            put(builtins, "open", self.open)
            put(io, "open", self.open)
            put(os, "write", lambda n, data: self.write(n, data, end_of(n), lambda d: WRITE(n, d)))
            put(time, "time", lambda: TIME() + self._offset)
            put(time, "monotonic", lambda: CLOCK() + max(0.0, self._offset))
            put(ThreadPoolExecutor, "submit", _submit_late if self.late else _submit_now)
            if self.process:
                put(os, "getpid", lambda: self.process)
            yield self


WRITE = os.write


def end_of(handle: int) -> int:
    """Return where the next write goes: our files are new, or appended to."""
    return os.fstat(handle).st_size


class _Late(Future):  # type: ignore[type-arg]
    """Work that is done when its result is asked for."""

    work: Callable[[], Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        work, self.work = self.work, None
        if work is not None:
            try:
                self.set_result(work())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)


def _submit_late(_: Any, work: Callable[..., Any], *args: Any, **how: Any) -> Future[Any]:
    future = _Late()
    future.work = lambda: work(*args, **how)
    return future


def _submit_now(_: Any, work: Callable[..., Any], *args: Any, **how: Any) -> Future[Any]:
    future = _submit_late(_, work, *args, **how)
    with contextlib.suppress(Exception):
        future.result()
    return future
