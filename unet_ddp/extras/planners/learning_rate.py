"""``--learning-rate auto``: steps at a rising rate, thrown away (Smith, arXiv 1506.01186)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from unet_ddp.config import OptimizationConfig, TrainConfig
from unet_ddp.data.loaders import Loaders
from unet_ddp.distributed.device import cudnn_autotuning
from unet_ddp.errors import UserError
from unet_ddp.extras.planners.dry_run import restoring, take_dry_steps, trying
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.runs.writers import describe_time
from unet_ddp.training.state import Schedule, TrainState

STEPS = 60  # a fixed number, not a time: the rate depends on data, settings and seed alone
LOWEST, HIGHEST = 1e-5, 1.0
_REACH = 4  # points on each side of the one whose loss is smoothed

Point = tuple[float, float]
"""A learning rate, and the loss of the global batch in the step with it."""


@dataclass(frozen=True)
class Rising(Schedule):
    """A rate that rises from LOWEST to HIGHEST, by the same factor in each step."""

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return float(LOWEST * (HIGHEST / LOWEST) ** (step / (STEPS - 1)))


def plan(config: TrainConfig, builder: RunBuilder) -> dict[str, Any]:
    """Return the learning rate of a range test, the same on every rank.

    Raises:
        UserError: its losses show no rate.
    """
    began, start = time.perf_counter(), builder.start
    with trying(builder, config) as (state, loaders):
        points = measure_losses(state, loaders, config.optimization)
    rate = builder.world.on_main(lambda: choose_rate(points))
    rows = (f"{rate!r},{loss!r}\n" for rate, loss in points)
    start.files["learning_rate.csv"] = "".join(["learning_rate,loss\n", *rows])
    start.notes.append(
        f"--learning-rate auto: {rate:g}, at which the loss had fallen half its way in {STEPS} steps "
        f"from {LOWEST:g} to {HIGHEST:g} ({describe_time(time.perf_counter() - began)})"
    )
    return {"learning_rate": rate}


def measure_losses(state: TrainState, loaders: Loaders, options: OptimizationConfig) -> list[Point]:
    """Return the points of a range test; the state is as before. Steps that are not finite are left out."""
    with restoring(state), cudnn_autotuning():
        state.schedule = Rising(HIGHEST, STEPS)
        return [
            (report.learning_rate, report.losses[0].item())  # waits for the device
            for report in islice(take_dry_steps(state, loaders, options), STEPS)
            if report.is_finite
        ]


def choose_rate(points: Sequence[Point]) -> float:
    """Return the rate at which the loss has fallen half its way to the lowest, to two digits.

    There the loss falls fastest, and the noise of batches moves the result least. The rate of the lowest
    loss itself depends more on the number of steps, as AdamW may diverge late or never. Each loss is the median of nine, so that one batch does not decide.

    Raises:
        UserError: too few steps were finite.
    """
    if len(points) < STEPS // 2:
        raise UserError(
            f"--learning-rate auto: {STEPS - len(points)} of {STEPS} steps have a non-finite loss or "
            "gradient; check the data, or use a number"
        )
    losses = [loss for _, loss in points]
    smooth = []
    for k in range(len(losses)):
        smooth.append(median(losses[max(0, k - _REACH) : k + _REACH + 1]))
    half = (smooth[0] + min(smooth)) / 2
    fallen = smooth.index(min(smooth))
    while fallen > 0 and smooth[fallen - 1] <= half:
        fallen -= 1
    return float(f"{points[fallen][0]:.2g}")
