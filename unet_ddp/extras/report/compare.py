"""``python -m unet_ddp compare``: runs in one table and one chart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any, NamedTuple

import tyro

from unet_ddp.checkpoints.weights import best_of, build_blank, read_model
from unet_ddp.cli import parse
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, align, join_some, print_lines
from unet_ddp.extras.report.page import Page, render
from unet_ddp.files import as_local_path, as_path, is_address, write_errors, write_text
from unet_ddp.metrics.scores import show
from unet_ddp.plugins import find, is_own
from unet_ddp.runs.writers import describe_time, read_rows, to_float
from unet_ddp.settings import Kind, flag, names_of

_MOST_LINES = 8
_REPEATED = "seed", "fold"  # settings in which the runs differ that repeat one training


@dataclass(frozen=True)
class CompareConfig:
    """Compare runs: scores, costs, and the settings in which they differ, the best run first.

    python -m unet_ddp compare checkpoints/*
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, flag("RUN ...")]
    """Run folders or checkpoints in them, or their addresses."""
    output: Annotated[str, flag("FILE", "-o")] = "compare.html"
    """Page to write, with the table and charts of validation Dice."""


class Run(NamedTuple):
    """The scores, costs and settings of a run; scores are nan where there was no validation."""

    name: str
    dice: list[float]  # validation Dice of each epoch
    seconds: list[float]  # time of training and validation until the end of each epoch
    scores: dict[str, float]  # of its best epoch
    cells: dict[str, str]  # its row of the table, but for settings
    settings: Mapping[str, object]


def main(argv: Sequence[str]) -> int:
    """Print the table and write the page."""
    config = parse(CompareConfig, argv, prog="python -m unet_ddp compare")
    output = as_local_path(config.output, "--output")
    if output.suffix != ".html":
        raise UserError(f"--output {config.output}: the page is HTML; use a name like compare.html")
    print_lines(*compare([as_path(run) for run in config.runs], output))
    return 0


def compare(places: Sequence[Path], output: Path) -> list[str]:
    """Write the page about runs, and return their table as lines.

    What is there but no run, or has no epoch yet, is left out, as a shell's * names all of a folder.

    Raises:
        UserError: nothing is there, or none is a run.
    """
    found, left, lines = dict[Path, Run](), list[str](), list[str]()
    for place in places:
        try:
            if _is_other(place):
                left.append(str(place))
            elif folder_of(place) not in map(folder_of, found):  # else another file of a run
                found[place] = read_run(place)
        except UserError as error:
            if is_address(place) or not place.exists():
                raise
            lines.append(f"left out: {error}")
    lines += [f"left out, no runs: {join_some(left, 4)}"] if left else []
    if not found:
        lines = lines or ["no runs were named"]
        raise UserError(f"{'; '.join(lines)}; name folders of runs, as checkpoints/NAME")
    names = Counter(run.name for run in found.values())
    runs = [
        run._replace(name=str(place)) if names[run.name] > 1 else run
        for place, run in found.items()
    ]
    runs.sort(key=lambda run: -find_best(run.dice)[1])
    table, means = tabulate(runs), average(runs)
    notes = [f"charts: the best {_MOST_LINES}"] if len(runs) > _MOST_LINES else []
    charts = _draw(runs[:_MOST_LINES])
    page = Page(f"{len(runs)} runs", table=table, comparison=charts, notes=[*means, *notes])
    with write_errors(output):
        write_text(output, render(page))
    return [*lines, *align(table), *means, f"wrote {output}"]


def _is_other(place: Path) -> bool:
    """Return whether something of this machine is there that is no checkpoint and has none."""
    names = ("best.pt", "last.pt")
    has_none = place.suffix != ".pt" and not any((place / name).is_file() for name in names)
    return not is_address(place) and place.exists() and has_none


def folder_of(place: Path) -> Path:
    """Return the folder of a run that is named by itself or by a checkpoint."""
    return place.parent if place.suffix == ".pt" else place


def find_best(dice: Sequence[float]) -> tuple[int, float]:
    """Return the first epoch with the highest Dice, from 0, and that; -1 for nan."""
    known = [-1.0 if math.isnan(each) else each for each in dice]
    return known.index(max(known)), max(known)


def read_run(place: Path) -> Run:
    """Return the run of a folder, of a checkpoint, or at an address; see `compare` for errors."""
    folder, source = folder_of(place), place
    name = folder.name or folder.absolute().name
    if source == folder:
        source = best_of(folder)
    model = read_model(source)
    if model.architecture is None or not model.run.get("config"):
        raise UserError(f"{source}: not a checkpoint of this program's runs; leave it out")
    rows = read_rows(folder / "metrics.csv")
    if not rows:
        raise UserError(f"{folder}: no epoch is done (metrics.csv); train it first")
    columns = ("validation_dice", "validation_iou", "seconds")
    dice, iou, seconds = ([to_float(row.get(name)) for row in rows] for name in columns)
    best = find_best(dice)[0]
    scores = {"Dice": dice[best], "IoU": iou[best]}
    if is_own("networks", model.architecture.model):  # it is code, which no file starts
        averages = ("running_mean", "running_var", "num_batches_tracked")
        tensors = {name: v for name, v in model.state.items() if not name.endswith(averages)}
        parameters = list(tensors.values())
    else:
        parameters = list(build_blank(model.architecture, source).parameters())
    cells = {
        **{score: show(value) for score, value in scores.items()},
        "of epoch": f"{best + 1} of {len(rows)}",
        "steps": rows[-1].get("step") or "-",
        "time": describe_time(sum(seconds)),
        "parameters": f"{sum(p.numel() for p in parameters) / 1e6:.2f} M",
    }
    name += f"/{place.name}" * (place != folder)
    settings = find("extras", "translate")(model.run["config"])
    return Run(name, dice, list(accumulate(seconds)), scores, cells, settings)


def tabulate(runs: Sequence[Run]) -> list[list[str]]:
    """Return a heading and a row for each run: its cells, and the settings that differ."""
    names = sorted(
        set[str]().union(*(run.settings for run in runs)) - names_of(TrainConfig, Kind.FILES)
    )
    values = {name: [str(run.settings.get(name))[:60] for run in runs] for name in names}
    differing = {name: column for name, column in values.items() if len(set(column)) > 1}
    heading = ["run", *runs[0].cells, *differing]
    rows = zip(*differing.values(), strict=True) if differing else [()] * len(runs)
    return [
        heading,
        *([r.name, *r.cells.values(), *row] for r, row in zip(runs, rows, strict=True)),
    ]


def average(runs: Sequence[Run]) -> list[str]:
    """Return a line for each training that was repeated, with other seeds or on other folds of one split.

    It has the mean of their scores, and the standard deviation, which divides by n - 1.
    """
    repeated: dict[tuple[str, str], dict[tuple[str, str], Run]] = {}
    left_out = {*names_of(TrainConfig, Kind.FILES), *_REPEATED}
    for run in runs:
        seed, fold = (str(run.settings.get(name)) for name in _REPEATED)
        known = run.settings.items()
        others = {name: str(v) for name, v in known if v is not None and name not in left_out}
        folds = fold.partition("/")[2]
        if not math.isnan(run.scores["Dice"]):
            same = repeated.setdefault((folds, str(sorted(others.items()))), {})
            same.setdefault((seed, fold), run)
    return [_describe_mean(list(same.values())) for same in repeated.values() if len(same) > 1]


def _describe_mean(runs: Sequence[Run]) -> str:
    differing = [n for n in _REPEATED if len({str(run.settings.get(n)) for run in runs}) > 1]
    columns = {score: [run.scores[score] for run in runs] for score in runs[0].scores}
    scores = (f"{name} {mean(each):.4f} ± {stdev(each):.4f}" for name, each in columns.items())
    return (
        f"{', '.join(scores)}: mean ± standard deviation of {len(runs)} runs that differ in "
        f"{' and '.join(differing)} alone: {join_some([run.name for run in runs], _MOST_LINES)}"
    )


def _draw(runs: Sequence[Run]) -> list[Any]:
    """Return charts of validation Dice by epoch and by time."""
    from unet_ddp.extras.report.charts import Line, draw  # matplotlib: a second

    is_long = max(run.seconds[-1] for run in runs) > 600
    by_epoch = [Line(run.name, range(1, len(run.dice) + 1), run.dice) for run in runs]
    by_time = [Line(r.name, [s / (60 if is_long else 1) for s in r.seconds], r.dice) for r in runs]
    charts = (
        draw("Validation Dice", by_epoch, xlabel="epoch"),
        draw("Validation Dice over time", by_time, xlabel="minutes" if is_long else "seconds"),
    )
    return [chart for chart in charts if chart.legend]
