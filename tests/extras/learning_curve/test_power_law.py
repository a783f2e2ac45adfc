"""The power law: what it finds again, and how often its interval is right."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unet_ddp.extras.learning_curve.power_law import LEVEL, PowerLaw

IMAGES = [8, 16, 32, 64]


def draw_dice(random: np.random.Generator, images: list[int], scatter: float) -> list[float]:
    """Dice by 1 - Dice = 0.9 * n^-0.4, whose logarithm scatters."""
    return [1 - 0.9 * n**-0.4 * math.exp(random.normal(0, scatter)) for n in images]


def test_a_law_without_noise_is_found_again() -> None:
    law = PowerLaw(IMAGES, draw_dice(np.random.default_rng(1), IMAGES, 0))
    assert (law.a, law.b) == (pytest.approx(0.9), pytest.approx(0.4))
    forecast = law.forecast(128)
    assert forecast.dice == pytest.approx(1 - 0.9 * 128**-0.4)
    assert forecast.high - forecast.low < 1e-6


def test_a_law_with_noise_is_found_nearly() -> None:
    images = IMAGES * 10
    law = PowerLaw(images, draw_dice(np.random.default_rng(7), images, 0.1))
    assert law.a == pytest.approx(0.9, rel=0.2) and law.b == pytest.approx(0.4, abs=0.05)
    assert law.scatter == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_interval_contains_one_more_training_as_often_as_it_says(repeats: int) -> None:
    random, images, hits, tries = np.random.default_rng(3), IMAGES * repeats, 0, 1500
    for _ in range(tries):
        law = PowerLaw(images, draw_dice(random, images, 0.1))
        _, low, high = law.forecast(128)
        hits += low <= draw_dice(random, [128], 0.1)[0] <= high
    assert hits / tries == pytest.approx(LEVEL, abs=0.04)  # four standard errors


def test_perfect_and_useless_scores_have_an_interval() -> None:
    """A perfect score has no error to take the logarithm of; nor does an interval leave 0 to 1."""
    dice, low, high = PowerLaw(IMAGES, [0.1, 0.6, 0.0, 1.0]).forecast(128)
    assert 0 == low < dice < high < 1
    falling = PowerLaw(IMAGES, [0.9, 0.5, 0.3, 0.1]).forecast(256)
    assert str(falling).startswith("Dice 0.000 (0.000 to ")
