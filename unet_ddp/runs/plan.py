"""The plan of a new run: as many epochs as end within --budget."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from unet_ddp.config import TrainConfig
from unet_ddp.data.checks.check import PreparedData
from unet_ddp.data.loaders import build_loaders
from unet_ddp.distributed.world import World
from unet_ddp.runs.build import Model
from unet_ddp.runs.resume import Resumed
from unet_ddp.training.out_of_memory import explain_out_of_memory
from unet_ddp.training.rehearsal import Pace, describe_time, time_steps, time_validation
from unet_ddp.training.state import TrainState


def plan_run(
    config: TrainConfig,
    model: Model,
    data: PreparedData,
    resumed: Resumed,
    state: TrainState,
    world: World,
    *,
    began: float,
) -> TrainConfig:
    """Return `config` with the epochs that fit into --budget; a resumed run keeps its own.

    The state, at its start, is as before but for its schedule; `began` is the time.monotonic() of the
    program's start.

    Raises:
        UserError: not one epoch fits.
    """
    budget = config.launch.budget_seconds
    if budget is None or not resumed.is_new:
        return config
    pace = _measure_pace(config, model, data, state, world, budget)
    epochs = world.on_main(lambda: pace.count_epochs(budget, time.monotonic() - began))
    state.schedule = replace(state.schedule, steps=epochs * state.steps_per_epoch)
    resumed.notes.append(
        f"--budget {config.launch.budget}: {epochs} epochs of about {describe_time(pace.epoch)} "
        f"({describe_time(pace.step)} a step, {describe_time(pace.validation)} to validate)"
    )
    return replace(config, optimization=replace(config.optimization, epochs=epochs))


def _measure_pace(
    config: TrainConfig,
    model: Model,
    data: PreparedData,
    state: TrainState,
    world: World,
    budget: float,
) -> Pace:
    """Return the pace of the run on this rank; all of them measure it together."""
    with (  # reading processes of its own: those of the run begin with it
        build_loaders(
            config, data, image_format=model.preprocessing.format, world=world
        ) as loaders,
        explain_out_of_memory(config, world, "training"),
    ):
        step = time_steps(state, loaders, config.optimization, world, budget=budget)
        images = math.ceil(len(data.split.validation) / world.size)
        validation = time_validation(
            state, loaders, images=images, num_classes=data.labels.num_classes
        )
    return Pace(step, state.steps_per_epoch, validation)
