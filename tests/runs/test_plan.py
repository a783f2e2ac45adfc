"""A new run's rate and epochs, from steps that are thrown away."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.extras.planners.test_dry_run import Loaders
from tests.tiny import PIXELS, make_data, make_state
from unet_ddp.config import LaunchConfig, OptimizationConfig, TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.distributed.world import World
from unet_ddp.extras.planners.learning_rate import choose_rate, measure_losses
from unet_ddp.runs import plan
from unet_ddp.runs.build import new_schedule
from unet_ddp.runs.plan import RunBuilder, run_planners
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.training.state import TrainState

SPEC: Any = SimpleNamespace(preprocessing=PIXELS)
AUTO = TrainConfig(optimization=OptimizationConfig(learning_rate="auto"))
MINUTE = TrainConfig(launch=LaunchConfig(budget="60s"))


class Opened(Loaders):
    is_closed = False

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    """The loaders that were built, for this data and the spec's pixels."""
    built: list[Opened] = []

    def build(
        config: TrainConfig,
        data: PreparedData,
        *,
        image_format: ImageFormat,
        world: World,
        open_cache: object,
    ) -> Opened:
        assert data.labels.num_classes == 2 and image_format == PIXELS.format
        assert isinstance(config, TrainConfig) and isinstance(world, World)
        assert open_cache is None
        built.append(Opened())
        return built[-1]

    monkeypatch.setattr(plan, "build_loaders", build)
    return built


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> TrainState:
    """A state whose forward passes take a second each, of a clock that nothing else moves."""
    now, state = [0.0], make_state(steps=2)

    def tick(*_: object) -> None:
        now[0] += 1

    state.network.register_forward_hook(tick)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    return state


def plan_run(
    config: TrainConfig, state: TrainState, resumed: StartPoint, world: World | None = None
) -> TrainConfig:
    """The settled settings; the state has their schedule."""
    data = make_data(validation="xyz")
    builder = RunBuilder(SPEC, data, resumed, world or World(), 990.0, RunParts(), state)
    settled = run_planners(config, builder)
    assert builder.build(settled)[0] is state
    return settled


def test_the_rate_of_auto_is_that_of_a_range_test(opened: list[Opened], state: TrainState) -> None:
    resumed = StartPoint()
    schedule = new_schedule(AUTO.optimization, 2)
    config = plan_run(AUTO, state, resumed)
    points = measure_losses(make_state(steps=2), Loaders(), OptimizationConfig())  # type: ignore[arg-type]
    rate = choose_rate(points)
    assert config.optimization == replace(AUTO.optimization, learning_rate=rate)
    assert state.schedule == replace(schedule, highest=rate)
    (note,) = resumed.notes
    assert note.startswith(f"--learning-rate auto: {rate:g}, at which the loss had fallen half its")
    assert note.endswith("in 60 steps from 1e-05 to 1 (60 s)")
    heading, *rows = resumed.files["learning_rate.csv"].splitlines()
    assert heading == "learning_rate,loss"
    assert [tuple(map(float, row.split(","))) for row in rows] == points
    assert [loaders.is_closed for loaders in opened] == [True, False]  # the run's own


@pytest.mark.parametrize(
    ("world", "epochs", "said"),
    [
        # (0.95 * 60 - 10 of the start - 3 - 5 of the report) / (2 * 1 + 3)
        (World(), 7, "7 epochs of about 5 s (1 s a step, 3 s to validate)"),
        (World(size=2), 10, "10 epochs of about 4 s (1 s a step, 2 s to validate)"),  # of 3 images
    ],
)
def test_as_many_epochs_are_planned_as_end_within_the_budget(
    opened: list[Opened], state: TrainState, world: World, epochs: int, said: str
) -> None:
    resumed = StartPoint()
    schedule = new_schedule(MINUTE.optimization, 2)
    config = plan_run(MINUTE, state, resumed, world)
    assert config.optimization == replace(MINUTE.optimization, epochs=epochs)
    assert state.schedule == replace(schedule, steps=epochs * 2)
    assert resumed.notes == [f"--budget 60s: {said}"]
    assert [loaders.is_closed for loaders in opened] == [True, False]  # the run's own


def test_epochs_are_planned_with_the_rate_that_was_found(
    opened: list[Opened], state: TrainState
) -> None:
    resumed = StartPoint()
    config = plan_run(replace(MINUTE, optimization=AUTO.optimization), state, resumed)
    rate, epochs = config.optimization.learning_rate, config.optimization.epochs
    assert (state.schedule.highest, state.schedule.steps) == (rate, 2 * epochs)
    assert len(resumed.notes) == 2 and len(opened) == 3


def test_a_resumed_run_keeps_its_epochs(opened: list[Opened], state: TrainState) -> None:
    assert plan_run(MINUTE, state, StartPoint({})) == MINUTE
    assert plan_run(TrainConfig(), state, StartPoint()) == TrainConfig()
    assert len(opened) == 2 and not any(loaders.is_closed for loaders in opened)  # no planner's
    assert state.schedule == new_schedule(TrainConfig().optimization, 2)
