"""The charts of a report, from the rows of metrics.csv and from an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from unet_ddp.evaluation.report.charts import Series, line_chart
from unet_ddp.evaluation.results import Evaluation

_EVERY = 4  # of the thresholds one is drawn: the curve has as many points as the chart has pixels


def history_charts(rows: Sequence[Mapping[str, str]]) -> str:
    """Losses, scores and learning rate by epoch."""
    groups = (
        ("Loss", {"loss": "loss", "dice_loss": "Dice", "cross_entropy": "cross-entropy"}),
        (
            "Validation",
            {
                "validation_dice": "Dice",
                "validation_iou": "IoU",
                "dice_at_threshold": "Dice at the best threshold",
            },
        ),
        ("Learning rate at the epoch's end", {"learning_rate": "learning rate"}),
    )
    charts = "".join(
        line_chart(
            title,
            [Series(name, _points(rows, column)) for column, name in columns.items()],
            across="epoch",
        )
        for title, columns in groups
    )
    return f'<div class="charts">{charts}</div>' if charts else ""


def _points(rows: Iterable[Mapping[str, str]], column: str) -> list[tuple[float, float]]:
    return [(_number(row.get("epoch")), _number(row.get(column))) for row in rows]


def _number(text: str | None) -> float:
    """nan for an empty cell, and for what is no number."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def threshold_chart(evaluation: Evaluation) -> str:
    """The foreground's scores by threshold; empty for more than two classes."""
    curve = evaluation.curve
    if curve is None:
        return ""
    places = curve.thresholds[_EVERY - 1 :: _EVERY].tolist()
    series = [
        Series(name, list(zip(places, values[_EVERY - 1 :: _EVERY].tolist(), strict=True)))
        for name, values in (
            ("Dice", curve.dice),
            ("IoU", curve.iou),
            ("precision", curve.precision),
            ("recall", curve.recall),
        )
    ]
    used = evaluation.threshold or 0.5
    return line_chart(
        "Scores by threshold",
        series,
        across="threshold of the foreground's probability",
        x_range=(0, 1),
        y_range=(0, 1),
        mark=(used, f"scored at {used:.3f}"),
    )


def calibration_chart(evaluation: Evaluation) -> str:
    """The reliability curve, and what it would be at best."""
    filled = [found for found in evaluation.calibration.bins if found.pixels]
    two = evaluation.labels.num_classes == 2
    return line_chart(
        "Calibration",
        [
            Series("share that came true", [(b.confidence, b.accuracy) for b in filled]),
            Series("perfect", [(0, 0), (1, 1)], dashed=True),
        ],
        across="foreground's probability" if two else "winning class's probability",
        x_range=(0, 1),
        y_range=(0, 1),
    )
