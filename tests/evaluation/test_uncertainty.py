"""Intervals of one network's scores, and the errors of its counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unet_ddp.data.labels import Labels
from unet_ddp.evaluation import uncertainty as module
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.evaluation.uncertainty import measure
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.objects.scores import OVERLAPS, ObjectCounts


def objects(true: int, predicted: int, matched: int = 0) -> ObjectCounts:
    return ObjectCounts(true, predicted, np.full(len(OVERLAPS), matched), 0.0, 0, 0)


def evaluation_of(
    counts: list[list[ObjectCounts]], labels: Labels | None = None, hits: Any = None
) -> Evaluation:
    """Images a, b, c … of 100 pixels, half of them foreground; `hits` of it are found, and as many false."""
    records = []
    for k, tallies in enumerate(counts):
        found = 40 if hits is None else hits[k]
        table = np.array([[50, 50 - found], [50 - found, found]]).T
        boundaries = [BoundaryCounts(0, 0, 0, 0)] * 2
        records.append(ImageRecord("abcdefghijklmnopqrst"[k], k, table, boundaries, tallies))
    bins = np.zeros((2, 2, 4), np.int64)
    chosen = labels or Labels((0, 1))
    return Evaluation(chosen, records, bins, bins[0], None, None, full_size=True)


def alone(evaluation: Evaluation) -> dict[str, str]:
    return {record.name: record.name for record in evaluation.records}


ONE = ObjectLabels.of(("cell",))


def test_objects_of_each_source_are_its_own() -> None:
    evaluation = evaluation_of([[objects(4, 4, 4)], [objects(6, 3, 0)]], labels=ONE)
    records = [replace(r, source=s) for r, s in zip(evaluation.records, "xy", strict=True)]
    tallies = {
        name: each.tally for name, each in replace(evaluation, records=records).sources.items()
    }
    assert {name: (t.truth, t.predicted) for name, t in tallies.items()} == {
        "x": (4, 4),
        "y": (6, 3),
    }


def test_counts_are_off_by_a_mean_and_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 2000)
    errors = [0] * 10 + [1] * 5 + [-1] * 4 + [-7]  # 19 of 20 images are within 1
    found = measure(
        evaluation := evaluation_of([[objects(9, 9 + error)] for error in errors], ONE),
        alone(evaluation),
    )
    error = found.counts["objects"]
    assert error.mean == -0.3 and error.within == 1
    assert error.interval is not None
    low, high = error.interval
    spread = np.std(errors, ddof=1) / np.sqrt(20)  # of the mean
    assert -0.3 - 3 * spread < low < -0.3 - spread and 0 < high < -0.3 + 3 * spread
    line = [*found.describe()][1]
    assert line.startswith("counts of objects: -0.30 per image on average (95 % interval -")
    assert line.endswith("; 95 % of the images within ±1")
    assert found.to_dict()["count_errors"]["objects"]["within"] == 1


def test_images_without_objects_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 50)
    evaluation = evaluation_of([[objects(0, 0)]] * 7 + [[objects(0, 8)]], ONE)
    error = measure(evaluation, alone(evaluation)).counts["objects"]
    assert error.mean == 1 and error.within == 8


def test_errors_of_classes_do_not_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 50)
    labels = ObjectLabels.of(("car", "tree"))
    evaluation = evaluation_of([[objects(3, 5), objects(4, 2)]] * 6, labels)
    counts = measure(evaluation, alone(evaluation)).counts
    assert {name: error.mean for name, error in counts.items()} == {
        "objects": 0, "car": 2, "tree": -2,
    }  # fmt: skip


def test_intervals_hold_the_score_and_narrow_with_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 1000)
    widths = []
    for count in (6, 18):
        hits = ([45, 30, 40, 48, 25, 42] * 3)[:count]
        evaluation = evaluation_of([[objects(5, 5, 4)]] * count, ONE, hits)
        found = measure(evaluation, alone(evaluation))
        assert list(found.scores) == ["AP at IoU 0.5", "Dice", "IoU"]
        assert found.scores["AP at IoU 0.5"] == pytest.approx((4 / 6, 4 / 6))
        low, high = found.scores["Dice"]
        assert low < evaluation.scores.dice < high
        widths.append(high - low)
    assert widths[1] < widths[0]


def test_groups_are_drawn_whole_and_few_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 300)
    hits = [45, 30, 40, 48, 25, 42]
    once = evaluation_of([[objects(9, 9 + k)] for k in range(6)], ONE, hits)
    twice = evaluation_of([[objects(9, 9 + k)] for k in range(6)] * 2, ONE, hits * 2)
    groups = {record.name: str(record.pair % 6) for record in twice.records}
    expected, found = measure(once, alone(once)), measure(twice, groups)
    assert found.scores == expected.scores
    assert found.counts == expected.counts
    assert (expected.many, found.many) == ("6 images", "6 groups")
    few = measure(twice, {name: str(int(group) // 2) for name, group in groups.items()})
    assert few.scores == {} and few.counts["objects"].interval is None
    assert [*few.describe()] == [
        "no intervals: 3 groups; at least 6 are needed",
        "counts of objects: +2.50 per image on average; 95 % of the images within ±5",
    ]


def test_classes_have_intervals_but_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 50)
    evaluation = evaluation_of([[]] * 6)
    found = measure(evaluation, alone(evaluation))
    assert list(found.scores) == ["Dice", "IoU"] and found.counts == {}
