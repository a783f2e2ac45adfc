"""Charts of the report: matplotlib's lines as SVG, in the page's own colours and font.

A new chart goes into the list that `history_charts` or `probability_charts` returns. Importing
matplotlib takes a second: import this module where charts are drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import chain

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unet_ddp.evaluation.results import Evaluation
from unet_ddp.runs.epoch_scores import scores_of
from unet_ddp.runs.writers import to_float

Rows = Sequence[Mapping[str, str]]

_SIZE = (400 / 72, 250 / 72)  # inches, of 72 units of the SVG each
_AREA = (0.13, 0.16, 0.84, 0.79)  # left, bottom, width, height of the axes, as shares of _SIZE
_COLOURS = {  # each becomes a variable of style.css, which has another value in dark mode
    "#0072b2": "var(--s0)",
    "#d55e00": "var(--s1)",
    "#00805f": "var(--s2)",
    "#a05a8c": "var(--s3)",
    "#b8860b": "var(--s4)",
    "#0c8fa3": "var(--s5)",
    "#c2185b": "var(--s6)",
    "#6b7d1f": "var(--s7)",
    "#d8dde3": "var(--edge)",
    "#5b6470": "var(--faint)",
}
*SERIES, _EDGE, _FAINT = _COLOURS
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.size": 12,
    "lines.linewidth": 2,
    "axes.grid": True,
    "axes.labelcolor": _FAINT,
    "axes.labelpad": 6,
    "grid.color": _EDGE,
    "grid.linewidth": 1,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.color": _FAINT for axis in "xy"},
    **{f"{axis}tick.major.size": 0 for axis in "xy"},
    **{f"{axis}tick.major.pad": 6 for axis in "xy"},
}
_MOST_DOTS = 60
_EVERY = 4  # thresholds for each point drawn: a chart has fewer pixels than there are thresholds

_LOSSES = "loss", "dice_loss", "tversky_loss", "lovasz_loss", "cross_entropy", "focal_loss"


@dataclass(frozen=True)
class Chart:
    """A chart to put into the page."""

    title: str
    legend: list[tuple[str, str]]  # CSS class and name of each line
    svg: str


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    x: Iterable[float]
    y: Iterable[float]
    is_reference: bool = False  # a dashed line to compare the others with

    @cached_property
    def points(self) -> list[tuple[float, float]]:
        """The points whose two values are finite."""
        pairs = zip(self.x, self.y, strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]

    @property
    def has_dots(self) -> bool:
        """Points are few enough to be seen one by one."""
        return len(self.points) <= _MOST_DOTS and not self.is_reference


def history_charts(rows: Rows, range_test: Rows = (), chosen_by: str = "Dice") -> list[Chart]:
    """Return losses, scores and learning rate by epoch from the rows of metrics.csv.

    For `chosen_by` see `scores_of`. The rows of learning_rate.csv give another chart.
    """
    epochs = _read_column(rows, "epoch")
    known = [*_LOSSES]
    names = list(rows[-1]) if rows else []
    if "loss" in names and "validation_dice" in names:  # between them a loss of the user's own
        known += names[names.index("loss") : names.index("validation_dice")]
    scores = [scores_of(row, chosen_by) for row in rows]
    columns = {
        "Loss": {name.replace("_", " "): _read_column(rows, name) for name in known},
        "Validation": {
            name: [each.get(name, math.nan) for each in scores]
            for name in dict.fromkeys(chain(*scores))
        },
        "Learning rate at the epoch's end": {"learning rate": _read_column(rows, "learning_rate")},
    }
    charts = []
    for title, named in columns.items():
        lines = [Line(name, epochs, column) for name, column in named.items()]
        charts.append(draw(title, lines, xlabel="epoch"))
    rates = _read_column(range_test, "learning_rate")
    powers = [math.log10(max(rate, 1e-9)) for rate in rates]
    losses = _read_column(range_test, "loss")
    shown = [loss if loss < 2 * losses[0] else math.nan for loss in losses]  # not diverged ones
    curve = Line("loss of a step", powers, shown)
    charts.append(draw("Range test", [curve], xlabel="learning rate, as a power of ten"))
    return [chart for chart in charts if chart.legend]


def _read_column(rows: Rows, name: str) -> list[float]:
    return [to_float(row.get(name)) for row in rows]


def probability_charts(evaluation: Evaluation) -> list[Chart]:
    """Return scores by threshold, for two classes, and the reliability diagram."""
    curve = evaluation.curve
    bins = evaluation.calibration.bins  # nan if empty
    shares = [each.accuracy for each in bins]
    calibration = draw(
        "Calibration",
        [
            Line("share that came true", [each.confidence for each in bins], shares),
            Line("perfect", (0, 1), (0, 1), is_reference=True),
        ],
        xlabel=f"{_whose(evaluation)} probability",
        is_unit_square=True,
    )
    if curve is None:
        return [calibration]
    every = slice(_EVERY - 1, None, _EVERY)
    x = curve.thresholds[every]
    used = evaluation.threshold or 0.5
    thresholds = draw(
        "Scores by threshold",
        [
            Line("Dice", x, curve.dice[every]),
            Line("IoU", x, curve.iou[every]),
            Line("precision", x, curve.precision[every]),
            Line("recall", x, curve.recall[every]),
            Line(f"scored at {used:.3f}", (used, used), (0, 1), is_reference=True),
        ],
        xlabel="threshold of the foreground's probability",
        is_unit_square=True,
    )
    return [thresholds, calibration]


def _whose(evaluation: Evaluation) -> str:
    """Return of what the probabilities of the reliability diagram are."""
    if evaluation.curve is not None:
        return "foreground's"
    return "winning class's" if evaluation.confusion.ndim == 2 else "each class's"


def draw(title: str, lines: Sequence[Line], *, xlabel: str, is_unit_square: bool = False) -> Chart:
    """Return a chart of up to eight lines, then references; those without a point are left out.

    Both axes of a unit square go from 0 to 1; else they fit the lines, and x is an integer.
    """
    lines = [line for line in lines if line.points]
    with _styled(title):
        svg = _to_svg(_plot(lines, xlabel=xlabel, is_unit_square=is_unit_square), lines)
    legend = []
    for k, line in enumerate(lines):
        kind = "reference" if line.is_reference else f"s{k}"
        legend.append((kind, line.name))
    return Chart(title, legend, svg)


def draw_file(title: str, lines: Sequence[Line], *, xlabel: str) -> str:
    """Return a chart as the text of an SVG file, with its title and legend in it."""
    file = io.StringIO()
    with _styled(title):
        figure = _plot(lines, xlabel=xlabel)
        figure.axes[0].set_title(title)
        figure.axes[0].legend(frameon=False)
        figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return "\n".join(map(str.rstrip, file.getvalue().splitlines())) + "\n"


def _styled(title: str) -> AbstractContextManager[None]:
    """Return a context with the page's style; no two charts share an id."""
    return style.context(["default", {**_STYLE, "svg.hashsalt": title}])


