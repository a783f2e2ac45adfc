"""Errors that a program reports in one line, without a traceback."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class UserError(ValueError):
    """A mistake in the input: one line ``error: …``, exit status 2.

    The message says what is wrong, in which file or flag, and what to do about it.
    """


class RunError(Exception):
    """A failure of a run that is nobody's mistake, such as a full disk: one line, exit status 1.

    The message says what happened, what is left of the run, and what to do. Any other exception is
    a bug and keeps its traceback.
    """


def one_line(error: object) -> str:
    """Return an error's message in one line that any terminal can show.

    File names may contain line breaks, or bytes that are not text: they become escapes.
    """
    text = str(error).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_lines(*lines: object) -> None:
    """Print lines, each by `one_line`: names in them can't move the cursor or break a line."""
    for line in lines:
        print(one_line(line))


def escape_unencodable() -> None:
    """Print escapes for characters that a strict terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


class _Lossy(io.FileIO):
    """A file that drops what can't be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)  # None: a full pipe that does not block
        except OSError:
            return len(data)


def survive_lost_output() -> None:
    """Make standard output and errors drop what nobody can take: the work goes on, and its status stays.

    A closed terminal, ``| head`` and a full disk of logs would otherwise end it, or fail at the exit.
    """
    escape_unencodable()
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed before the start
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
            continue
        with suppress(OSError):
            stream.flush()
        with suppress(OSError):  # a stream in memory has no number
            raw: Any = _Lossy(stream.fileno(), "w", closefd=False)
            lossy = io.TextIOWrapper(
                raw if stream.write_through else io.BufferedWriter(raw),  # python -u
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, lossy)


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the process without a traceback if nobody reads its output any more (``| head``)."""
    escape_unencodable()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(128 + signal.SIGPIPE) from None
