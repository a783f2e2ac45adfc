"""Values in another scale than others: 0 to 1 beside 0 to 255, or 8 bit saved as 16 beside 16 bit."""

from __future__ import annotations

from typing import NamedTuple

_APART = 32  # factor between means: by a scale it is 255, by a hot pixel or a camera's offset less


class Scale(NamedTuple):
    """A scale that images may have been saved in by mistake."""

    least: float
    """Its brightest image reaches it; one of a dark place does not."""
    most: float
    beyond: float
    """Where images in a larger scale go."""


UNIT, BYTE = Scale(0.5, 1.5, 50), Scale(128, 255, 4096)
SCALES = {"float32": (UNIT, BYTE), "uint16": (BYTE,), "int16": (BYTE,)}
"""By the type of pixels."""


class Values(NamedTuple):
    """The values of an image, or of several."""

    low: float
    high: float
    mean: float

    def __str__(self) -> str:
        """Return the range."""
        return f"{self.low:g} to {self.high:g}"


def are_apart(scale: Scale, dim: Values, bright: Values) -> bool:
    """Return whether some values are in this scale, and others in a larger one."""
    is_dim, is_bright = scale.least <= dim.high <= scale.most, bright.high >= scale.beyond
    return is_dim and is_bright and bright.mean > _APART * abs(dim.mean)
