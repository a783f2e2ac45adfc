"""Errors that are told in one line, because their traceback would tell nothing."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what the user gave: shown as one line, ``error: …``, exit status 2.

    The message says what is wrong, in which file or flag, and what to do about it.
    """


class RunError(Exception):
    """What ends a run and is neither a mistake nor a fault of ours, as a full disk: status 1.

    The message says what has happened, what is left of the run, and what to do. Anything else
    that is raised is a fault of ours and keeps its traceback.
    """


def one_line(error: object) -> str:
    """What an error says, on one line that any terminal can show.

    A file's name may hold line breaks, or bytes that are no text: they are shown as escapes.
    """
    text = str(error).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
