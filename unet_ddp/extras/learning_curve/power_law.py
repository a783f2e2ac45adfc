"""The power law of a learning curve, and its forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.8
"""Share of the intervals that contain what is forecast, where the law holds."""
_LEAST = 1e-4  # error that counts: a perfect score has no logarithm


class Forecast(NamedTuple):
    """The Dice to expect of one more training, and its interval."""

    dice: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"Dice {self.dice:.3f} ({self.low:.3f} to {self.high:.3f})"


class PowerLaw:
    """The law 1 - Dice = a * n^-b of n images (Hestness et al., arXiv 1712.00409).

    Least squares of the logarithms gives its constants. The authors' third one, an irreducible error, is left
    out: a handful of sizes does not determine it.
    """

    def __init__(self, images: Sequence[float], dice: Sequence[float]) -> None:
        self.logs = np.log(images)
        errors = np.log(np.maximum(1 - np.array(dice), _LEAST))
        slope, level = np.polyfit(self.logs, errors, 1)
        self.a, self.b = math.exp(level), -float(slope)
        self.freedom = len(errors) - 2
        residuals = errors - level - slope * self.logs
        squares = float((residuals**2).sum())
        self.scatter = math.sqrt(squares / self.freedom)
        """Standard deviation of the logarithms around the law."""

    def at(self, images: float) -> float:
        """Return the Dice of the law."""
        return 1 - self.a * math.pow(images, -self.b)

    def forecast(self, images: int) -> Forecast:
        """Return the Dice to expect, with the interval of Student's t for a new observation.

        It covers what differs from training to training. The law and the validation images are taken as given.
        """
        offset = math.log(images) - self.logs.mean()
        distance = offset**2 / self.logs.var()
        spread = self.scatter * math.sqrt(1 + (1 + distance) / len(self.logs))
        student = stdtrit(self.freedom, (1 + LEVEL) / 2)
        factor = math.exp(student * spread)
        error = 1 - self.at(images)
        return Forecast(*(max(0.0, 1 - each) for each in (error, error * factor, error / factor)))
