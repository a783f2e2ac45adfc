"""The training step: forward, loss, backward, unscale, clip, update, on one screen.

A step with a loss or a gradient that is not finite changes nothing. That is decided on the device,
without waiting for it: fused optimizers skip the update where `found_inf` is set. Loss and
gradients, and so the decision, are the same on every rank.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import average_values, without_sync
from unet_ddp.errors import UserError
from unet_ddp.network.batchnorm import FIRST_STEPS, average_over_ranks, correct_bias
from unet_ddp.network.precision import image_type
from unet_ddp.training.state import TrainState

Snapshot = list[tuple[list[int], Tensor]]
"""Of the buffers of one dtype, their places in the list of all, and a flat copy of their values."""


@dataclass(frozen=True)
class StepReport:
    """The outcome of one step of the optimizer; tensors stay on the device."""

    losses: Tensor
    """(3,): loss, region term, pixel term, over the global batch."""
    learning_rate: float
    is_finite: Tensor
    """() bool: loss and gradient are finite; otherwise the step has changed nothing."""
    pairs: list[int]
    """Indices of this rank's pairs in the step."""


def train_step(
    state: TrainState, batches: Iterator[Sample], *, accumulate: int = 1, clip: float = 0.0
) -> StepReport:
    """Take one step of the optimizer on the next `accumulate` of this rank's batches.

    The replica must be in training mode, the batches on its device; clip 0 is for any norm.
    """
    tensors, optimizer, scaler = state.trained, state.optimizer, state.precision.scaler
    before = snapshot_buffers(tensors.buffers)
    losses = torch.zeros(3, device=state.precision.device)
    pairs: list[int] = []
    for k, (images, masks, indices) in enumerate(islice(batches, accumulate), start=1):
        pairs += indices.tolist()
        with nullcontext() if k == accumulate else without_sync(state.replica):
            with record_function("forward"), state.precision.autocast():
                logits = forward(state.forward, state.preprocess, images)  # (N, classes, H, W)
            with record_function("loss"):
                loss = state.loss(logits, masks)  # float32 sums over the global batch
            del images, logits
            with record_function("backward"):  # DDP averages over ranks meanwhile
                scaler.scale(loss.total / accumulate).backward()
        losses += torch.stack([part.detach().float() for part in loss]) / accumulate
    with record_function("step"):
        average_values([p.grad for p in state.of_loss if p.grad is not None])  # DDP has the others
        scaler.unscale_(optimizer)  # the limit is for true gradients, not for scaled ones
        norm = nn.utils.clip_grad_norm_(tensors.parameters, clip or math.inf)
        is_finite = norm.isfinite() & losses[0].isfinite()  # () bool
        # Not scaler.step: it knows of the gradients only, and would apply those of a bad loss.
        optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()
        scaler.update()
        state.zero_gradients()
        correct_averages(state, before, batches=accumulate)
        restore_unless(is_finite, tensors.buffers, before)
        if state.average is not None:
            state.average.update_ema(state.tensors, is_finite)
        state.count_step(losses, is_finite)
    return StepReport(losses, state.schedule.at(state.done - 1), is_finite, pairs)


def correct_averages(state: TrainState, before: Snapshot, *, batches: int) -> None:
    """Average over ranks the buffers of which each has its own; remove the bias of batch norm's start."""
    if state.has_own_buffers:
        average_values(state.trained.own_buffers)
    if state.has_local_norms:
        average_over_ranks(state.network)
    if state.unbiased and state.done < FIRST_STEPS:  # they may still be biased
        buffers, copies = state.trained.buffers, dict[Tensor, Tensor]()
        for places, values in before:
            group = [buffers[place] for place in places]
            copies.update(zip(group, unflatten(values, group), strict=True))
        correct_bias(state.network, copies, batches=batches)


def train_steps(
    state: TrainState,
    batches: Iterator[Sample],
    *,
    until: int | None = None,
    accumulate: int = 1,
    clip: float = 0.0,
) -> Iterator[StepReport]:
    """Yield after each step of the rest of an epoch; the state is then complete and may be saved.

    The batches are this rank's from the state's step on. The run stops when it has done `until`
    steps; for the others see `train_step`.
    """
    state.replica.train()
    for part in state.frozen:
        part.eval()
    while state.step < state.steps_per_epoch and (until is None or state.done < until):
        for group in state.optimizer.param_groups:
            group["lr"] = state.schedule.at(state.done) * group.get("lr_scale", 1.0)
        seed_all(derive_seed(state.seed, state.done))
        yield train_step(state, batches, accumulate=accumulate, clip=clip)


def forward(network: nn.Module, preprocess: Preprocessing, images: Tensor) -> Tensor:
    """Return the logits (N, classes, H, W) of images (N, H, W, C), which are uint8 until here.

    Raises:
        UserError: batch norm sees a single value per channel.
    """
    try:
        logits: Tensor = network(preprocess(images, image_type(network)))
    except (ValueError, RuntimeError) as error:  # RuntimeError if compiled
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"--batch-size {len(images)}: batch norm sees a single value per channel in images of "
            f"{images.shape[2]}x{images.shape[1]}; use a larger batch (with --resume, a smaller --accumulate), --scale "
            "or --crop-size"
        ) from None
    return logits


def snapshot_buffers(buffers: Sequence[Tensor]) -> Snapshot:
    """Return the buffers' places, grouped by dtype, each group with a flat copy of its values.

    Flat, as a copy and a choice for each buffer would be a hundred kernels in a step. Places, as a pass may put
    another tensor in that of a buffer.
    """
    groups: dict[torch.dtype, list[int]] = {}
    for place, buffer in enumerate(buffers):
        groups.setdefault(buffer.dtype, []).append(place)
    return [(group, torch.cat([buffers[k].flatten() for k in group])) for group in groups.values()]


def unflatten(values: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Return views of flat `values` (values,) with the shapes of tensors."""
    chunks = torch.split(values, [tensor.numel() for tensor in like])
    return [chunk.view_as(tensor) for chunk, tensor in zip(chunks, like, strict=True)]


@torch.no_grad()
def restore_unless(is_finite: Tensor, buffers: Sequence[Tensor], snapshot: Snapshot) -> None:
    """Write the snapshot's values back into the buffers, unless `is_finite` () is true."""
    for places, before in snapshot:
        group = [buffers[place] for place in places]
        chosen = torch.where(is_finite, torch.cat([*map(torch.flatten, group)]), before)
        torch._foreach_copy_(group, unflatten(chosen, group))


def seed_all(seed: int) -> None:
    """Seed torch's generators, and those by which a network of the user's own may skip a layer."""
    for generator in (torch.default_generator, *torch.cuda.default_generators):
        generator.manual_seed(seed)  # torch.manual_seed looks for six kinds of devices, each time
    random.seed(seed)
    np.random.seed(seed % 2**32)


def derive_seed(seed: int, step: int) -> int:
    """Return one seed for a pair of numbers, a different one for each pair in practice."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
