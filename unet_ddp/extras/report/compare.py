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

from unet_ddp.checkpoints.weights import SavedModel, best_of, build_blank, read_model
from unet_ddp.cli import parse
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, align, join_some, print_lines
from unet_ddp.extras.report.page import Page, render
from unet_ddp.extras.report.provenance import summarise_provenance, warn_of_damage
from unet_ddp.extras.report.validated import Validated, describe_others, read_validated
from unet_ddp.files import as_local_path, as_path, is_address, write_errors, write_text
from unet_ddp.metrics.scores import show
from unet_ddp.network.architecture import Architecture
from unet_ddp.plugins import is_own
from unet_ddp.runs.epoch_scores import chosen_by, find_best, read_epochs, scores_of
from unet_ddp.runs.writers import describe_time, to_float
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
    """Page to write, with the table and charts of validation scores."""


class Run(NamedTuple):
    """The scores, costs and settings of a run; its history is nan where there was no validation."""

    name: str
    chosen_by: str  # name of the score that chooses its best epoch
    history: list[float]  # that score of each epoch
    seconds: list[float]  # time of training and validation until the end of each epoch
    scores: dict[str, float]  # the known ones of its best epoch, by name
    cells: dict[str, str]  # its row of the table, but for scores and settings
    settings: Mapping[str, object]
    provenance: Mapping[str, str]  # versions, machine and end
    folder: Path
    validated: Validated | None

    def show(self, setting: str) -> str:
        """Return a setting as the table has it."""
        return str(self.settings.get(setting))[:60]


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
    found: dict[Path, Run] = {}
    left, lines = [], []
    for place in places:
        try:
            if _is_other(place):
                left.append(str(place))
            elif folder_of(place) not in map(folder_of, found):  # else another file of a run
                found[place] = read_run(place)
                lines += warn_of_damage(folder_of(place))
        except UserError as error:
            if is_address(place) or not place.exists():
                raise
            lines.append(f"left out: {error}")
    if left:
        lines.append(f"left out, no runs: {join_some(left, 4)}")
    if not found:
        reason = "; ".join(lines) or "no runs were named"
        raise UserError(f"{reason}; name folders of runs, as checkpoints/NAME")
    names = Counter(run.name for run in found.values())
    runs = []
    for place, run in found.items():
        runs.append(run._replace(name=run.name if names[run.name] == 1 else str(folder_of(place))))
    runs.sort(key=lambda run: (not run.scores, run.chosen_by, -find_best(run.history)[1]))
    table, remarks = tabulate(runs), [*average(runs), *_warn_of_images(runs)]
    notes = [remark.removeprefix("warning: ") for remark in remarks]
    if len(runs) > _MOST_LINES:
        notes.append(f"charts: the best {_MOST_LINES}")
    page = Page(f"{len(runs)} runs", table=table, comparison=_draw(runs[:_MOST_LINES]), notes=notes)
    with write_errors(output):
        write_text(output, render(page))
    return [*lines, *align(table), *remarks, f"wrote {output}"]


def _warn_of_images(runs: Sequence[Run]) -> list[str]:
    """Return a line about runs of other validation images than the first, but for repeats of a training."""
    known = [run for run in runs if run.validated]
    repeats = [{run.name for run in same} for same in _find_repeats(runs)]
    related, rest = known[:1], known[1:]
    for one in related:  # also those that are found here
        found = [
            run
            for run in rest
            if _have_one_split(one, run) or any({one.name, run.name} <= same for same in repeats)
        ]
        related += found
        rest = [run for run in rest if run not in found]
    if not rest:
        return []
    return [describe_others(known[0].name, known[0].folder, {run.name: run.folder for run in rest})]


def _have_one_split(one: Run, other: Run) -> bool:
    """Return whether two runs were validated on the same images, or on different folds of one split."""
    if not one.validated or not other.validated:
        return False
    (fold, _, count), (other_fold, _, other_count) = (
        run.show("fold").partition("/") for run in (one, other)
    )
    if (count, one.show("seed")) == (other_count, other.show("seed")) and fold != other_fold:
        return one.validated.all_names == other.validated.all_names
    return one.validated.is_of(other.validated)


def _is_other(place: Path) -> bool:
    """Return whether something of this machine is there that is no checkpoint and has none."""
    if is_address(place) or not place.exists() or place.suffix == ".pt":
        return False
    return not any((place / name).is_file() for name in ("best.pt", "last.pt"))


def folder_of(place: Path) -> Path:
    """Return the folder of a run that is named by itself or by a checkpoint."""
    return place.parent if place.suffix == ".pt" else place


