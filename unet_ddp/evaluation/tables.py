"""Scores of an evaluation as text: the result files, how they are written, and the table in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.checkpoints.run_files import EVALUATION_FILES
from unet_ddp.data.csv_cells import format_row
from unet_ddp.errors import count_of
from unet_ddp.evaluation.results import COLUMNS, ClassScores, Evaluation
from unet_ddp.files import replacing, write_errors
from unet_ddp.metrics.scores import count_classes, ratio, show

Cell = str | int | float
Row = Sequence[Cell]

_MOST_SOURCES = 20  # on the terminal and at the head of the page

COUNTS = ("hits", "pixels", "predicted_pixels")
"""Columns of per_image.csv for each class, whose sums over images give the scores of a set."""


def result_files(
    evaluation: Evaluation, about: Mapping[str, Any], further: Mapping[str, Any]
) -> dict[str, str]:
    """Return the text of all result files but report.html, the same on any number of ranks.

    The entries of `about`, which say what was scored, stand at the head of scores.json, and `further`
    ones before its classes.
    """
    names = evaluation.labels.class_names
    scores = summary(evaluation)
    classes = scores.pop("classes")
    text = json.dumps({**about, **scores, **further, "classes": classes})
    plain = json.loads(text, parse_constant=lambda nan: None)
    bins = ["from", "to", "pixels", "confidence", "accuracy"]
    files = {
        "scores.json": json.dumps(plain, indent=2, ensure_ascii=False) + "\n",
        "per_image.csv": _csv(_per_image_heading(evaluation), _per_image_rows(evaluation)),
        "calibration.csv": _csv(bins, evaluation.calibration.bins),
    }
    if evaluation.confusion.ndim == 2:  # of classes that overlap, there is no such table
        rows = evaluation.confusion.tolist()
        named = [[name, *row] for name, row in zip(names, rows, strict=True)]
        files["confusion.csv"] = _csv(["truth \\ prediction", *names], named)
    curve = evaluation.curve
    if curve is not None:
        columns = np.stack(
            [curve.thresholds, curve.dice, curve.iou, curve.precision, curve.recall], axis=1
        )
        heading = ["threshold", "dice", "iou", "precision", "recall"]
        files["threshold.csv"] = _csv(heading, columns.tolist())
    return files


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Return all scores over the whole set as plain values."""
    scores, curve, table = evaluation.scores, evaluation.curve, evaluation.confusion
    tolerance = evaluation.tolerance
    hits = table.trace(axis1=-2, axis2=-1).sum()
    entries: dict[str, Any] = {
        "images": len(evaluation.records),
        "size": "the images' own" if evaluation.full_size else "the network's scale",
        "threshold": evaluation.threshold,
        "boundary_tolerance": "0.75 % of the diagonal" if tolerance is None else tolerance,
        "dice": scores.dice,
        "iou": scores.iou,
        "pixel_accuracy": ratio(int(hits), int(table.sum())),
        "calibration_error": evaluation.calibration.error,
        "dice_as_trained": evaluation.dice_as_trained,
    }
    tally, by_class = evaluation.tally, evaluation.class_tallies
    if tally is not None:
        entries[tally.name] = tally.scores
        if by_class:
            scores_of = {name: each.scores for name, each in by_class.items()}
            entries[f"{tally.name}_by_class"] = scores_of
    if evaluation.sources:
        entries["sources"] = {}
    for name, (images, own, counts) in evaluation.sources.items():
        per_class = dict(zip(evaluation.labels.class_names, own.dice_per_class, strict=True))
        found = {"images": images, "dice": own.dice, "iou": own.iou, "dice_by_class": per_class}
        if counts is not None:
            found[counts.name] = counts.scores
        entries["sources"][name] = found
    if curve is not None:
        entries["dice_at_0.5"] = curve.dice_at(0.5)
        entries["best_threshold"] = curve.best
        entries["dice_at_best_threshold"] = curve.best_dice
    classes = []
    for row, (_, true, predicted) in zip(evaluation.classes, count_classes(table), strict=True):
        classes.append({**row._asdict(), "pixels": true, "predicted_pixels": predicted})
    entries["classes"] = classes
    return entries


