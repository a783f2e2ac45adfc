"""Scores from the counts of all images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.examples import example_evaluation
from unet_ddp.data.labels import Labels
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.evaluation.results import COLUMNS, ClassScores, ImageRecord


def test_counts_of_images_are_summed_before_scores_are_made() -> None:
    evaluation = example_evaluation()
    assert evaluation.confusion.tolist() == [[10, 2], [1, 3]]
    assert evaluation.scores.dice == 6 / 9
    assert evaluation.records[0].scores.dice_per_class == [12 / 15, 6 / 9]
    assert math.isnan(evaluation.records[1].scores.dice)
    assert evaluation.shares == [12 / 16, 4 / 16]
    assert evaluation.dice_as_trained == 4 / 5
    assert evaluation.calibration.bins[0].pixels == 10


def test_classes_have_all_their_scores_in_the_order_of_the_columns() -> None:
    background, foreground = example_evaluation().classes
    assert background[:5] == ("0", 20 / 23, 10 / 13, 10 / 11, 10 / 12)
    assert math.isnan(background.boundary_f)  # neither image has a boundary of it
    assert foreground == ("255", 6 / 9, 3 / 6, 3 / 5, 3 / 4, pytest.approx(2 * 0.5 / 1.5))
    assert len(COLUMNS) == len(ClassScores._fields) - 1


def test_a_class_without_a_score_is_no_table() -> None:
    scores = example_evaluation().scores
    for names, count in ((["0"], 2), (["0", "255", "300"], 2), (["0", "255"], 1)):
        with pytest.raises(ValueError, match="zip"):
            ClassScores.of_all(names, scores, [BoundaryCounts()] * count)


def test_only_two_classes_have_a_threshold_curve() -> None:
    evaluation = example_evaluation()
    assert evaluation.curve is not None and evaluation.curve.recall[0] == 1
    assert example_evaluation(Labels((0, 1, 2))).curve is None


def test_the_worst_image_is_first_and_one_with_nothing_to_score_last() -> None:
    def record(name: str, hits: int, missed: int) -> ImageRecord:
        table = np.array([[0, 0], [missed, hits]])
        return ImageRecord(name, 0, table, [BoundaryCounts()] * 2)

    records = [record("nothing", 0, 0), record("good", 3, 1), record("c", 1, 3), record("b", 1, 3)]
    evaluation = replace(example_evaluation(), records=records)
    assert [each.name for each in evaluation.worst(9)] == ["b", "c", "good", "nothing"]
    assert [each.name for each in evaluation.worst(1)] == ["b"]
