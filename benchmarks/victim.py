"""train.py with two faults, for benchmarks.chaos: it notes its steps and saves slowly.

Neither is in the program itself: a step appends a line to the file named by CHAOS_STEPS, and
writing a checkpoint takes its time, so that kills fall into it.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import train
from unet_ddp.training.guard import FiniteGuard

STEPS = Path(os.environ["CHAOS_STEPS"])
PAUSE = float(os.environ.get("CHAOS_PAUSE", "0"))
SAVE, CHECK = torch.save, FiniteGuard.check


def slow_save(content: Any, file: io.BufferedWriter, **how: Any) -> None:
    """Write a checkpoint in twenty pieces with pauses between; torch's own uses are as they are."""
    if how:
        SAVE(content, file, **how)
        return
    whole = io.BytesIO()
    SAVE(content, whole)
    data = whole.getvalue()
    piece = len(data) // 20 + 1
    for start in range(0, len(data), piece):
        file.write(data[start : start + piece])
        file.flush()
        time.sleep(PAUSE / 2)


def note_step(self: FiniteGuard, report: Any, step: int) -> None:
    """Write a line with this process, its rank, the step and the time."""
    with STEPS.open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {self.world.rank} {step} {time.time()}\n")
    time.sleep(PAUSE)
    CHECK(self, report, step)


if __name__ == "__main__":
    checkpoint.torch.save = slow_save  # type: ignore[attr-defined]
    FiniteGuard.check = note_step  # type: ignore[method-assign]
    train.main()
