"""The difference between two networks' scores, and its bootstrap interval over groups of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from unet_ddp.errors import count_of
from unet_ddp.metrics.scores import Scores, show

Table = dict[str, list[int]]
"""By image: of each class the hits, and the pixels in truth and prediction; then the same of its objects, if known."""
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 10_000
FEWEST = 6
"""Groups, below which there is no interval: a sign test of five can't be significant either."""
_SCORES = "AP at IoU 0.5", "Dice", "IoU"
_LOWEST = 3  # groups that are named


def compare(own: Table, other: Table, groups: Mapping[str, str], num_classes: int) -> list[str]:
    """Return a line for each score, with its difference and interval, and one about single groups.

    Both tables are of the same images; `groups` has the group of each by its name.
    """
    names = sorted({groups[name] for name in own})
    noun = "group" if len(names) < len(own) else "image"
    many = count_of(len(names), noun)
    sums = [_add_up(table, groups, names) for table in (own, other)]
    shared = min(side.shape[1] for side in sums)  # one of them may have no objects
    counts = np.stack([side[:, :shared] for side in sums])  # (2, N, C, 3)
    scores, others = (score(side, num_classes) for side in counts)
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


def _describe_groups(counts: Counts, names: Sequence[str], noun: str, num_classes: int) -> str:
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


def _add_up(table: Table, groups: Mapping[str, str], names: Sequence[str]) -> Counts:
    """Return the sums (N, C, 3) of a table's rows over the images of each group."""
    images = np.array([*table.values()], np.int64).reshape(len(table), -1, 3)
    sums = np.zeros((len(names), *images.shape[1:]), np.int64)
    rows = np.searchsorted(names, [groups[name] for name in table])
    np.add.at(sums, rows, images)
    return sums


def score(counts: Counts, num_classes: int) -> list[float]:
    """Return the scores of all groups (N, C, 3) together, the most important first."""
    rows = counts.sum(axis=0).tolist()
    pixels = Scores.from_counts(rows[:num_classes], is_binary=num_classes == 2)
    objects = Scores.from_counts(rows[num_classes:], is_binary=False)
    return [*objects.iou_per_class, pixels.dice, pixels.iou]


def differ(counts: Counts, num_classes: int) -> Floats:
    """Return the differences of the scores of two networks (2, N, C, 3)."""
    own, other = (score(side, num_classes) for side in counts)
    return np.subtract(own, other)


def find_intervals(counts: Counts, num_classes: int) -> Floats:
    """Return the ends of the 95 % interval of each difference of two networks (2, N, C, 3).

    The groups are drawn with replacement, the same for both networks and at each call. It is the
    percentile interval of Efron and Tibshirani (An Introduction to the Bootstrap, 1993, chapter 13).
    Of few groups that is too narrow, so percentiles further out are taken, as by Hesterberg (What
    Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).
    """
    generator = np.random.default_rng(0)
    count = counts.shape[1]
    drawn = []
    for _ in range(RESAMPLES):
        rows = generator.integers(count, size=count)
        drawn.append(differ(counts[:, rows], num_classes))
    student = stdtrit(count - 1, 0.975)
    tail = NormalDist().cdf(-student * math.sqrt(count / (count - 1)))
    ends: Floats = np.quantile(np.nan_to_num(drawn), [tail, 1 - tail], axis=0).T
    return ends
