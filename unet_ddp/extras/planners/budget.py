"""``--budget``: as many epochs as end in time, by steps and images that are timed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

from unet_ddp.config import OptimizationConfig, TrainConfig
from unet_ddp.config.run import parse_time
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import Loaders
from unet_ddp.distributed.device import cudnn_autotuning
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of
from unet_ddp.extras.planners.dry_run import restoring, take_dry_steps, trying
from unet_ddp.heads import find_head
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.runs.writers import describe_time
from unet_ddp.training.state import TrainState
from unet_ddp.training.validation import count_pixels

_WARM_UP, _MOST_STEPS, _MOST_IMAGES = 3, 20, 16  # untimed steps; timed steps and images
_SHARE = 0.05  # of the budget: the longest dry run, and what is left unplanned
_SEPARATION = 3  # times the time for an untrained network, which sees fewer objects that touch
_REPORT = 5.0  # seconds of the report at the end, beside its scoring


def plan(config: TrainConfig, builder: RunBuilder) -> dict[str, Any]:
    """Return the epochs that fit into the budget; a resumed run keeps its own.

    Raises:
        UserError: not one does.
    """
    if not builder.start.is_new:
        return {}
    given = str(config.launch.budget)
    budget = parse_time(given)
    world, data = builder.world, builder.data
    with trying(builder, config) as (state, loaders):
        step = time_steps(state, loaders, config.optimization, world, budget=budget)
        images = math.ceil(len(data.split.validated) / world.size)
        validation = time_validation(state, loaders, images=images, labels=data.labels)
        head = find_head(data.labels)
        tuner = head.tuner(data, world, resize_masks=config.data.resize_masks)
        if images and tuner is not None:  # each epoch's network may be the best so far
            began = time.perf_counter()
            counts = head.counts.zeros(data.labels.num_classes, world.device)
            tuner.tune(state, counts, watch=lambda samples: samples)
            validation += _SEPARATION * (time.perf_counter() - began)
    times = len(data.split.validation) / max(1, len(data.split.validated))
    pace = Pace(step, state.steps_per_epoch, validation, times * validation)
    epochs = world.on_main(lambda: pace.count_epochs(budget, time.monotonic() - builder.began))
    builder.start.notes.append(
        f"--budget {given}: {count_of(epochs, 'epoch')} of about {describe_time(pace.epoch)} "
        f"({describe_time(pace.step)} a step, {describe_time(pace.validation)} to validate)"
    )
    return {"epochs": epochs}


@dataclass(frozen=True)
class Pace:
    """The measured seconds of a run's parts."""

    step: float
    steps: int  # steps in an epoch
    validation: float
    report: float  # to score all validation images once more

    @property
    def epoch(self) -> float:
        """Seconds of an epoch with its validation."""
        return self.step * self.steps + self.validation

    def count_epochs(self, budget: float, spent: float) -> int:
        """Return how many epochs end within `budget` seconds, of which `spent` are over.

        Raises:
            UserError: not one does.
        """
        fixed = spent + self.report + _REPORT
        epochs = math.floor(((1 - _SHARE) * budget - fixed) / self.epoch)
        if epochs < 1:
            raise UserError(
                f"--budget {describe_time(budget)}: one epoch of {count_of(self.steps, 'step')} takes about "
                f"{describe_time(self.epoch)}, start and report {describe_time(fixed)}; use at least "
                f"{math.ceil((fixed + self.epoch) / (1 - _SHARE) / 60)}m"
            )
        return epochs


def time_steps(
    state: TrainState, loaders: Loaders, options: OptimizationConfig, world: World, *, budget: float
) -> float:
    """Return the seconds of a step on this rank; at most 20 are timed, or a share of the budget."""
    steps = take_dry_steps(state, loaders, options)

    def take(count: int) -> float:
        began = time.perf_counter()
        for report in islice(steps, count):
            loss = report.losses[0]
        loss.item()  # waits for the device
        return (time.perf_counter() - began) / count

    with restoring(state), cudnn_autotuning():
        state.unbiased = False  # a run's first steps alone correct it
        take(_WARM_UP)
        one = take(1)
        most = _SHARE * budget / max(one, 1e-6)
        return take(world.on_main(lambda: max(_WARM_UP, min(_MOST_STEPS, int(most)))))


def time_validation(state: TrainState, loaders: Loaders, *, images: int, labels: Labels) -> float:
    """Return the seconds of the validation of this rank's share of `images`; 16 of them are timed."""
    if not images or loaders.validation is None:
        return 0.0
    tried = min(images, _MOST_IMAGES)
    kind = find_head(labels).counts
    for count in (1, tried):  # the first pass starts the reading processes
        began = time.perf_counter()
        counts = count_pixels(
            state, islice(loaders.validation, count), num_classes=labels.num_classes, kind=kind
        )
        counts.confusion.sum().item()  # waits for the device
    return (time.perf_counter() - began) * images / tried
