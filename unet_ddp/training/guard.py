"""Watches for losses and gradients that are not finite: names their files, stops after too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError
from unet_ddp.training.step import StepReport

_BEHIND = 2  # steps on a GPU, so that asking never waits for its newest work


class FiniteGuard:
    """Follows the steps of a run, equally on every rank.

    The engine has skipped a bad step already, on the device; this is about telling. On a GPU it
    looks at a step two steps later, when its result has long been copied to the host.

    Args:
        pairs: the training pairs.
        most: bad steps in a row that are borne.
        say: shows a line on the main process.
    """

    def __init__(
        self, world: World, pairs: list[Pair], *, most: int, say: Callable[[str], None]
    ) -> None:
        self.world = world
        self.pairs = pairs
        self.most = most
        self.say = say
        self.skipped = 0
        """Bad steps so far."""
        self._in_a_row = 0
        self._waiting: deque[tuple[int, StepReport, Tensor, torch.cuda.Event | None]] = deque()

    def look(self, report: StepReport, step: int) -> None:
        """Step number `step` of the run was done.

        Raises:
            RunError: too many bad steps in a row.
        """
        if self.world.device.type == "cuda":
            answer = torch.empty((), dtype=torch.bool, pin_memory=True)
            answer.copy_(report.is_finite, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._waiting.append((step, report, answer, event))
        else:
            self._waiting.append((step, report, report.is_finite, None))
        behind = _BEHIND if self.world.device.type == "cuda" else 0
        while len(self._waiting) > behind:
            self._judge(*self._waiting.popleft())

    def _judge(
        self, step: int, report: StepReport, is_finite: Tensor, event: torch.cuda.Event | None
    ) -> None:
        if event is not None:
            event.synchronize()
        if bool(is_finite):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        self.skipped += 1
        names = self.world.gather([str(self.pairs[number].image) for number in report.pairs])
        files = ", ".join(name for rank in names for name in rank)
        what = "gradients" if bool(report.losses[0].isfinite()) else "loss"
        told = f"step {step} skipped: its {what} came out as nan or infinity; its images: {files}"
        if self._in_a_row >= self.most:
            raise RunError(
                f"{told}; stopped after {self._in_a_row} such steps in a row. Nothing of them is in "
                "any file: go on by --resume with a lower --lr, or with --amp-dtype bfloat16 or "
                "--no-amp where float16 was used, and look at the images if they are always the same"
            )
        self.say(f"warning: {told} ({self._in_a_row} in a row, {self.skipped} in all)")
