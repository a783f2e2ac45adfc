"""Python's start where ranks are forked from their launcher: they have its imports, five seconds of each."""

from __future__ import annotations

from typing import Any

from torch import multiprocessing

start = multiprocessing.start_processes


def start_forked(*args: Any, **how: Any) -> Any:
    return start(*args, **{**how, "start_method": "fork"})


multiprocessing.start_processes = start_forked
