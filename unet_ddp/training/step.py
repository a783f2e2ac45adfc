"""The math of training, in two functions; no files, no bars, no ranks."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.profiler import record_function

from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import without_sync
from unet_ddp.errors import UserError
from unet_ddp.metrics.counts import Counts
from unet_ddp.network.precision import Precision
from unet_ddp.training.losses import DiceCrossEntropy


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the position: nothing of it needs saving."""

    highest: float
    steps: int
    """Steps of the optimizer in the whole run."""
    warmup: float = 0.05
    """Share of the steps in which it rises from near 0."""
    lowest: float = 0.01
    """What the cosine ends at, as a share of `highest`."""

    def at(self, step: int) -> float:
        """The learning rate of the step with this number, from 0."""
        rising = round(self.warmup * self.steps)
        if step < rising:
            return self.highest * (step + 1) / (rising + 1)
        done = min(1.0, (step - rising) / max(1, self.steps - rising))
        share = self.lowest + (1 - self.lowest) * 0.5 * (1 + math.cos(math.pi * done))
        return self.highest * share


@dataclass
class TrainState:
    """All that changes while a run goes on.

    The optimizer must be a fused one of torch's, which can skip a step on the device.
    """

    network: nn.Module
    """Scored and saved."""
    replica: nn.Module
    """Trained: the same weights, whose gradients are the mean over ranks."""
    optimizer: torch.optim.Optimizer
    precision: Precision
    average: AveragedModel | None = None
    """Moving average of the weights."""
    compiled: nn.Module | None = None
    """The replica as torch.compile has it: the same weights, no others."""
    epoch: int = 0
    step: int = 0
    """Steps of the optimizer done in this epoch."""
    best: float = -math.inf
    best_epoch: int = 0
    threshold: float | None = None
    """The best threshold of the epoch that was scored last; None for more than two classes."""
    sums: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    """(3,): loss, Dice loss and cross-entropy, summed over this epoch's finite steps, on the device."""

    def finish_epoch(self, score: float, threshold: float | None = None) -> bool:
        """Go on to the next epoch; whether this one's score is the best so far."""
        self.threshold = threshold
        is_best = score > self.best  # never for nan
        if is_best:
            self.best, self.best_epoch = score, self.epoch
        self.epoch, self.step = self.epoch + 1, 0
        self.sums = torch.zeros_like(self.sums)
        return is_best

    @property
    def forward(self) -> nn.Module:
        """The replica, in the form that is the fastest."""
        return self.replica if self.compiled is None else self.compiled

    @property
    def scored(self) -> nn.Module:
        """The network to score and to predict with."""
        return self.network if self.average is None else self.average.module

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""
        average = self.average
        return {
            "model": self.network.state_dict(),
            "ema": average.module.state_dict() if average else None,
            "ema_steps": int(average.n_averaged) if average else 0,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.scaler.state_dict(),
            "position": {"epoch": self.epoch, "step": self.step, "sums": self.sums.tolist()},
            "best": {"score": self.best, "epoch": self.best_epoch},
            "threshold": self.threshold,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None and state["ema"] is not None:
            self.average.module.load_state_dict(state["ema"])
            self.average.n_averaged.fill_(state["ema_steps"])
        if state["scaler"]:  # empty where scaling was off
            self.precision.scaler.load_state_dict(state["scaler"])
        position, best = state["position"], state["best"]
        self.epoch, self.step = position["epoch"], position["step"]
        self.sums = self.sums.new_tensor(position["sums"])
        self.best, self.best_epoch = best["score"], best["epoch"]
        self.threshold = state.get("threshold")


def moving_average(network: nn.Module, decay: float) -> AveragedModel | None:
    """An exponential moving average of the weights (batch norm's statistics are copied)."""
    if decay == 0:
        return None
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
    return average.eval().requires_grad_(False)


@dataclass(frozen=True)
class StepReport:
    """What one step of the optimizer did; tensors stay on the device."""

    losses: Tensor
    """(3,): loss, Dice loss, cross-entropy, over the global batch."""
    learning_rate: float
    is_finite: Tensor
    """() bool: whether loss and gradient were finite; else the step has changed nothing."""
    pairs: list[int]
    """This rank's pairs in the step."""


def train_epoch(
    state: TrainState,
    batches: Iterable[Sample],
    loss: DiceCrossEntropy,
    preprocess: Preprocessing,
    schedule: Schedule,
    *,
    steps: int,
    until: int | None = None,
    accumulate: int = 1,
    clip: float = 0.0,
    seed: int = 0,
) -> Iterator[StepReport]:
    """The rest of an epoch, step by step; the state is sound, and may be saved, at each yield.

    Args:
        batches: this rank's, from the state's step on.
        steps: steps of the optimizer in a whole epoch.
        until: stop before this one of them.
        accumulate: batches per step.
        clip: longest gradient; 0 for any.
        seed: for random layers, drawn anew at each step; of its own for each rank.
    """
    state.replica.train()
    source = _moved(batches, state.precision.device)
    while state.step < (steps if until is None else min(steps, until)):
        step = state.epoch * steps + state.step
        rate = schedule.at(step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed(derive_seed(seed, step))
        before = snapshot_buffers(state.network)
        pairs: list[int] = []
        losses = gradients(
            state, _noted(islice(source, accumulate), pairs), loss, preprocess, count=accumulate
        )
        with record_function("step"):
            is_finite = _update(state, losses, clip)
            restore_unless(before, is_finite)
            state.sums += torch.where(is_finite, losses, torch.zeros_like(losses))
        state.step += 1
        yield StepReport(losses, rate, is_finite, pairs)


def gradients(
    state: TrainState,
    batches: Iterable[Sample],
    loss: DiceCrossEntropy,
    preprocess: Preprocessing,
    *,
    count: int,
) -> Tensor:
    """Backward passes of one step's `count` batches; their mean losses, (3,)."""
    precision, total = state.precision, torch.zeros(3, device=state.precision.device)
    for number, batch in enumerate(batches, start=1):
        images, masks = _to_device(batch, precision.device)
        with nullcontext() if number == count else without_sync(state.replica):
            with record_function("forward"), precision.autocast():
                logits = _forward(state.forward, preprocess(images, _dtype(state.network)))
            with record_function("loss"):
                losses = loss(logits, masks)
            del images, logits
            with record_function("backward"):
                precision.scaler.scale(losses.total / count).backward()
        total += torch.stack([part.detach().float() for part in losses]) / count
    return total


def _moved(batches: Iterable[Sample], device: torch.device) -> Iterator[Sample]:
    """`batches` on a GPU: while one is computed on, the next is copied, on a stream of its own."""
    if device.type != "cuda":
        yield from batches
        return
    stream = _copying(device)
    ahead: tuple[Sample, torch.cuda.Event] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            images, masks = _to_device(batch, device)
            arriving = Sample(images, masks, batch.pair), stream.record_event()
        if ahead is not None:
            yield _arrived(*ahead)
        ahead = arriving
    if ahead is not None:
        yield _arrived(*ahead)


@lru_cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    """One for the run: memory that a stream has used is not given to another."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _arrived(batch: Sample, event: torch.cuda.Event) -> Sample:
    """A batch that is being copied, for work that begins when it is there."""
    stream = torch.cuda.current_stream(batch.image.device)
    stream.wait_event(event)
    for tensor in (batch.image, batch.mask):
        tensor.record_stream(stream)  # or its memory could be given away while it is worked on
    return batch


def _noted(batches: Iterable[Sample], pairs: list[int]) -> Iterator[Sample]:
    """`batches`, with the numbers of their pairs added to `pairs`."""
    for batch in batches:
        pairs += batch.pair.tolist()
        yield batch


def snapshot_buffers(network: nn.Module) -> list[tuple[list[Tensor], Tensor]]:
    """Batch norm's buffers, one list for each type, and what they hold, in a row.

    In a row, for a copy and a choice of each by itself would be a hundred kernels in a step.
    """
    groups: dict[torch.dtype, list[Tensor]] = {}
    for buffer in network.buffers():
        groups.setdefault(buffer.dtype, []).append(buffer)
    return [(group, _in_a_row(group)) for group in groups.values()]


def _in_a_row(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def restore_unless(before: list[tuple[list[Tensor], Tensor]], is_finite: Tensor) -> None:
    """After a step that was not finite, what the buffers held `before` it."""
    for group, row in before:
        chosen = torch.where(is_finite, _in_a_row(group), row)
        parts = torch.split(chosen, [buffer.numel() for buffer in group])
        torch._foreach_copy_(group, [p.view_as(b) for p, b in zip(parts, group, strict=True)])


def _forward(replica: nn.Module, images: Tensor) -> Tensor:
    try:
        logits: Tensor = replica(images)
    except (ValueError, RuntimeError) as error:  # compiled, it is a RuntimeError
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"--batch-size {len(images)}: batch norm would see a single value per channel in images "
            f"of {images.shape[3]}x{images.shape[2]}; give a larger batch, --scale or --crop-size"
        ) from None
    return logits


def _update(state: TrainState, losses: Tensor, clip: float) -> Tensor:
    """A step of the optimizer, unless loss or gradient is not finite; () bool, whether it was.

    The decision is made on the device and without a host sync: fused optimizers skip the step
    where `found_inf` is set, as GradScaler has them do. It is the same on every rank, for loss
    and gradients are.
    """
    scaler, optimizer = state.precision.scaler, state.optimizer
    scaler.unscale_(optimizer)  # the limit is for true gradients, not for scaled ones
    norm = nn.utils.clip_grad_norm_(state.network.parameters(), clip or math.inf)
    is_finite = norm.isfinite() & losses[0].isfinite()
    if not scaler.is_enabled():
        optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if state.average is not None:
        update_ema(state.average, state.network)
    return is_finite


@torch.no_grad()
def update_ema(average: AveragedModel, network: nn.Module) -> None:
    """What `average.update_parameters` does, without its wait for the device at each step."""
    own: list[Tensor] = list(average.module.parameters())
    new: list[Tensor] = list(network.parameters())
    assert average.multi_avg_fn is not None
    if average.n_averaged == 0:  # counted on the host
        torch._foreach_copy_(own, new)
    else:
        average.multi_avg_fn(own, new, average.n_averaged)
    for kept, buffer in zip(average.module.buffers(), network.buffers(), strict=True):
        kept.copy_(buffer)
    average.n_averaged += 1


@torch.inference_mode()
def evaluate(
    network: nn.Module,
    batches: Iterable[Sample],
    preprocess: Preprocessing,
    precision: Precision,
    *,
    num_classes: int,
) -> Counts:
    """This rank's counts, on the device; sum them over ranks for scores."""
    was_training = network.training
    network.eval()
    counts = Counts.zeros(num_classes, precision.device)
    for batch in batches:
        images, masks = _to_device(batch, precision.device)
        with precision.autocast():
            logits = network(preprocess(images, _dtype(network)))
        counts.add(Counts.of(logits, masks))
    network.train(was_training)
    return counts


def _to_device(batch: Sample, device: torch.device) -> tuple[Tensor, Tensor]:
    with record_function("host to device"):
        return batch.image.to(device, non_blocking=True), batch.mask.to(device, non_blocking=True)


def _dtype(network: nn.Module) -> torch.dtype:
    return next(network.parameters()).dtype


def derive_seed(seed: int, step: int) -> int:
    """One number from two, such that no other two in reach give the same."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
