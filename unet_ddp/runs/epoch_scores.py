"""The scores of epochs, from the rows of metrics.csv, as whoever describes or ranks runs shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from unet_ddp.errors import UserError
from unet_ddp.runs.writers import read_rows, to_float


def read_epochs(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's metrics.csv, none without one; one whose rows are of no epochs is a UserError."""
    path = folder / "metrics.csv"
    rows = read_rows(path)
    for row in rows:
        if not (row.get("epoch") or "").isdecimal() or None in row.values():
            raise UserError(
                f"{path}: corrupt (a row has no epoch, or its end is missing); delete it, or move it away"
            )
    return rows


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
