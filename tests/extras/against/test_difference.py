"""The difference between two networks, and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from unet_ddp.evaluation import uncertainty
from unet_ddp.extras.against.difference import Table, compare, find_intervals


def counts_of(*hits: int) -> Table:
    """Images a, b, c … of 100 pixels, 50 of them foreground, of which the prediction has 50, too."""
    return {
        "abcdefgh"[k]: [each, 50, 50, each, 50, 50]  # as many hits of the background
        for k, each in enumerate(hits)
    }


def each_alone(table: Table) -> dict[str, str]:
    return {name: name for name in table}


def test_each_score_has_a_line_and_single_images_have_one() -> None:
    own, other = counts_of(45, 40, 44, 45, 42, 30, 48), counts_of(40, 40, 41, 40, 40, 35, 38)
    dice, iou, images = compare(own, other, each_alone(own), 2)
    assert dice.startswith(
        "  Dice 0.8400 against 0.7829: +0.0571 (95 % interval -0.0"
    )  # 294, 274 of 350
    assert dice.endswith(
        ", 7 images); the interval contains 0: these images do not show which is better"
    )
    assert iou.startswith(
        "  IoU 0.7241 against 0.6432: +0.0809 (95 % interval "
    )  # 294/406, 274/426
    assert images == "  better in 5 images, worse in 1; lowest: f -0.1000, b +0.0000, e +0.0400"


def test_images_are_paired_by_name_and_the_same_lines_are_printed_twice() -> None:
    own, other = counts_of(45, 40, 44, 45, 42, 30, 48), counts_of(40, 40, 41, 40, 40, 35, 38)
    lines = compare(own, other, each_alone(own), 2)
    turned = dict(reversed(other.items()))
    assert list(turned) != list(other) and compare(own, turned, each_alone(own), 2) == lines


def test_groups_are_drawn_whole() -> None:
    """Their images are no further evidence: twice the same image in each group gives the same interval."""
    own, other = counts_of(45, 40, 44, 45, 42, 47), counts_of(40, 39, 41, 41, 40, 41)
    lines = compare(own, other, each_alone(own), 2)
    twice = [
        {f"{name}{k}": row for name, row in each.items() for k in "12"} for each in (own, other)
    ]
    groups = {name: name[0] for name in twice[0]}
    assert compare(*twice, groups, 2) == [line.replace("image", "group") for line in lines]
    assert "+0.0700 (95 % interval +0.0" in lines[0] and "contains 0" not in lines[0]


def test_few_groups_have_no_interval() -> None:
    own, other = counts_of(45, 40, 44, 45, 42), counts_of(40, 39, 41, 41, 40)
    first = compare(own, other, each_alone(own), 2)[0]
    assert first == (
        "  Dice 0.8640 against 0.8040: +0.0600; 5 images: too few for an interval, which takes 6"
    )


def test_of_objects_their_precision_counts_most() -> None:
    own, other = counts_of(45, 45, 45, 45, 45, 45), counts_of(45, 45, 45, 45, 45, 45)
    for name, row in own.items():
        row += [8, 10, 10]  # 8 of 10 objects are matched by 10: AP 8 / 12
        other[name] += [4, 10, 6]  # 4 / 12
    lines = compare(own, other, each_alone(own), 2)
    assert "Dice 0.9000 against 0.9000: +0.0000 (95 % interval +0.0000 to +0.0000" in lines[1]
    assert lines[0].startswith(
        "  AP at IoU 0.5 0.6667 against 0.3333: +0.3333 (95 % interval +0.3333"
    )
    assert lines[3].startswith("  better in 6 images, worse in 0; lowest: a +0.3333")


def test_objects_that_only_one_network_counts_are_left_out() -> None:
    own, other = counts_of(45, 40, 44, 45, 42, 30), counts_of(40, 40, 41, 40, 40, 35)
    counted = {name: [*row, 1, 2, 2] for name, row in own.items()}
    assert compare(counted, other, each_alone(own), 2) == compare(own, other, each_alone(own), 2)


def test_a_resample_without_a_class_shows_no_difference() -> None:
    """One image in six has a foreground: a third of the resamples has none, and no Dice."""
    table = {name: [100, 100, 100, 0, 0, 0] for name in "abcdef"} | {"a": [90, 95, 95, 0, 5, 5]}
    own: Table = {**table, "a": [90, 95, 95, 5, 5, 5]}
    lines = compare(own, table, each_alone(own), 2)
    assert "Dice 1.0000 against 0.0000: +1.0000 (95 % interval +0.0000 to +1.0000" in lines[0]
    assert lines[-1].startswith("  better in 1 image, worse in 0; lowest: a +1.0000")


def test_images_without_a_class_have_no_difference_and_no_interval() -> None:
    empty: Table = {name: [100, 100, 100, 0, 0, 0] for name in "abcdef"}
    dice, iou, images = compare(empty, empty, each_alone(empty), 2)
    assert (dice, iou) == ("  Dice - against -: -", "  IoU - against -: -")
    assert images == "  better in 0 images, worse in 0; lowest: a -, b -, c -"
    wrong: Table = {**empty, "a": [90, 100, 90, 0, 0, 10]}
    assert compare(empty, wrong, each_alone(empty), 2)[0] == "  Dice - against 0.0000: -"


@pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.thorough)])
def test_the_interval_contains_the_true_difference_as_often_as_it_says(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a normal difference per group: 0.02 with a deviation of 0.03."""
    monkeypatch.setattr(uncertainty, "RESAMPLES", 250)
    generator, hits = np.random.default_rng(count), 0
    for _ in range(200):
        counts = np.full((2, count, 2, 3), 10_000)
        counts[1, :, 1, 0] = generator.normal(8000, 500, count)
        counts[0, :, 1, 0] = counts[1, :, 1, 0] + generator.normal(200, 300, count)
        low, high = find_intervals(counts, 2)[0]
        hits += low <= 0.02 <= high
    assert 0.91 <= hits / 200 <= 0.98


def test_of_many_groups_it_is_students() -> None:
    generator = np.random.default_rng(0)
    counts = np.full((2, 100, 2, 3), 10_000)
    gains = generator.normal(200, 300, 100).astype(int)
    counts[1, :, 1, 0] = 8000
    counts[0, :, 1, 0] = 8000 + gains
    mean, half = gains.mean() / 10_000, 1.984 * gains.std(ddof=1) / 10 / 10_000
    assert find_intervals(counts, 2)[0] == pytest.approx([mean - half, mean + half], abs=half / 20)
