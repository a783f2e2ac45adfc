"""Scores of an evaluation as text: the result files, and the table in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unet_ddp.data.csv_cells import format_row
from unet_ddp.evaluation.results import COLUMNS, ClassScores, Evaluation
from unet_ddp.metrics.scores import ratio

Row = Sequence[str | int | float]


def result_files(evaluation: Evaluation, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of all result files but report.html, the same on any number of ranks.

    The entries of `about`, which say what was scored, stand at the head of scores.json.
    """
    names = evaluation.labels.class_names
    scores = [f"{score}_{name}" for name in names for score in ClassScores._fields[1:]]
    scores += evaluation.objects.scores if evaluation.objects else []
    confusion = zip(names, evaluation.confusion.tolist(), strict=True)
    files = {
        "scores.json": _json({**about, **summary(evaluation)}),
        "per_image.csv": _csv(["image", "dice", "iou", *scores], _per_image_rows(evaluation)),
        "confusion.csv": _csv(
            ["truth \\ prediction", *names], ([name, *row] for name, row in confusion)
        ),
        "calibration.csv": _csv(
            ["from", "to", "pixels", "confidence", "accuracy"], evaluation.calibration.bins
        ),
    }
    curve = evaluation.curve
    if curve is not None:
        columns = (curve.thresholds, curve.dice, curve.iou, curve.precision, curve.recall)
        files["threshold.csv"] = _csv(
            ["threshold", "dice", "iou", "precision", "recall"],
            zip(*(column.tolist() for column in columns), strict=True),
        )
    return files


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Return all scores over the whole set as plain values."""
    scores, curve, table = evaluation.scores, evaluation.curve, evaluation.confusion
    tolerance = evaluation.tolerance
    entries: dict[str, Any] = {
        "images": len(evaluation.records),
        "size": "the images' own" if evaluation.full_size else "the network's scale",
        "threshold": evaluation.threshold,
        "boundary_tolerance": "0.75 % of the diagonal" if tolerance is None else tolerance,
        "dice": scores.dice,
        "iou": scores.iou,
        "pixel_accuracy": ratio(int(table.trace()), int(table.sum())),
        "calibration_error": evaluation.calibration.error,
        "dice_as_trained": evaluation.dice_as_trained,
    }
    if evaluation.objects is not None:
        entries["objects"] = evaluation.objects.scores
        if by_class := evaluation.class_objects:
            entries["objects_by_class"] = {name: each.scores for name, each in by_class.items()}
    if curve is not None:
        entries["dice_at_0.5"] = curve.dice_at(0.5)
        entries["best_threshold"] = curve.best
        entries["dice_at_best_threshold"] = curve.dice_at(curve.best)
    pixels = zip(evaluation.classes, table.sum(axis=1), table.sum(axis=0), strict=True)
    entries["classes"] = [
        {**row._asdict(), "pixels": int(true), "predicted_pixels": int(predicted)}
        for row, true, predicted in pixels
    ]
    return entries


def _per_image_rows(evaluation: Evaluation) -> Iterable[Row]:
    """Yield a row per image: its Dice and IoU, then the scores of each class."""
    for record in evaluation.records:
        names = evaluation.labels.class_names
        classes = ClassScores.of_all(names, record.scores, record.boundaries)
        cells = [cell for row in classes for cell in row[1:]]
        cells += record.objects.scores.values() if record.objects else []
        yield [record.name, record.scores.dice, record.scores.iou, *cells]


def _csv(heading: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table as CSV, numbers to the last digit, nan as an empty cell."""
    lines = (
        format_row("" if isinstance(c, float) and math.isnan(c) else c for c in row)
        for row in (heading, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def _json(entries: Mapping[str, Any]) -> str:
    """Return entries as JSON, nan as null."""
    plain = json.loads(json.dumps(entries), parse_constant=lambda nan: None)
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


# -- terminal and page ---------------------------------------------------------------------


def show(score: float) -> str:
    """Return a score with four decimals, or a dash for nan."""
    return "-" if math.isnan(score) else f"{score:.4f}"


def headline(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the most important scores over the whole set by name, Dice first."""
    entries = [
        ("Dice", show(evaluation.scores.dice)),
        ("IoU", show(evaluation.scores.iou)),
        ("calibration error", show(evaluation.calibration.error)),
    ]
    if evaluation.objects is not None:
        entries.insert(0, ("AP at IoU 0.5", show(evaluation.objects.precisions[0])))
        entries.insert(1, ("panoptic quality", show(evaluation.objects.panoptic_quality)))
    if evaluation.curve is not None:
        best = evaluation.curve.best
        dice = show(evaluation.curve.dice_at(best))
        entries.append(("best threshold", f"{best:.3f} (Dice {dice})"))
    return entries


def terminal_table(evaluation: Evaluation) -> list[str]:
    """Return lines: a table with a row per class, the whole set's scores, the worst images."""
    scores, classes = evaluation.scores, evaluation.classes
    width = max(len("class"), *(len(row.name) for row in classes))
    table = [("class", *COLUMNS), *((row.name, *map(show, row[1:])) for row in classes)]
    lines = [
        "",
        *(f"{n:<{width}}   {'  '.join(f'{c:<10}' for c in c)}".rstrip() for n, *c in table),
    ]
    what = "of the foreground" if len(classes) == 2 else "mean of the classes that occur"
    lines += ["", f"Dice {scores.dice:.4f}, IoU {scores.iou:.4f} ({what})"]
    curve, calibration = evaluation.curve, f"{evaluation.calibration.error:.4f}"
    lines.append(f"expected calibration error {calibration}")
    if curve is not None:
        lines[-1] += (
            f"; best threshold for these images {curve.best:.3f} (Dice "
            f"{curve.dice_at(curve.best):.4f}; {curve.dice_at(0.5):.4f} at 0.5)"
        )
    objects = evaluation.objects
    if objects is not None:
        lines.append(
            f"objects: AP {show(objects.precisions[0])} at IoU 0.5, {show(objects.mean_precision)} over "
            f"0.5 to 0.95; panoptic quality {show(objects.panoptic_quality)}; {objects.truth} true, "
            f"{objects.predicted} predicted, {objects.split} split, {objects.merged} merged"
        )
        by_class = evaluation.class_objects.items()
        lines += (f"  {name}: AP {show(each.precisions[0])} at IoU 0.5" for name, each in by_class)
    worst = (f"{record.name} {show(record.score)}" for record in evaluation.worst(3))
    return [*lines, f"worst: {', '.join(worst)}"]
