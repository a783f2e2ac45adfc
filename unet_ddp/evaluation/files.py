"""The files of an evaluation: the same bytes on any number of ranks."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.metrics.scores import Scores

Cell = str | int | float

FILES = (
    "scores.json",
    "per_image.csv",
    "confusion.csv",
    "threshold.csv",
    "calibration.csv",
    "report.html",
)
"""All that evaluating writes; threshold.csv for two classes only."""


def result_files(evaluation: Evaluation, about: dict[str, Any]) -> dict[str, str]:
    """Contents by name, all but report.html.

    Args:
        about: what was scored, for scores.json.
    """
    files = {
        "scores.json": _json(about | scores_table(evaluation)),
        "per_image.csv": _csv(per_image_rows(evaluation)),
        "confusion.csv": _csv(_confusion_rows(evaluation)),
        "calibration.csv": _csv(_calibration_rows(evaluation)),
    }
    if evaluation.curve is not None:
        files["threshold.csv"] = _csv(_threshold_rows(evaluation))
    return files


def scores_table(evaluation: Evaluation) -> dict[str, Any]:
    """All figures over the whole set, as plain values."""
    scores, curve = evaluation.scores, evaluation.curve
    table: dict[str, Any] = {
        "images": len(evaluation.records),
        "size": "the images' own" if evaluation.full_size else "the network's scale",
        "threshold": evaluation.threshold,
        "boundary_tolerance": "0.75 % of the diagonal"
        if evaluation.tolerance is None
        else evaluation.tolerance,
        "dice": scores.dice,
        "iou": scores.iou,
        "pixel_accuracy": accuracy(evaluation),
        "calibration_error": evaluation.calibration.error,
        "dice_as_trained": evaluation.dice_as_trained,
    }
    if curve is not None:
        table["dice_at_0.5"] = curve.dice_at(0.5)
        table["best_threshold"] = curve.best
        table["dice_at_best_threshold"] = curve.dice_at(curve.best)
    table["classes"] = [
        {"name": name, **_class_scores(scores, evaluation.boundary_f, k), **_pixels(evaluation, k)}
        for k, name in enumerate(evaluation.labels.class_names)
    ]
    return table


def accuracy(evaluation: Evaluation) -> float:
    """The share of pixels of the right class."""
    total = int(evaluation.confusion.sum())
    return int(evaluation.confusion.trace()) / total if total else math.nan


def _class_scores(scores: Scores, boundary_f: Sequence[float], k: int) -> dict[str, float]:
    return {
        "dice": scores.dice_per_class[k],
        "iou": scores.iou_per_class[k],
        "precision": scores.precision_per_class[k],
        "recall": scores.recall_per_class[k],
        "boundary_f": boundary_f[k],
    }


def _pixels(evaluation: Evaluation, k: int) -> dict[str, int]:
    return {
        "pixels": int(evaluation.confusion[k].sum()),
        "predicted_pixels": int(evaluation.confusion[:, k].sum()),
    }


def per_image_rows(evaluation: Evaluation) -> Iterable[Sequence[Cell]]:
    """A row per image, in the order of names: its Dice and IoU, then each class's scores."""
    names = evaluation.labels.class_names
    figures = ("dice", "iou", "precision", "recall", "boundary_f")
    yield ["image", "dice", "iou", *(f"{what}_{name}" for name in names for what in figures)]
    for record in evaluation.records:
        yield _image_row(record)


def _image_row(record: ImageRecord) -> list[Cell]:
    scores = record.scores
    boundary_f = [counts.f_score for counts in record.boundaries]
    cells: list[Cell] = [record.name, scores.dice, scores.iou]
    for k in range(len(boundary_f)):
        cells += _class_scores(scores, boundary_f, k).values()
    return cells


def _confusion_rows(evaluation: Evaluation) -> Iterable[Sequence[Cell]]:
    names = evaluation.labels.class_names
    yield ["truth \\ prediction", *names]
    for name, row in zip(names, evaluation.confusion.tolist(), strict=True):
        yield [name, *row]


def _threshold_rows(evaluation: Evaluation) -> Iterable[Sequence[Cell]]:
    curve = evaluation.curve
    assert curve is not None
    yield ["threshold", "dice", "iou", "precision", "recall"]
    columns = (curve.thresholds, curve.dice, curve.iou, curve.precision, curve.recall)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _calibration_rows(evaluation: Evaluation) -> Iterable[Sequence[Cell]]:
    yield ["from", "to", "pixels", "confidence", "accuracy"]
    for found in evaluation.calibration.bins:
        yield [found.low, found.high, found.pixels, found.confidence, found.accuracy]


def _csv(rows: Iterable[Sequence[Cell]]) -> str:
    """Cells as Python writes them, to the last digit; nan is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(["" if isinstance(c, float) and math.isnan(c) else c for c in row])
    return text.getvalue()


def _json(table: dict[str, Any]) -> str:
    return json.dumps(_without_nan(table), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return value
