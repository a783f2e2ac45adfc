"""Scores as a table for the terminal."""

from __future__ import annotations

import math

from unet_ddp.evaluation.results import Evaluation


def scores_as_text(evaluation: Evaluation) -> list[str]:
    """A row per class, then what holds of the whole set, then the worst images."""
    scores, names = evaluation.scores, evaluation.labels.class_names
    width = max(len("class"), *(len(name) for name in names))
    lines = ["", f"{'class':<{width}}   Dice    IoU     precision  recall  boundary F"]
    rows = zip(
        names,
        scores.dice_per_class,
        scores.iou_per_class,
        scores.precision_per_class,
        scores.recall_per_class,
        evaluation.boundary_f,
        strict=True,
    )
    for name, dice, iou, precision, recall, boundary in rows:
        cells = f"{_cell(dice)}  {_cell(iou)}  {_cell(precision)}     {_cell(recall)}  {_cell(boundary)}"
        lines.append(f"{name:<{width}}   {cells}".rstrip())
    what = "of the foreground" if len(names) == 2 else "mean of the classes that occur"
    lines += ["", f"Dice {scores.dice:.4f}, IoU {scores.iou:.4f} ({what})"]
    lines.append(f"expected calibration error {evaluation.calibration.error:.4f}")
    if evaluation.curve is not None:
        best = evaluation.curve.best
        lines[-1] += (
            f"; best threshold for these images {best:.3f} (Dice "
            f"{evaluation.curve.dice_at(best):.4f}; {evaluation.curve.dice_at(0.5):.4f} at 0.5)"
        )
    worst = (f"{record.name} {_cell(record.scores.dice).strip()}" for record in evaluation.worst(3))
    lines.append(f"worst: {', '.join(worst)}")
    return lines


def _cell(value: float) -> str:
    return "-     " if math.isnan(value) else f"{value:.4f}"