def read_run(place: Path) -> Run:
    """Return the run of a folder, of a checkpoint, or at an address; see `compare` for errors."""
    folder = folder_of(place)
    name = folder.name or folder.absolute().name
    source = best_of(folder) if place == folder else place
    model = read_model(source)
    if model.architecture is None or not model.run.get("config"):
        raise UserError(f"{source}: not a checkpoint of this program's runs; leave it out")
    rows = read_epochs(folder)
    if not rows:
        raise UserError(f"{folder}: no epoch is done (metrics.csv); train it first")
    history = chosen_by(rows)
    seconds = [to_float(row.get("seconds")) for row in rows]
    best = find_best(history)[0]
    cells = {
        "of epoch": f"{best + 1} of {len(rows)}",
        "steps": rows[-1].get("step") or "-",
        "time": describe_time(sum(seconds)),
        "parameters": f"{_count_parameters(model, model.architecture, source) / 1e6:.2f} M",
    }
    provenance = summarise_provenance(folder)
    return Run(
        name,
        model.score_name,
        history,
        list(accumulate(seconds)),
        scores_of(rows[best], model.score_name),
        cells,
        model.run["config"],
        provenance,
        folder,
        read_validated(folder),
    )


def _count_parameters(model: SavedModel, architecture: Architecture, source: Path) -> int:
    if not is_own("networks", architecture.model):
        network = build_blank(architecture, source)
        return sum(parameter.numel() for parameter in network.parameters())
    count = 0  # the user's network is code, which no file starts
    for name, tensor in model.state.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            count += tensor.numel()
    return count


def tabulate(runs: Sequence[Run]) -> list[list[str]]:
    """Return a heading and a row for each run: its scores and cells, and settings, versions and machines that differ."""
    names = set[str]().union(*(run.settings for run in runs))
    differing = _find_differing(runs, sorted(names - names_of(TrainConfig, Kind.FILES)))
    titles = list(dict.fromkeys(title for run in runs for title in run.scores))
    rows = [["run", *titles, *runs[0].cells, *differing]]
    for run in runs:
        scores = [show(run.scores.get(title, math.nan)) for title in titles]
        rows.append([run.name, *scores, *run.cells.values(), *map(run.show, differing)])
    for name in dict.fromkeys(name for run in runs for name in run.provenance):
        column = [run.provenance.get(name, "-") for run in runs]
        if len({*column}) > 1:
            rows = [[*row, cell] for row, cell in zip(rows, [name, *column], strict=True)]
    return rows


def _find_differing(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return the settings in which runs differ."""
    differing = []
    for name in names:
        if len({run.show(name) for run in runs}) > 1:
            differing.append(name)
    return differing


def average(runs: Sequence[Run]) -> list[str]:
    """Return a line for each training that was repeated, with other seeds or on other folds of one split.

    It has the mean of their scores, and the standard deviation, which divides by n - 1.
    """
    return [*map(_describe_mean, _find_repeats(runs))]


def _find_repeats(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs with scores that repeat one training of the same images, if there are several of it."""
    repeated: dict[tuple[object, ...], dict[tuple[str, str], Run]] = {}
    left_out = {*names_of(TrainConfig, Kind.FILES), *_REPEATED}
    for run in runs:
        if not run.scores:
            continue
        others = []
        for name, value in sorted(run.settings.items()):
            if value is not None and name not in left_out:
                others.append((name, str(value)))
        seed, fold = map(run.show, _REPEATED)
        folds = fold.partition("/")[2]
        images = run.validated and run.validated.all_names
        same = repeated.setdefault((folds, images, *others), {})
        same.setdefault((seed, fold), run)
    return [list(same.values()) for same in repeated.values() if len(same) > 1]


def _describe_mean(runs: Sequence[Run]) -> str:
    scores = []
    for name in runs[0].scores:
        column = [run.scores[name] for run in runs if name in run.scores]
        if len(column) == len(runs):
            scores.append(f"{name} {mean(column):.4f} ± {stdev(column):.4f}")
    differing = _find_differing(runs, _REPEATED)
    names = join_some([run.name for run in runs], _MOST_LINES)
    sides = {run.validated and run.validated.names for run in runs}
    split = ", each with its own split" if "seed" in differing and len(sides) > 1 else ""
    return (
        f"{', '.join(scores)}: mean ± standard deviation of {len(runs)} runs that differ in "
        f"{' and '.join(differing)} alone{split}: {names}"
    )


def _draw(runs: Sequence[Run]) -> list[Any]:
    """Return charts of the scores that choose the best epochs, by epoch and by time."""
    from unet_ddp.extras.report.charts import Line, draw  # matplotlib: a second

    unit, length = "seconds", 1
    if max(run.seconds[-1] for run in runs) > 600:
        unit, length = "minutes", 60
    charts = []
    for name in dict.fromkeys(run.chosen_by for run in runs):
        by_epoch, by_time = [], []
        for run in runs:
            if run.chosen_by == name:
                by_epoch.append(Line(run.name, range(1, len(run.history) + 1), run.history))
                times = [seconds / length for seconds in run.seconds]
                by_time.append(Line(run.name, times, run.history))
        charts.append(draw(f"Validation {name}", by_epoch, xlabel="epoch"))
        charts.append(draw(f"Validation {name} over time", by_time, xlabel=unit))
    return [chart for chart in charts if chart.legend]
