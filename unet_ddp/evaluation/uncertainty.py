"""Bootstrap intervals of scores and counts, over the groups of a set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from unet_ddp.errors import count_of
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.metrics.scores import Scores, count_classes

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Interval = tuple[float, float]

RESAMPLES = 10_000
FEWEST = 6
"""Groups, below which there is no interval: a sign test of five can't be significant either."""
_MOST = 0.95  # of the images, whose counts are within a limit


class CountError(NamedTuple):
    """By how much the predicted number of objects in an image differs from the true one."""

    mean: float
    """Above 0 where too many are predicted."""
    interval: Interval | None
    within: int
    """Limit that the differences of 95 % of the images, or more, do not exceed."""


@dataclass(frozen=True)
class Uncertainty:
    """95 % intervals of one network's scores, and the errors of its counts."""

    many: str
    """The number of images or groups that were drawn from, in words."""
    scores: dict[str, Interval]
    """By name; empty for too few groups."""
    counts: dict[str, CountError]
    """Of all objects, as "objects", and of each class if there are several; empty without objects."""

    def describe(self) -> Iterator[str]:
        """Yield lines for the terminal."""
        if self.scores:
            found = [f"{name} {low:.4f} to {high:.4f}" for name, (low, high) in self.scores.items()]
            yield f"95 % intervals over {self.many}: {', '.join(found)}"
        else:
            yield f"no intervals: {self.many}; at least {FEWEST} are needed"
        for name, error in self.counts.items():
            interval = ""
            if error.interval is not None:
                interval = f" (95 % interval {error.interval[0]:+.2f} to {error.interval[1]:+.2f})"
            yield (
                f"counts of {name}: {error.mean:+.2f} per image on average{interval}; 95 % of the images "
                f"within ±{error.within}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for scores.json."""
        scores = {name.lower().replace(" ", "_"): ends for name, ends in self.scores.items()}
        plain: dict[str, Any] = {"intervals": {"over": self.many, **scores}}
        if self.counts:
            plain["count_errors"] = {name: each._asdict() for name, each in self.counts.items()}
        return plain


def measure(evaluation: Evaluation, groups: Mapping[str, str]) -> Uncertainty:
    """Return what the images of an evaluation leave open; `groups` has the group of each by its name."""
    names = sorted({groups[record.name] for record in evaluation.records})
    noun = "group" if len(names) < len(evaluation.records) else "image"
    rows = np.searchsorted(names, [groups[record.name] for record in evaluation.records])
    scores: dict[str, Interval] = {}
    if len(names) >= FEWEST:
        scores = _find_scores(evaluation, rows, len(names))
    counts = {
        name: _measure_counts(numbers, rows, len(names))
        for name, numbers in _list_counts(evaluation).items()
    }
    return Uncertainty(count_of(len(names), noun), scores, counts)


def _find_scores(evaluation: Evaluation, rows: Integers, groups: int) -> dict[str, Interval]:
    """Return the interval of each score that is a number."""
    tally, is_binary = evaluation.tally, evaluation.scores.is_binary
    images = []
    for record in evaluation.records:
        counts = count_classes(record.confusion)
        images.append([*counts, record.tally.counts] if record.tally else counts)
    sums = add_up(np.array(images, np.int64), rows, groups)
    classes = len(count_classes(evaluation.confusion))

    def score(drawn: Integers) -> list[float]:
        return score_counts(sums[drawn], classes, is_binary=is_binary)

    names = ["Dice", "IoU"] if tally is None else [tally.headline[0][0], "Dice", "IoU"]
    found = dict(zip(names, resample(score, groups).tolist(), strict=True))
    whole = dict(zip(names, score(np.arange(groups)), strict=True))
    return {name: (low, high) for name, (low, high) in found.items() if not math.isnan(whole[name])}


def _list_counts(evaluation: Evaluation) -> dict[str, Integers]:
    """Return by name the true and the predicted number of objects in each image, (N, 2)."""
    tallies = [record.tallies for record in evaluation.records]
    if not all(tallies):
        return {}
    counts = np.array([[each.counts[1:] for each in image] for image in tallies], np.int64)
    found = {"objects": counts.sum(axis=1)}
    if counts.shape[1] > 1:
        found |= dict(zip(evaluation.labels.foreground_names, counts.swapaxes(0, 1), strict=True))
    return found


def _measure_counts(numbers: Integers, rows: Integers, groups: int) -> CountError:
    """Return the error of counts (N, 2), true and predicted, of images in groups."""
    errors = numbers[:, 1] - numbers[:, 0]
    sums = add_up(np.stack([errors, np.ones_like(errors)], axis=1), rows, groups)  # (groups, 2)

    def average(drawn: Integers) -> list[float]:
        error, images = sums[drawn].sum(axis=0).tolist()
        return [error / images]

    interval = None
    if groups >= FEWEST:
        ((low, high),) = resample(average, groups).tolist()
        interval = low, high
    within = np.quantile(np.abs(errors), _MOST, method="inverted_cdf")
    return CountError(float(errors.mean()), interval, int(within))


# -- what a comparison of two networks takes, too ------------------------------------------


def add_up(images: Integers, rows: Integers, groups: int) -> Integers:
    """Return the sums (groups, …) of counts (N, …) of images, whose groups are `rows` (N,)."""
    sums = np.zeros((groups, *images.shape[1:]), np.int64)
    np.add.at(sums, rows, images)
    return sums


def score_counts(counts: Integers, classes: int, *, is_binary: bool) -> list[float]:
    """Return the scores of all groups (N, C, 3) together: of the objects, if they are counted, Dice, IoU."""
    rows = counts.sum(axis=0).tolist()
    pixels = Scores.from_counts(rows[:classes], is_binary=is_binary)
    objects = Scores.from_counts(rows[classes:], is_binary=False)
    return [*objects.iou_per_class, pixels.dice, pixels.iou]


def resample(statistic: Callable[[Integers], Sequence[float] | Floats], count: int) -> Floats:
    """Return the ends of the 95 % interval of each number that `statistic` makes of drawn groups.

    Of `count` groups as many are drawn with replacement, the same at each call. It is the percentile
    interval of Efron and Tibshirani (An Introduction to the Bootstrap, 1993, chapter 13). Of few
    groups that is too narrow, so percentiles further out are taken, as by Hesterberg (What Teachers
    Should Know About the Bootstrap, The American Statistician 69, 2015).
    """
    generator = np.random.default_rng(0)
    drawn = [statistic(generator.integers(count, size=count)) for _ in range(RESAMPLES)]
    student = stdtrit(count - 1, 0.975)
    tail = NormalDist().cdf(-student * math.sqrt(count / (count - 1)))
    ends: Floats = np.quantile(np.nan_to_num(drawn), [tail, 1 - tail], axis=0).T
    return ends
