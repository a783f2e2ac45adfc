"""``python -m unet_ddp learning-curve``: what more labels would bring, by trainings on a part of them.

All trainings take the same number of steps. The validation images have no part in them: each network is scored
once, after its last step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from unet_ddp.checks.check import prepare_data
from unet_ddp.checks.data_parts import DataParts
from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import naming_recipe
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.errors import align, print_lines
from unet_ddp.extras.learning_curve.curve import Curve, CurveConfig, Point
from unet_ddp.extras.learning_curve.power_law import LEVEL, Forecast, PowerLaw
from unet_ddp.extras.report.charts import Line, draw_file
from unet_ddp.extras.tune.trainings import run_command
from unet_ddp.files import as_local_path, write_errors, write_text
from unet_ddp.metrics.scores import show
from unet_ddp.runs.lock import lock_folder
from unet_ddp.settings import with_values

Suit = Callable[[CurveConfig, PreparedData], tuple[dict[str, Any], str]]
"""Returns settings that suit a data set, and a line about them; or none."""


def main(argv: Sequence[str], parts: DataParts, suit: Suit) -> int:
    """Train, forecast, and return the exit status."""
    return run_command("learning-curve", partial(measure_curve, parts=parts, suit=suit), argv)


def measure_curve(argv: Sequence[str], parts: DataParts, suit: Suit) -> None:
    """Train and score; print the points and the forecast, and write a chart."""
    config = parse_train(argv, prog="python -m unet_ddp learning-curve", kind=CurveConfig)
    name = config.run.exp_name or "learning-curve"
    folder = as_local_path(config.run.checkpoints, "--checkpoints") / name
    use_own_readers(config.data.reader)
    with naming_recipe(config.launch.config, config.recipe):
        config.check_steps()
        data = prepare_data(
            config.data,
            seed=config.optimization.seed,
            parts=parts,
            skip_bad=config.launch.skip_bad_files,
        )
        values, line = suit(config, data)
        # Named, so that all sizes have the same network.
        config = replace(with_values(config, values), given=config.given | {"model"})
        curve = Curve(config, data, folder)
    with lock_folder(folder, "--exp-name"):
        curve.open()
        count = config.repeats * len(curve.sizes)
        print_lines(
            *data.notes,
            *filter(None, [line]),
            f"trainings: {count}, of {curve.steps} steps each, in {folder}",
        )
        for repeat in range(config.repeats):
            for size in curve.sizes:
                curve.measure(size, repeat)
        picture = folder / "learning-curve.svg"
        lines, chart = summarise(list(curve.points.values()))
        with write_errors(picture):
            write_text(picture, chart)
        print_lines(*lines, f"wrote {picture}")


def summarise(points: Sequence[Point]) -> tuple[list[str], str]:
    """Return the table of a curve with its forecast, as lines, and its chart."""
    points = sorted(points, key=lambda point: point.groups)
    images, dice = [], []
    table = [["images", "groups", "Dice", "of each training"]]
    for size, group in groupby(points, key=lambda point: point.groups):
        row = list(group)
        count = round(statistics.mean(point.images for point in row))
        mean = statistics.mean(point.dice for point in row)
        images.append(count)
        dice.append(mean)
        each = " ".join(show(point.dice) for point in row)
        table.append([str(count), str(size), show(mean), each])
    law, last = fit(points), images[-1]
    lines = [*align(table), f"fit: 1 - Dice = {law.a:.3g} * images^{-law.b:.3g}"]
    earlier = points[: -len(row)]
    if len(earlier) > 2:
        before = fit(earlier).forecast(last)
        lines.append(f"check: without the last row, the forecast for {last} is {before}")
    doubled = 2 * last
    forecast = law.forecast(doubled)
    doubt = find_doubt(forecast, law, dice[-1] - dice[0])
    said = f"{forecast}, {LEVEL:.0%} interval"
    if doubt:
        said = f"no forecast: {doubt}; use more --repeats or --epochs"
    lines.append(f"twice the labels ({last} -> {doubled}): {said}")
    end = last if doubt else 1.1 * doubled
    curve = np.geomspace(images[0], end, 99)
    chart = [Line("trained", images, dice), Line("power law", curve, map(law.at, curve))]
    if not doubt:
        ends = forecast.low, forecast.high
        chart.append(Line(f"{LEVEL:.0%} interval", (doubled, doubled), ends, is_reference=True))
    return lines, draw_file("Dice by labelled images", chart, xlabel="images")


def fit(points: Sequence[Point]) -> PowerLaw:
    """Return the power law of points."""
    return PowerLaw([point.images for point in points], [point.dice for point in points])


def find_doubt(forecast: Forecast, law: PowerLaw, rise: float) -> str:
    """Return why the points, over which Dice has risen so much, allow no forecast; empty if they do."""
    width = forecast.high - forecast.low
    if law.b <= 0:
        return "Dice does not rise with the labels"
    if width > rise:
        return f"{forecast} is wider than the rise of {rise:.3f} so far"
    return ""
