"""The scores of epochs: those of the masks that predictions will have."""

from __future__ import annotations

import math

import pytest

from unet_ddp.runs.epoch_scores import chosen_by, find_best, scores_of


def row(score: object, dice: object, iou: object, **others: str) -> dict[str, str]:
    """A row of metrics.csv with these scores."""
    columns = {"validation_score": score, "validation_dice": dice, "validation_iou": iou}
    return {name: str(value) for name, value in columns.items()} | others


def test_scores_of_two_classes_are_those_at_the_threshold() -> None:
    """3 hits, 4 pixels in truth, 5 predicted: Dice 6 / 9, IoU 3 / 6; at 0.5 a single hit: 2 / 5 and 1 / 4."""
    found = scores_of(row(6 / 9, 2 / 5, 1 / 4, threshold="0.3"))
    assert found == pytest.approx({"Dice": 6 / 9, "IoU": 0.5})


def test_scores_of_more_classes_are_those_on_record() -> None:
    assert scores_of(row(0.75, 0.75, 0.5)) == {"Dice": 0.75, "IoU": 0.5}


def test_an_iou_of_other_masks_is_left_out() -> None:
    """Classes that overlap have thresholds of their own, and the columns are at 0.5."""
    assert scores_of(row(0.75, 0.6, 0.45)) == {"Dice": 0.75}


def test_the_score_of_objects_comes_first() -> None:
    found = scores_of(row(0.25, 0.75, 0.5), "mean AP")
    assert list(found.items()) == [("mean AP", 0.25), ("Dice", 0.75), ("IoU", 0.5)]


def test_what_was_not_scored_has_no_scores() -> None:
    assert scores_of({"epoch": "1"}) == scores_of(row("", 0.0, 0.0, threshold="0.5")) == {}
    assert scores_of(row(-1.0, "", "")) == {}


def test_the_best_epoch_is_the_one_of_best_pt() -> None:
    """Of equals it is the last, also of epochs without a score."""
    assert find_best([math.nan, 0.5, 0.7, 0.7, 0.6]) == (3, 0.7)
    assert find_best([math.nan, math.nan]) == (1, -1)
    assert find_best(chosen_by([row(0.7, 0.1, 0.1), row(0.6, 0.9, 0.9)])) == (0, 0.7)
