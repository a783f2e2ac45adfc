"""Errors that a program reports in one line, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the process without a traceback if nobody reads its output any more (``| head``)."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(128 + signal.SIGPIPE) from None
