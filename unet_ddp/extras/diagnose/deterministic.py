"""torch's deterministic algorithms, for the length of a run."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_WARNING = "does not have a deterministic implementation"


@contextmanager
def deterministic(log: Callable[[str], None]) -> Iterator[None]:
    """Use torch's deterministic algorithms; `log` one line per operation that has none.

    torch itself warns at each call of such an operation, with a path.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get(_CUBLAS),
    )
    os.environ.setdefault(_CUBLAS, ":4096:8")  # before cuBLAS starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    log_once = cache(log)

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if found := re.match(rf"(.+?) {_WARNING}", str(message)):
            log_once(f"--deterministic: {found[1]} has no deterministic implementation here")
        else:
            show_others(message, *where, **more)

    try:
        with warnings.catch_warnings():
            show_others = warnings.showwarning
            warnings.filterwarnings("always", f".* {_WARNING}")
            warnings.showwarning = show
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]
        if before[3] is None:
            os.environ.pop(_CUBLAS, None)
