"""The learning rate of `auto`: where half the fall of the loss is done, and no trace of the search."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from tests.conftest import SEED
from tests.extras.planners.test_dry_run import Loaders, flattened
from tests.tiny import make_state
from unet_ddp.config import OptimizationConfig
from unet_ddp.errors import UserError
from unet_ddp.extras.planners.learning_rate import (
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


def fall(half: float, *, noise: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    """A flat start, a fall from 1.3 to 0.5 that is half done at `half`, and a rise two decades later."""
    random = np.random.default_rng(seed)
    decades = np.log10(RATES) - math.log10(half)
    losses = 0.9 - 0.4 * np.tanh(2 * decades) + np.where(decades > 2, 5 * (decades - 2), 0)
    return list(zip(RATES, losses + noise * random.standard_normal(STEPS), strict=True))


@pytest.mark.parametrize("half", [1e-4, 1e-3, 1e-2])
def test_the_rate_is_that_of_half_the_fall(half: float) -> None:
    """The first rate there or beyond: rates are a factor of 1.22 apart."""
    assert half * 0.99 <= choose_rate(fall(half)) <= half * 1.24
    assert choose_rate(fall(half)) == float(f"{choose_rate(fall(half)):.2g}")


def test_a_loss_that_stays_at_half_its_fall_has_the_first_rate_of_it() -> None:
    losses = [1.0] * 20 + [0.5] * 20 + [0.0] * 20
    points = list(zip(RATES, losses, strict=True))
    assert choose_rate(points) == float(f"{RATES[20]:.2g}")


def test_batches_that_differ_do_not_decide() -> None:
    """A lucky batch at a low rate, an unlucky one on the slope, and noise of a tenth of the fall."""
    odd = fall(1e-2)
    odd[5], odd[38] = (odd[5][0], 0.0), (odd[38][0], 9.0)
    assert 0.6 < choose_rate(odd) / choose_rate(fall(1e-2)) < 1.6
    for k in range(50):
        assert 5e-3 < choose_rate(fall(1e-2, noise=0.08, seed=SEED + k)) < 3e-2


def test_a_loss_that_only_rises_has_the_lowest_rate() -> None:
    """As of a network that is trained already."""
    assert choose_rate([(rate, rate) for rate in RATES]) == LOWEST


def test_a_loss_that_is_never_finite_has_no_rate() -> None:
    assert choose_rate(fall(1e-2)[4:]) == choose_rate(fall(1e-2))  # float16's scaler skips some
    with pytest.raises(UserError, match="--learning-rate auto: 31 of 60 steps have a non-finite"):
        choose_rate(fall(1e-2)[31:])