def _plot(lines: Sequence[Line], *, xlabel: str, is_unit_square: bool = False) -> Figure:
    figure = Figure(figsize=_SIZE)
    axes = figure.add_axes(_AREA)
    axes.set_xlabel(xlabel)
    axes.margins(x=0)
    for k, line in enumerate(lines):
        x, y = zip(*line.points, strict=True)
        if line.is_reference:
            axes.plot(x, y, "--", color=_FAINT, linewidth=1, label=line.name)
        else:
            kind = "o-" if line.has_dots else "-"
            axes.plot(x, y, kind, color=SERIES[k], clip_on=False, label=line.name)
    if is_unit_square:
        axes.set(xlim=(0, 1), ylim=(0, 1))
    for axis, is_integer in ((axes.xaxis, not is_unit_square), (axes.yaxis, False)):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=is_integer))
        axis.set_major_formatter("{x:g}")
    return figure


def _to_svg(figure: Figure, lines: Sequence[Line]) -> str:
    """Return the SVG element for an HTML page; each dot shows its values under the pointer."""
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata, transparent=True)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns\S*"', "", svg)  # HTML knows them
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # style.css has it
    svg = re.sub(r' id="\S+_\d+"', "", svg)  # figure_1 and the like, the same in every chart
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    titles = []
    for line in lines:
        if line.has_dots:
            name = escape(line.name)
            titles += [f"<title>{name}: {y:.5g} at {x:.5g}</title>" for x, y in line.points]
    dots = iter(titles)
    return re.sub(r"(<use [^>]*)/>", lambda dot: f"{dot[1]}>{next(dots)}</use>", svg)
