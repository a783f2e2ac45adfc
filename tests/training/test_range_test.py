"""The learning rate of `auto`: a tenth of the one with the lowest loss, and no trace of the search."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from tests.conftest import SEED
from tests.tiny import make_state
from tests.training.test_rehearsal import Loaders, flattened
from unet_ddp.config import OptimizationConfig
from unet_ddp.errors import UserError
from unet_ddp.training.range_test import (
    HIGHEST,
    LOWEST,
    STEPS,
    Rising,
    choose_rate,
    measure_losses,
)

RATES = [Rising(HIGHEST, STEPS).at(k) for k in range(STEPS)]


def test_rates_rise_by_one_factor_and_losses_are_those_of_the_steps() -> None:
    state, loaders = make_state(ema=0.9, steps=2), Loaders()
    before = copy.deepcopy(state.state_dict())
    schedule = state.schedule
    points = measure_losses(state, loaders, OptimizationConfig())
    assert [rate for rate, _ in points] == RATES
    assert RATES[0] == LOWEST and math.isclose(RATES[-1], HIGHEST)
    np.testing.assert_allclose(np.diff(np.log(RATES)), math.log(1e5) / 59)
    losses = [loss for _, loss in points]
    assert len(set(losses)) == STEPS  # each step has changed the weights
    assert min(losses) < losses[0] - 0.1
    assert loaders.begun == [(epoch, 0) for epoch in range(STEPS // 2)]
    assert flattened(state.state_dict()) == flattened(before) and state.schedule == schedule
    assert measure_losses(state, loaders, OptimizationConfig()) == points


def valley(lowest: float, *, noise: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    """A flat start, a fall to `lowest` and a steep rise, as range tests have them."""
    random = np.random.default_rng(seed)
    decades = np.log10(RATES) - math.log10(lowest)
    losses = 1.3 - 0.8 * np.exp(-((decades / 1.2) ** 2)) + np.where(decades > 0, 2 * decades, 0)
    return list(zip(RATES, losses + noise * random.standard_normal(STEPS), strict=True))


@pytest.mark.parametrize("lowest", [1e-3, 1e-2, 0.1])
def test_the_rate_is_a_tenth_of_the_one_with_the_lowest_loss(lowest: float) -> None:
    rate, found = choose_rate(valley(lowest))
    assert found == pytest.approx(lowest, rel=1) and rate == float(f"{found / 10:.2g}")


def test_batches_that_differ_do_not_decide() -> None:
    """A lucky batch far from the valley, and noise of a tenth of the fall."""
    lucky = valley(1e-2)
    lucky[5] = (lucky[5][0], 0.0)
    assert choose_rate(lucky) == choose_rate(valley(1e-2))
    for k in range(50):
        rate, _ = choose_rate(valley(1e-2, noise=0.08, seed=SEED + k))
        assert 2.5e-4 < rate < 2.5e-3


def test_a_loss_that_is_never_finite_has_no_rate() -> None:
    assert choose_rate(valley(1e-2)[4:])[0] > 0  # those that the scaler of float16 skips
    with pytest.raises(UserError, match="--learning-rate auto: 31 of 60 steps have a non-finite"):
        choose_rate(valley(1e-2)[31:])
