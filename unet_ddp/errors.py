"""The one kind of error that is the user's to mend."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what the user gave: shown as one line, ``error: …``, exit status 2.

    The message says what is wrong, in which file or flag, and what to do about it.
    Anything else that is raised is a fault of ours and keeps its traceback.
    """
