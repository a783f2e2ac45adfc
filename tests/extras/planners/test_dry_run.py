"""Steps are timed and thrown away; the epochs planned from them end in time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.tiny import make_batch, make_state
from unet_ddp.config import OptimizationConfig
from unet_ddp.data.dataset import Sample
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.planners.budget import Pace, time_steps, time_validation
from unet_ddp.extras.planners.dry_run import restoring, take_dry_steps
from unet_ddp.runs.writers import describe_time
from unet_ddp.training.step import train_steps


class Loaders:
    """Loaders of an epoch of two steps, and a note of the epochs that were begun."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.batches: Any = [make_batch(number) for number in range(2)]
        self.training = SimpleNamespace(of_epoch=self.of_epoch, sampler=SimpleNamespace(steps=2))
        self.validation = [make_batch(9, count=1)] * 40

    def of_epoch(self, epoch: int, step: int) -> Iterator[Sample]:
        self.begun.append((epoch, step))
        return iter(self.batches)


def flattened(content: Any) -> list[Any]:
    """All values in a state, in order, tensors as lists; but for the rates, set before each step."""
    if isinstance(content, dict):
        return [
            item
            for name in sorted(content.keys() - {"param_groups"}, key=str)
            for item in [name, *flattened(content[name])]
        ]
    return [content.tolist() if isinstance(content, torch.Tensor) else content]


def test_a_dry_run_leaves_no_trace() -> None:
    state, loaders = make_state(ema=0.9, steps=2), Loaders()
    before = copy.deepcopy(state.state_dict())
    with restoring(state):
        steps = take_dry_steps(state, loaders, OptimizationConfig())
        assert all(report.is_finite for report in islice(steps, 5))
        assert loaders.begun == [(0, 0), (1, 0), (2, 0)]
        assert not torch.equal(state.network[0].weight, before["model"]["0.weight"])
    assert flattened(state.state_dict()) == flattened(before)
    time_steps(state, loaders, OptimizationConfig(), World(), budget=60)
    time_validation(state, loaders, images=40, labels=Labels((0, 1)))
    assert flattened(state.state_dict()) == flattened(before)
    assert state.schedule == make_state(steps=2).schedule


@pytest.mark.parametrize("accumulate", [1, 3])
def test_batches_of_two_steps_are_read_ahead(accumulate: int) -> None:
    state, loaders, read = make_state(steps=2), Loaders(), list[int]()

    def batches() -> Iterator[Sample]:
        for number in range(9):
            read.append(number)
            yield make_batch(number)

    loaders.batches = batches()
    next(take_dry_steps(state, loaders, OptimizationConfig(accumulate=accumulate)))
    assert len(read) == 3 * accumulate  # of the step that was taken, too


def test_a_dry_step_is_the_run_s_own_step() -> None:
    """With its number of batches, and its limit of the gradients' norm."""
    dry, real, free = (make_state(steps=2) for _ in range(3))
    next(take_dry_steps(dry, Loaders(), OptimizationConfig(accumulate=2, clip=0.01)))
    for state, clip in ((real, 0.01), (free, 0.0)):
        next(train_steps(state, iter(Loaders().batches), accumulate=2, clip=clip))
    assert flattened(dry.state_dict()) == flattened(real.state_dict())
    assert flattened(dry.state_dict()) != flattened(free.state_dict())


def test_times_are_those_of_a_step_and_a_whole_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a step and a validation image move by a second each."""
    now = [0.0]
    state, loaders = make_state(steps=2), Loaders()

    def tick(*_: object) -> None:
        now[0] += 1

    state.network.register_forward_hook(tick)
    monkeypatch.setattr("unet_ddp.extras.planners.budget.time.perf_counter", lambda: now[0])
    for budget, steps in ((60, 4 + 3), (160, 4 + 8), (1e6, 4 + 20)):
        now[0] = 0
        assert time_steps(state, loaders, OptimizationConfig(), World(), budget=budget) == 1
        assert now[0] == steps
    now[0] = 0
    assert time_validation(state, loaders, images=40, labels=Labels((0, 1))) == 40
    assert now[0] == 1 + 16
    assert time_validation(state, loaders, images=0, labels=Labels((0, 1))) == 0


def test_what_the_first_steps_alone_do_is_not_timed() -> None:
    state, corrected = make_state(steps=2), list[bool]()
    state.network.register_forward_hook(lambda *_: corrected.append(state.unbiased))
    time_steps(state, Loaders(), OptimizationConfig(), World(), budget=60)
    assert corrected and not any(corrected)
    assert state.unbiased


def test_planned_epochs_end_within_the_budget() -> None:
    pace = Pace(step=0.5, steps=100, validation=10, report=10)
    assert pace.epoch == 60
    for budget in (300, 1000, 7200):
        epochs = pace.count_epochs(budget, spent=20)
        left = budget - (20 + epochs * 60 + 10 + 5)
        assert 0.05 * budget <= left < 0.05 * budget + 60
    assert pace.count_epochs(100, spent=20) == 1


def test_a_budget_without_an_epoch_says_what_it_takes() -> None:
    pace = Pace(step=0.5, steps=100, validation=10, report=10)
    with pytest.raises(UserError) as refused:
        pace.count_epochs(90, spent=20)
    assert str(refused.value) == (
        "--budget 90 s: one epoch of 100 steps takes about 60 s, start and report 35 s; use at least 2m"
    )
    assert pace.count_epochs(120, spent=20) == 1


def test_times_in_words() -> None:
    times = (0.0312, 4.21, 61, 119, 150, 5400, 9000)
    assert [describe_time(seconds) for seconds in times] == [
        "0.031 s", "4.2 s", "61 s", "119 s", "2 min", "90 min", "2.5 h",
    ]  # fmt: skip
