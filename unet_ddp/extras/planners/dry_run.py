"""Steps that are taken and thrown away before a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from unet_ddp.config import OptimizationConfig, TrainConfig
from unet_ddp.data.loaders import Loaders
from unet_ddp.distributed.out_of_memory import explain_out_of_memory
from unet_ddp.errors import UserError
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.training.prefetch import Prefetcher
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import StepReport, train_steps


@contextmanager
def trying(builder: RunBuilder, config: TrainConfig) -> Iterator[tuple[TrainState, Loaders]]:
    """Yield the run's state and loaders to take steps with; see `restoring`."""
    state, loaders = builder.build(config)
    with loaders, explain_out_of_memory(config, builder.world, "training"):
        yield state, loaders


@contextmanager
def restoring(state: TrainState) -> Iterator[None]:
    """Leave the state as it is now, whatever steps do to it in this context."""
    before = copy.deepcopy(state.state_dict())
    schedule, unbiased = state.schedule, state.unbiased
    try:
        yield
    finally:
        state.schedule, state.unbiased = schedule, unbiased
        state.load_state_dict(before)


def take_dry_steps(
    state: TrainState, loaders: Loaders, options: OptimizationConfig
) -> Iterator[StepReport]:
    """Yield after each step of an endless run, as train.py takes them; see `restoring`."""

    def fail(error: UserError) -> None:
        raise error

    while True:
        batches = Prefetcher(
            loaders.training.of_epoch(state.epoch, 0),
            ahead=2 * options.accumulate,
            device=state.precision.device,
            on_error=fail,
        )
        batches.fill()
        for report in train_steps(state, batches, accumulate=options.accumulate, clip=options.clip):
            batches.fill()
            yield report
        state.epoch, state.step = state.epoch + 1, 0
