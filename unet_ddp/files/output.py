"""The output of a program: what can't be written is dropped, and secrets in tracebacks are hidden."""

from __future__ import annotations

import io
import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

from unet_ddp.errors import hide_secrets


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


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    print(hide_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr)
