"""Scores of an evaluation as text: the result files, how they are written, and the table in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from unet_ddp.checkpoints.owned import EVALUATION_FILES, LIST, owning
from unet_ddp.data.csv_cells import format_row
from unet_ddp.evaluation.results import COLUMNS, ClassScores, Evaluation
from unet_ddp.files import replacing, write_errors
from unet_ddp.metrics.scores import count_classes, ratio, show

Row = Sequence[str | int | float]

COUNTS = ("hits", "pixels", "predicted_pixels")
"""Columns of per_image.csv for each class, whose sums over images give the scores of a set."""


def result_files(evaluation: Evaluation, about: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of all result files but report.html, the same on any number of ranks.

    The entries of `about`, which say what was scored, stand at the head of scores.json.
    """
    names = evaluation.labels.class_names
    scores = [f"{score}_{name}" for name in names for score in ClassScores._fields[1:]]
    scores += evaluation.tally.scores if evaluation.tally else []
    scores += [f"{count}_{name}" for name in names for count in COUNTS]
    text = json.dumps({**about, **summary(evaluation)})
    plain = json.loads(text, parse_constant=lambda nan: None)
    files = {
        "scores.json": json.dumps(plain, indent=2, ensure_ascii=False) + "\n",
        "per_image.csv": _csv(["image", "dice", "iou", *scores], _per_image_rows(evaluation)),
        "calibration.csv": _csv(
            ["from", "to", "pixels", "confidence", "accuracy"], evaluation.calibration.bins
        ),
    }
    if evaluation.confusion.ndim == 2:  # of classes that overlap, there is no such table
        rows = zip(names, evaluation.confusion.tolist(), strict=True)
        heading = ["truth \\ prediction", *names]
        files["confusion.csv"] = _csv(heading, ([name, *row] for name, row in rows))
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
        "pixel_accuracy": ratio(int(table.trace(axis1=-2, axis2=-1).sum()), int(table.sum())),
        "calibration_error": evaluation.calibration.error,
        "dice_as_trained": evaluation.dice_as_trained,
    }
    tally = evaluation.tally
    if tally is not None:
        entries[tally.name] = tally.scores
        if by_class := evaluation.class_tallies:
            scores_of = {name: each.scores for name, each in by_class.items()}
            entries[f"{tally.name}_by_class"] = scores_of
    if curve is not None:
        entries["dice_at_0.5"] = curve.dice_at(0.5)
        entries["best_threshold"] = curve.best
        entries["dice_at_best_threshold"] = curve.dice_at(curve.best)
    pixels = zip(evaluation.classes, count_classes(table), strict=True)
    entries["classes"] = [
        {**row._asdict(), "pixels": true, "predicted_pixels": predicted}
        for row, (_, true, predicted) in pixels
    ]
    return entries


def _per_image_rows(evaluation: Evaluation) -> Iterable[Row]:
    """Yield a row per image: its Dice and IoU, then the scores of each class, then the counts."""
    for record in evaluation.records:
        names = evaluation.labels.class_names
        classes = ClassScores.of_all(names, record.scores, record.boundaries)
        cells = [cell for row in classes for cell in row[1:]]
        cells += record.tally.scores.values() if record.tally else []
        cells += chain(*count_classes(record.confusion))
        yield [record.name, record.scores.dice, record.scores.iou, *cells]


def _csv(heading: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table as CSV, numbers to the last digit, nan as an empty cell."""
    lines = (
        format_row("" if isinstance(c, float) and math.isnan(c) else c for c in row)
        for row in (heading, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def write_results(folder: Path, files: Mapping[str, str]) -> None:
    """Write all `files` (text by name) or none, in place of earlier results.

    Those that are new in the folder of a run are then the run's: a run that replaces it deletes them.
    """
    run = folder.parent
    is_run = folder.name == "evaluation" and (run / LIST).is_file()
    new = {name for name in files if is_run and not (folder / name).exists()}
    with write_errors(folder, "make room, or use another --output"), ExitStack() as stack:
        for name, text in files.items():  # the stack replaces them after the last is written
            path = folder / name
            if name in new:
                path = stack.enter_context(owning(path, run))
            temporary = stack.enter_context(replacing(path))
            temporary.write_bytes(text.encode("utf-8", "surrogateescape"))
        for name in set(EVALUATION_FILES) - set(files):
            (folder / name).unlink(missing_ok=True)


# -- terminal and page ---------------------------------------------------------------------


def headline(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the most important scores over the whole set by name, Dice first."""
    entries = [
        ("Dice", show(evaluation.scores.dice)),
        ("IoU", show(evaluation.scores.iou)),
        ("calibration error", show(evaluation.calibration.error)),
    ]
    if evaluation.tally is not None:
        entries[:0] = [(name, show(score)) for name, score in evaluation.tally.headline]
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
    what = "of the foreground" if scores.is_binary else "mean of the classes that occur"
    lines += ["", f"Dice {scores.dice:.4f}, IoU {scores.iou:.4f} ({what})"]
    curve, calibration = evaluation.curve, f"{evaluation.calibration.error:.4f}"
    lines.append(f"expected calibration error {calibration}")
    if curve is not None:
        lines[-1] += (
            f"; best threshold for these images {curve.best:.3f} (Dice "
            f"{curve.dice_at(curve.best):.4f}; {curve.dice_at(0.5):.4f} at 0.5)"
        )
    if evaluation.tally is not None:
        lines.append(evaluation.tally.describe())
        by_class = evaluation.class_tallies.items()
        lines += (f"  {name}: {each.brief}" for name, each in by_class)
    worst = (f"{record.name} {show(record.score)}" for record in evaluation.worst(3))
    return [*lines, f"worst: {', '.join(worst)}"]
