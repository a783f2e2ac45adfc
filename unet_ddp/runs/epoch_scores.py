"""The scores of epochs, from the rows of metrics.csv, as whoever describes or ranks runs shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from unet_ddp.runs.writers import to_float


def chosen_by(rows: Iterable[Mapping[str, str]]) -> list[float]:
    """Return the score that chooses the best epoch, by the rows of metrics.csv; nan for none."""
    return [to_float(row.get("validation_score")) for row in rows]


def find_best(scores: Iterable[float]) -> tuple[int, float]:
    """Return the best epoch as training chooses it, of equals the last, from 0, and its score; -1 for nan."""
    known = [(-1.0 if math.isnan(score) else score, epoch) for epoch, score in enumerate(scores)]
    score, epoch = max(known)
    return epoch, score


def scores_of(row: Mapping[str, str], name: str = "Dice") -> dict[str, float]:
    """Return the known scores in a row by their names, the one called `name`, which chooses the epoch, first.

    Dice is that of the masks that predictions will have. An IoU that is of other masks or classes is left out.
    """
    score, dice, iou = (
        to_float(row.get(f"validation_{each}")) for each in ("score", "dice", "iou")
    )
    if name == "Dice" and score != dice:  # the columns are without the thresholds
        dice, iou = score, math.nan
        if row.get("threshold"):  # of one class, each follows from the other
            iou = score / (2 - score)
    scores = {name: score} | {"Dice": dice, "IoU": iou}
    return {title: value for title, value in scores.items() if value >= 0}
