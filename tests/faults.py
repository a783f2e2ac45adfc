"""Faults planted in a run: python tests/faults.py FAULT [train.py's arguments].

They use the places where torch lets anyone look in: a hook after a step of the optimizer, on the
gradients and in front of the loss. None is in the program itself.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from tests.ranks import call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import train
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.extras.cloud import clients, objects, pointer
from unet_ddp.runs import plan
from unet_ddp.runs.folder import RunFolder
from unet_ddp.training.state import TrainState

RANK = "RANK"
BUILD, SAVE, READ = plan.build_state, checkpoint.save, SegmentationDataset.__getitem__
PUT = pointer.put
BEGIN_SAVE = RunFolder.save


def on_rank(rank: int, action: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: action() if os.environ.get(RANK, "0") == str(rank) else None


def send(number: signal.Signals, to: Callable[[], int] = os.getpid) -> Callable[[], None]:
    return lambda: os.kill(to(), number)


def kill_once() -> None:
    """Kill this process after torchrun's first start, not after its restart."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


AFTER_STEP: dict[str, tuple[int, Callable[[], Any]]] = {
    "signal to one rank": (3, on_rank(1, send(signal.SIGTERM))),
    "signal to the launcher": (3, on_rank(0, send(signal.SIGTERM, os.getppid))),
    "user signal to the launcher": (3, on_rank(0, send(signal.SIGUSR1, os.getppid))),
    "user signal to the batch shell": (
        3,
        on_rank(0, send(signal.SIGUSR1, lambda: int(os.environ["BATCH_SHELL"]))),
    ),
    "interrupt": (3, send(signal.SIGINT)),
    "interrupt of the group": (8, lambda: os.killpg(0, signal.SIGINT)),
    "a rank dies": (3, on_rank(1, send(signal.SIGKILL))),
    "a rank dies once": (3, on_rank(1, kill_once)),
    "killed": (8, send(signal.SIGKILL)),
    "a rank hangs": (3, on_rank(1, signal.pause)),
    "storage ends": (3, on_rank(0, lambda: os.kill(int(os.environ["STORE"]), signal.SIGKILL))),
    "the folder is removed": (3, on_rank(0, lambda: shutil.rmtree("checkpoints"))),
}
"""Faults by the step of the run after which they come."""


def spoil_gradients(state: TrainState, *, is_bad: Callable[[], bool]) -> None:
    next(state.network.parameters()).register_hook(lambda g: g * math.nan if is_bad() else g)


def spoil_loss(state: TrainState, *, is_bad: Callable[[], bool]) -> None:
    def spoil(_: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...] | None:
        return (inputs[0] * math.nan, inputs[1]) if is_bad() else None

    state.loss.register_forward_pre_hook(spoil)


def build_with(fault: str) -> Callable[..., TrainState]:
    """Return train.py's `build_state`, with a fault in what it builds."""

    def build(*args: Any, **how: Any) -> TrainState:
        state = BUILD(*args, **how)
        if fault in AFTER_STEP:
            step, action = AFTER_STEP[fault]
            state.optimizer.register_step_post_hook(
                lambda *_: action() if state.done + 1 == step else None
            )
        elif fault == "slow steps":
            state.optimizer.register_step_post_hook(lambda *_: time.sleep(0.2))
        elif fault == "nan in each epoch":
            spoil_gradients(state, is_bad=lambda: state.step == 1)
        elif fault == "nan for ever":
            spoil_gradients(state, is_bad=lambda: True)
        elif fault == "nan loss on one rank":
            spoil_loss(state, is_bad=lambda: state.done == 1 and os.environ[RANK] == "1")
        return state

    return build


def read_with(action: Callable[[], Any]) -> Callable[..., Any]:
    """Return the data set's reading, with something that happens to the fifth pair."""

    def read(self: SegmentationDataset, key: tuple[int, int]) -> Any:
        if key[1] == 4:
            action()
        return READ(self, key)

    return read


def save_on_full_disk(path: Path, *args: Any, **how: Any) -> None:
    """Save where the system itself refuses, after the first save, more than 3000 bytes for each file of the folder."""
    is_full = "checkpoints" in str(path) and path.with_name("last.pt").exists()
    limit = 3000 if is_full else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        SAVE(path, *args, **how)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def save_and_wait(self: RunFolder, *args: Any, **how: Any) -> None:
    """Save as a run whose disk is faster than its steps: what is killed later has these files."""
    BEGIN_SAVE(self, *args, **how)
    self.wait()


class DyingFile(io.BytesIO):
    """A file of two parts whose process dies as the second one is read to be put."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(size)


def put_and_die(path: Path, content: Any, **how: Any) -> Any:
    """Put, but die in the upload of the third checkpoint."""
    is_third = path.name.startswith("000003")
    return PUT(path, DyingFile(bytes(12_000_000)) if is_third else content, **how)


@contextlib.contextmanager
def planted(fault: str) -> Iterator[None]:
    """Plant a fault in all runs of this process."""
    with contextlib.ExitStack() as stack:
        if fault == "full disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            stack.enter_context(mock.patch.object(checkpoint, "save", save_on_full_disk))
        elif fault == "slow steps":
            torch.set_default_dtype(torch.float64)  # nothing but the order of sums is left
            stack.callback(torch.set_default_dtype, torch.float32)
            reports = "unet_ddp.extras.report.write.write_reports"  # predict in float32
            stack.enter_context(mock.patch(reports))
            stack.enter_context(mock.patch.object(plan, "build_state", build_with(fault)))
        elif fault == "a reading process dies":
            read = read_with(send(signal.SIGKILL))
            stack.enter_context(mock.patch.object(SegmentationDataset, "__getitem__", read))
        elif fault == "a reading process hangs":
            read = read_with(signal.pause)
            stack.enter_context(mock.patch.object(SegmentationDataset, "__getitem__", read))
        elif fault == "killed in mid-upload":
            stack.enter_context(mock.patch.object(pointer, "put", put_and_die))
        else:
            if fault == "storage ends":  # it is not waited for as long as usual
                for module in (clients, objects):
                    stack.enter_context(mock.patch.object(module, "PATIENCE", timedelta(seconds=2)))
            if fault == "killed":
                stack.enter_context(mock.patch.object(RunFolder, "save", save_and_wait))
            stack.enter_context(mock.patch.object(plan, "build_state", build_with(fault)))
        yield


def train_with(fault: str, argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py with a fault in this process, as `call_train` does."""
    with planted(fault):
        return call_train(argv, folder)


if __name__ == "__main__":
    if sys.argv[1] == "interrupt of the group":
        os.setsid()  # with its reading processes, as a shell starts a command
    with planted(sys.argv[1]):
        train.main(sys.argv[2:])