def _per_image_heading(evaluation: Evaluation) -> list[str]:
    names = evaluation.labels.class_names
    heading = ["image", "source", "dice", "iou"]
    if not evaluation.sources:
        heading.remove("source")
    for name in names:
        heading += [f"{score}_{name}" for score in ClassScores._fields[1:]]
    if evaluation.tally is not None:
        heading += evaluation.tally.scores
    for name in names:
        heading += [f"{count}_{name}" for count in COUNTS]
    return heading


def _per_image_rows(evaluation: Evaluation) -> Iterator[Row]:
    """Yield a row per image: its Dice and IoU, then the scores of each class, then the counts."""
    names = evaluation.labels.class_names
    for record in evaluation.records:
        source = [record.source or ""] if evaluation.sources else []
        cells: list[Cell] = [record.name, *source, record.scores.dice, record.scores.iou]
        for row in ClassScores.of_all(names, record.scores, record.boundaries):
            cells += row[1:]
        if record.tally is not None:
            cells += record.tally.scores.values()
        for counts in count_classes(record.confusion):
            cells += counts
        yield cells


def _csv(heading: Sequence[str], rows: Iterable[Row]) -> str:
    """Return a table as CSV, numbers to the last digit, nan as an empty cell."""
    text = format_row(heading) + "\n"
    for row in rows:
        text += format_row("" if cell != cell else cell for cell in row) + "\n"  # nan
    return text


def write_results(folder: Path, files: Mapping[str, str]) -> None:
    """Write all `files` (text by name) or none, in place of earlier results."""
    with write_errors(folder, "make room, or use another --output"), ExitStack() as stack:
        for name, text in files.items():  # the stack replaces them after the last is written
            temporary = stack.enter_context(replacing(folder / name))
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
    for name, source in islice(evaluation.sources.items(), _MOST_SOURCES):
        entries.append((f"Dice of {name}", show(source.scores.dice)))
    if evaluation.tally is not None:
        entries = [(name, show(score)) for name, score in evaluation.tally.headline] + entries
    if evaluation.curve is not None:
        best, dice = evaluation.curve.best, show(evaluation.curve.best_dice)
        entries.append(("best threshold", f"{best:.3f} (Dice {dice})"))
    return entries


def terminal_table(evaluation: Evaluation) -> list[str]:
    """Return lines: a table with a row per class, the whole set's scores, the worst images."""
    scores, curve = evaluation.scores, evaluation.curve
    table: list[tuple[str, ...]] = [("class", *COLUMNS)]
    for each in evaluation.classes:
        table.append((each.name, *map(show, each[1:])))
    width = max(len(name) for name, *_ in table)
    lines = [""]
    for name, *cells in table:
        columns = "  ".join(cell.ljust(10) for cell in cells)
        lines.append(f"{name:<{width}}   {columns}".rstrip())
    what = "of the foreground" if scores.is_binary else "mean of the classes that occur"
    lines.append("")
    if (
        evaluation.tally is not None
    ):  # the score that chooses the epoch, before the means over pixels
        lines.append(evaluation.tally.describe())
    for name, tally in evaluation.class_tallies.items():
        lines.append(f"  {name}: {tally.brief}")
    lines += [f"Dice {show(scores.dice)}, IoU {show(scores.iou)} ({what})"]
    for name, (images, own, counts) in islice(evaluation.sources.items(), _MOST_SOURCES):
        line = (
            f"  {count_of(images, 'image')} of {name}: Dice {show(own.dice)}, IoU {show(own.iou)}"
        )
        if counts is not None:
            line += f", {counts.brief}"
        lines.append(line)
    if (more := len(evaluation.sources) - _MOST_SOURCES) > 0:
        lines.append(f"  {count_of(more, 'more source')}, in scores.json")
    calibration = f"expected calibration error {evaluation.calibration.error:.4f}"
    if curve is not None:
        calibration += (
            f"; best threshold for these images {curve.best:.3f} (Dice "
            f"{curve.best_dice:.4f}; {curve.dice_at(0.5):.4f} at 0.5)"
        )
    lines.append(calibration)
    worst = [f"{record.name} {show(record.score)}" for record in evaluation.worst(3)]
    return [*lines, f"worst: {', '.join(worst)}"]
