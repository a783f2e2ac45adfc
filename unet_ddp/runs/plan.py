"""The schedule of a new run: its learning rate, and as many epochs as end within --budget."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from unet_ddp.cli import with_values
from unet_ddp.config import TrainConfig
from unet_ddp.data.checks.check import PreparedData
from unet_ddp.data.loaders import Loaders, build_loaders
from unet_ddp.distributed.world import World
from unet_ddp.runs.build import ModelSpec
from unet_ddp.runs.resume import Resumed
from unet_ddp.training.out_of_memory import explain_out_of_memory
from unet_ddp.training.range_test import HIGHEST, LOWEST, STEPS, choose_rate, measure_losses
from unet_ddp.training.rehearsal import Pace, describe_time, time_steps, time_validation
from unet_ddp.training.state import TrainState


def settle_schedule(
    config: TrainConfig,
    spec: ModelSpec,
    data: PreparedData,
    resumed: Resumed,
    state: TrainState,
    world: World,
    *,
    began: float,
) -> TrainConfig:
    """Return `config` with the rate that `auto` finds and the epochs that fit into --budget.

    A resumed run keeps its own. The state, at its start, is as before but for its schedule; `began`
    is the time.monotonic() of the program's start.

    Raises:
        UserError: not one epoch fits, or the losses show no rate.
    """
    if config.optimization.learning_rate == "auto":
        with _rehearsal(config, spec, data, world) as loaders:
            config = _find_rate(config, resumed, state, loaders, world)
    budget = config.launch.budget_seconds
    if budget is None or not resumed.is_new:
        return config
    with _rehearsal(config, spec, data, world) as loaders:
        pace = _measure_pace(config, data, state, loaders, world)
    epochs = world.on_main(lambda: pace.count_epochs(budget, time.monotonic() - began))
    state.schedule = replace(state.schedule, steps=epochs * state.steps_per_epoch)
    resumed.notes.append(
        f"--budget {config.launch.budget}: {epochs} epochs of about {describe_time(pace.epoch)} "
        f"({describe_time(pace.step)} a step, {describe_time(pace.validation)} to validate)"
    )
    return with_values(config, {"epochs": epochs})


@contextmanager
def _rehearsal(
    config: TrainConfig, spec: ModelSpec, data: PreparedData, world: World
) -> Iterator[Loaders]:
    """Yield loaders with reading processes of their own: those of the run begin with it."""
    pixels = spec.preprocessing.format
    with (
        build_loaders(config, data, image_format=pixels, world=world) as loaders,
        explain_out_of_memory(config, world, "training"),
    ):
        yield loaders


def _find_rate(
    config: TrainConfig, resumed: Resumed, state: TrainState, loaders: Loaders, world: World
) -> TrainConfig:
    """Return `config` with the learning rate of a range test, the same on every rank."""
    began = time.perf_counter()
    points = measure_losses(state, loaders, config.optimization)
    rate = world.on_main(lambda: choose_rate(points))
    state.schedule = replace(state.schedule, highest=rate)
    rows = (f"{rate!r},{loss!r}\n" for rate, loss in points)
    resumed.range_test.extend(["learning_rate,loss\n", *rows])
    resumed.notes.append(
        f"--learning-rate auto: {rate:g}, at which the loss had fallen half its way in {STEPS} steps "
        f"from {LOWEST:g} to {HIGHEST:g} ({describe_time(time.perf_counter() - began)})"
    )
    return with_values(config, {"learning_rate": rate})


def _measure_pace(
    config: TrainConfig, data: PreparedData, state: TrainState, loaders: Loaders, world: World
) -> Pace:
    """Return the pace of the run on this rank; all of them measure it together."""
    budget, options = config.launch.budget_seconds or 0.0, config.optimization
    step = time_steps(state, loaders, options, world, budget=budget)
    images = math.ceil(len(data.split.validation) / world.size)
    classes = data.labels.num_classes
    validation = time_validation(state, loaders, images=images, num_classes=classes)
    return Pace(step, state.steps_per_epoch, validation)
