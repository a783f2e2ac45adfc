"""The output of a program: plain lines, or JSON lines (--log json).

What can't be written is dropped, and secrets in tracebacks are hidden.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

from unet_ddp.errors import hide_secrets, one_line

_BEGINNINGS = {"warning: ": "warning", "error: ": "error"}  # of plain lines, and their events


class _Lossy(io.FileIO):
    """A file that drops what can't be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)  # None: a full pipe that does not block
        except OSError:
            return len(data)


def survive_lost_output() -> None:
    """Make standard output and errors drop what can't be written: the work and its exit status do not change.

    A closed terminal, ``| head`` and a full disk of logs would otherwise end it, or fail at the exit. Tracebacks
    that end the program show no secrets.
    """
    sys.excepthook = _show_traceback
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed before the start
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
            continue
        if not isinstance(stream, io.TextIOWrapper):  # a notebook's, or in memory
            continue
        if stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # for what its encoding lacks
        with suppress(OSError):
            stream.flush()
        with suppress(OSError):
            file: Any = _Lossy(stream.fileno(), "w", closefd=False)
            if not stream.write_through:  # as python -u has it
                file = io.BufferedWriter(file)
            lossy = io.TextIOWrapper(
                file,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, lossy)


@contextmanager
def without_stdout() -> Iterator[None]:
    """Drop what compiled libraries print in the block, as gloo of torch 2.10 does between JSON lines."""
    with ExitStack() as stack:
        with suppress(OSError):  # closed before the start
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            nothing = os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, nothing)
            os.dup2(nothing, 1)
        yield


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    print(hide_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)


# -- JSON lines ----------------------------------------------------------------------------


class JsonLines(io.TextIOBase):
    """Standard output with a JSON object in place of each line, whoever prints it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun = ""  # a line without its end

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write a note, a warning or an error for each line that ends in `text`."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(None, lines):
            found = [begin for begin in _BEGINNINGS if line.startswith(begin)]
            event = _BEGINNINGS[found[0]] if found else "note"
            self.emit(event, text=line.removeprefix(found[0] if found else "").strip())
        return len(text)

    def emit(self, event: str, **fields: object) -> None:
        """Write an object at once, with the time and these fields; texts show no secrets."""
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        line = json.dumps(as_plain({"event": event, "time": now, **fields}))
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def flush(self) -> None:
        """Write what is written; a line without its end waits for it."""
        self._stream.flush()

    def fileno(self) -> int:
        """Return the number of the stream behind."""
        return self._stream.fileno()


def use_json() -> None:
    """Print JSON lines from now on."""
    if not isinstance(sys.stdout, JsonLines):
        sys.stdout = JsonLines(sys.stdout)


def uses_json() -> bool:
    """Return whether this process prints JSON lines."""
    return isinstance(sys.stdout, JsonLines)


@contextmanager
def json_lines() -> Iterator[None]:
    """Print JSON lines in the block."""
    if sys.stdout is None:  # nobody reads them
        yield
        return
    with redirect_stdout(JsonLines(sys.stdout)):
        yield


def emit(event: str, **fields: object) -> None:
    """Print an event if the output is of JSON lines, else nothing."""
    if isinstance(sys.stdout, JsonLines):
        sys.stdout.emit(event, **fields)


def say(line: str, *, event: str | None = None, **fields: object) -> None:
    """Print a line above the progress bar; in JSON lines it is an `event` with these fields, if that is given."""
    if event and uses_json():
        emit(event, text=one_line(line), **fields)
    else:
        _write(one_line(line), sys.stdout)


def as_plain(value: object) -> object:
    """Return plain values for JSON: their texts show no secrets, and None stands for nan and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, dict):
        return {key: as_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(as_plain, value)]
    return hide_secrets(str(value))


def complain(error: object, *, begin: str | None = None, **fields: object) -> None:
    """Print a warning (text) or an error (exception) on standard error; in JSON lines on standard output.

    The plain line begins with `begin`, or with the kind.
    """
    event = "error" if isinstance(error, BaseException) else "warning"
    if uses_json():
        emit(event, text=one_line(error), **fields)
    else:
        begin = f"{event}: " if begin is None else begin
        _write(f"{begin}{one_line(error)}", sys.stderr)
        if sys.stderr is not None:
            sys.stderr.flush()


def _write(line: str, stream: TextIO | None) -> None:
    """Write a line above the progress bar, if there is a stream: pythonw and services have none."""
    if stream is not None:
        tqdm.write(line, file=stream)
