"""The line of an error, and the mark by which the program that started this one knows it."""

from __future__ import annotations

import os
import sys

from unet_ddp.errors import UserError, one_line
from unet_ddp.files.output import emit, uses_json

MARK = "UNET_DDP_MARK"
"""In the environment: what stands before such a line. A user's code may print `error: `, too."""


def error_line(error: object) -> str:
    """Return the line in which a program says what is wrong; its reader knows it by the mark that it asked for."""
    return f"{os.environ.get(MARK, '')}error: {one_line(error)}"


def show_error(error: object) -> None:
    """Print an error's line on standard error; in JSON lines, unless its reader waits for the mark, the event."""
    if uses_json() and MARK not in os.environ:
        emit("error", text=one_line(error), exit_status=2 if isinstance(error, UserError) else 1)
    else:
        print(error_line(error), file=sys.stderr, flush=True)
