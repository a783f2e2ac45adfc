"""torch's deterministic algorithms for the length of a run, and a line where there are none."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic(say: Callable[[str], None]) -> Iterator[None]:
    """Within it torch computes the same bits each time, where it can; `say` tells where not, once.

    torch warns of an operation at each of its calls, in a Python warning with a path; here it is
    one line for each operation.
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
    told: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        found = re.match(r"(.+?) does not have a deterministic implementation", str(message))
        if found is None:
            others(message, *where, **more)
        elif found[1] not in told:
            told.add(found[1])
            say(f"--deterministic: {found[1]} has no deterministic implementation here")

    try:
        with warnings.catch_warnings():
            others = warnings.showwarning
            warnings.filterwarnings("always", ".* does not have a deterministic implementation")
            warnings.showwarning = show
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]
        if before[3] is None:
            os.environ.pop(_CUBLAS, None)


@contextmanager
def autotuning() -> Iterator[None]:
    """Within it, cuDNN chooses convolutions by trying them out, unless the run is deterministic.

    For training alone, whose images have one size: each other size would be tried out anew, and
    an image's scores would depend on what was the fastest on the rank that has it.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def allow_fast() -> None:
    """Let a GPU use TF32 where it computes in float32."""
    torch.set_float32_matmul_precision("high")
