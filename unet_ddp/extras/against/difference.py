"""The difference between two networks' scores, and its bootstrap interval over groups of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from unet_ddp.errors import count_of
from unet_ddp.evaluation.uncertainty import (
    FEWEST,
    Floats,
    Integers,
    add_up,
    resample,
    score_counts,
)
from unet_ddp.metrics.scores import show

Table = dict[str, list[int]]
"""By image: of each class the hits, and the pixels in truth and prediction; then the same of its objects, if known."""
_SCORES = "AP at IoU 0.5", "Dice", "IoU"
_LOWEST = 3  # groups that are named


def compare(own: Table, other: Table, groups: Mapping[str, str], num_classes: int) -> list[str]:
    """Return a line for each score, with its difference and interval, and one about single groups.

    Both tables are of the same images; `groups` has the group of each by its name.
    """
    names = sorted({groups[name] for name in own})
    noun = "group" if len(names) < len(own) else "image"
    many = count_of(len(names), noun)
    sums = []
    for table in (own, other):
        images = np.array([*table.values()], np.int64).reshape(len(table), -1, 3)
        rows = np.searchsorted(names, [groups[name] for name in table])
        sums.append(add_up(images, rows, len(names)))
    shared = min(side.shape[1] for side in sums)  # one of them may have no objects
    counts = np.stack([side[:, :shared] for side in sums])  # (2, N, C, 3)
    scores, others = (_score(side, num_classes) for side in counts)
    titles = _SCORES[-len(scores) :]
    lines = []
    for title, a, b in zip(titles, scores, others, strict=True):
        lines.append(f"  {title} {show(a)} against {show(b)}: {_sign(a - b)}")
    if len(names) < FEWEST:
        few = f"; {many}: too few for an interval, which takes {FEWEST}"
        lines = [line + few for line in lines]
    else:
        for k, (low, high) in enumerate(find_intervals(counts, num_classes)):
            if math.isnan(scores[k] - others[k]):  # in resamples it would be 0
                continue
            lines[k] += f" (95 % interval {low:+.4f} to {high:+.4f}, {many})"
            if low <= 0 <= high:
                lines[k] += "; the interval contains 0: these images do not show which is better"
    return [*lines, _describe_groups(counts, names, noun, num_classes)]


def _sign(difference: float) -> str:
    """Return a difference with its sign, or a dash where a network has no score."""
    return "-" if math.isnan(difference) else f"{difference:+.4f}"


def _describe_groups(counts: Integers, names: Sequence[str], noun: str, num_classes: int) -> str:
    """Return a line about the differences in single groups."""
    differences = []
    for k in range(len(names)):
        first, *_ = differ(counts[:, [k]], num_classes)
        differences.append(first)
    single = np.array(differences)
    lowest = [f"{names[k]} {_sign(single[k])}" for k in np.argsort(single)[:_LOWEST]]
    better = count_of(int((single > 0).sum()), noun)
    worse = int((single < 0).sum())
    return f"  better in {better}, worse in {worse}; lowest: {', '.join(lowest)}"


def _score(counts: Integers, num_classes: int) -> list[float]:
    return score_counts(counts, num_classes, is_binary=num_classes == 2)


def differ(counts: Integers, num_classes: int) -> Floats:
    """Return the differences of the scores of two networks (2, N, C, 3)."""
    own, other = (_score(side, num_classes) for side in counts)
    return np.subtract(own, other)


def find_intervals(counts: Integers, num_classes: int) -> Floats:
    """Return the ends of the 95 % interval of each difference of two networks (2, N, C, 3).

    The same groups are drawn for both; see `resample`.
    """
    return resample(lambda rows: differ(counts[:, rows], num_classes), counts.shape[1])
