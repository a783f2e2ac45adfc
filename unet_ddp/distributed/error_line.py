"""The line of an error, and the mark by which the program that started this one knows it."""

from __future__ import annotations

import os

from unet_ddp.errors import one_line

MARK = "UNET_DDP_MARK"
"""In the environment: what stands before such a line. A user's code may print `error: `, too."""


def error_line(error: object) -> str:
    """Return the line in which a program says what is wrong; its reader knows it by the mark that it asked for."""
    return f"{os.environ.get(MARK, '')}error: {one_line(error)}"
