"""Images of a data set that were saved in two scales."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.table import Table
from unet_ddp.data.value_scales import SCALES, Values, are_apart
from unet_ddp.errors import count_of

_BETWEEN = 0.25  # of the smaller group: images between the two; where it is dark, they are more


def warn_of_scales(table: Table, dtype: str) -> list[str]:
    """Return a warning if values of one scale are in some images, and of a larger one in the others."""
    blocks = [block[:, :4] for block in table.blocks("moments", np.ones(len(table.pairs), bool))]
    moments = np.concatenate(blocks)  # pixels, low, high and the first channel's sum
    if not moments.size:
        return []
    highs = moments[:, 2]
    shown = highs > np.maximum(moments[:, 1], 0)  # others are no evidence
    for scale in SCALES.get(dtype, ()):
        dim = np.flatnonzero(shown & (highs <= scale.most))
        bright = np.flatnonzero(shown & (highs >= scale.beyond))
        fewest = min(len(dim), len(bright))
        between = np.count_nonzero(shown) - len(dim) - len(bright)
        if not fewest or between > _BETWEEN * fewest:
            continue
        low, high = _join(moments[dim]), _join(moments[bright])
        if are_apart(scale, low, high):
            first, other = (table.pairs[int(rows[0])].image for rows in (dim, bright))
            return [
                f"values to {low.high:g} in {count_of(len(dim), 'image')}, e.g. {first}, and to {high.high:g} in "
                f"{len(bright)}, e.g. {other}: save all in one scale"
            ]
    return []


def _join(moments: NDArray[np.float64]) -> Values:
    """Return the values of images together."""
    pixels, lows, highs, sums = moments.T
    return Values(float(lows.min()), float(highs.max()), float(sums.sum() / pixels.sum()))
