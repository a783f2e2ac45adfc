"""``python -m unet_ddp compare``: runs in one table and one chart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from unet_ddp.checkpoints.weights import best_of, build_blank, read_model
from unet_ddp.cli import parse
from unet_ddp.cli.spellings import translate
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, align, join_some, print_lines
from unet_ddp.extras.report.page import Page, render
from unet_ddp.files import as_local_path, as_path, is_address, write_errors, write_text
from unet_ddp.metrics.scores import show
from unet_ddp.plugins import is_own
from unet_ddp.runs.writers import describe_time, read_rows, to_float
from unet_ddp.settings import Kind, flag, names_of

_MOST_LINES = 8


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
    table = tabulate(runs)
    notes = [f"charts: the best {_MOST_LINES}"] if len(runs) > _MOST_LINES else []
    page = Page(f"{len(runs)} runs", table=table, comparison=_draw(runs[:_MOST_LINES]), notes=notes)
    with write_errors(output):
        write_text(output, render(page))
    return [*lines, *align(table), f"wrote {output}"]


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
    if is_own("networks", model.architecture.model):  # it is code, which no file starts
        averages = ("running_mean", "running_var", "num_batches_tracked")
        tensors = {name: v for name, v in model.state.items() if not name.endswith(averages)}
        parameters = list(tensors.values())
    else:
        parameters = list(build_blank(model.architecture, source).parameters())
    cells = {
        "Dice": show(dice[best]),
        "IoU": show(iou[best]),
        "of epoch": f"{best + 1} of {len(rows)}",
        "steps": rows[-1].get("step") or "-",
        "time": describe_time(sum(seconds)),
        "parameters": f"{sum(p.numel() for p in parameters) / 1e6:.2f} M",
    }
    name += f"/{place.name}" * (place != folder)
    return Run(name, dice, list(accumulate(seconds)), cells, translate(model.run["config"]))


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
