"""The guard of a run against steps that are not finite."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain

import torch
from torch import Tensor

from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError
from unet_ddp.training.step import StepReport

_SEARCH = 16  # halvings of GradScaler's first scale, 2¹⁶, down to 1
_SEVERAL = 3  # steps: one bad image is in fewer of a small set
_GROWTH = 2000  # good steps in a row, after which it doubles its scale


@dataclass(eq=False)
class FiniteGuard:
    """Follows the steps of a run, in the same way on every rank.

    The step has skipped itself already, on the device; the guard reports it. On a GPU it judges a
    step two steps later, when the result has been copied to the host, and the last two in `flush`.
    """

    world: World
    pairs: Sequence[Pair]  # to train on
    _: KW_ONLY
    most: int  # skipped steps in a row that end the run
    log: Callable[[str], None]  # prints a line on the main process
    has_scaler: bool = False  # GradScaler looks for a scale, by steps whose gradients overflow
    skipped: int = 0  # steps of the run so far
    loss: float = field(default=0.0, init=False)  # of the last step that was judged

    def __post_init__(self) -> None:
        self._quiet = _SEARCH if self.has_scaler else 0  # overflows that are the search for a scale
        self._in_a_row = self._good_in_a_row = self._good = self._judged = 0
        self._delay = 2 if self.world.device.type == "cuda" else 0
        self._pending: deque[tuple[int, list[int], Tensor, torch.cuda.Event | None]] = deque()

    @property
    def pending(self) -> int:
        """Number of steps that are not judged yet; the others are done."""
        return len(self._pending)

    def check(self, report: StepReport, step: int) -> None:
        """Judge a step of the run, counted from 1, or an earlier one on a GPU.

        Raises:
            RunError: too many skipped steps in a row.
        """
        loss, event = report.losses[0], None
        answer = torch.stack([loss, report.is_finite.to(loss.dtype)])  # (2,)
        answer = answer.to("cpu", non_blocking=True)  # to pinned memory
        if self.world.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, report.pairs, answer, event))
        while len(self._pending) > self._delay:
            self._judge(*self._pending.popleft())

    def flush(self) -> None:
        """Judge the steps that are not judged yet, at the end of an epoch; see `check`.

        Raises:
            RunError: the same, or no step of the run was good, and there were several.
        """
        while self._pending:
            self._judge(*self._pending.popleft())
        none_was_good = not self._good and self.skipped >= max(self._judged, _SEVERAL)
        if none_was_good and self._quiet <= 0:
            raise RunError(
                f"all {self.skipped} steps were skipped, as loss or gradients are not finite; check "
                "the images, or use a lower --lr, and other weights of the loss and the classes if they are given"
            )

    def _judge(
        self, step: int, pairs: list[int], answer: Tensor, event: torch.cuda.Event | None
    ) -> None:
        if event is not None:
            event.synchronize()
        self.loss, is_finite = answer.tolist()
        self._judged = step
        if is_finite:
            self._in_a_row = 0
            self._good_in_a_row += 1
            self._good += 1
            self._quiet = 1 if self.has_scaler and self._good_in_a_row >= _GROWTH else 0
            return
        self._good_in_a_row = 0
        self._in_a_row += 1
        self.skipped += 1
        is_search = math.isfinite(self.loss) and self._quiet > 0
        self._quiet -= 1
        if is_search and self._in_a_row < self.most:
            return
        names = self.world.gather([str(self.pairs[index].image) for index in pairs])
        images = ", ".join(chain.from_iterable(names))
        what = "gradients" if math.isfinite(self.loss) else "loss"
        message = f"step {step} skipped: non-finite {what}; images: {images}"
        if self._in_a_row >= self.most:
            raise RunError(
                f"{message}; stopped after {self._in_a_row} skipped steps in a row, which no file "
                "contains: continue with --resume and a lower --lr, or with --precision bfloat16 or "
                "float32 if float16 was used; check the images if they are always the same"
            )
        self.log(f"warning: {message} ({self._in_a_row} in a row, {self.skipped} in all)")
