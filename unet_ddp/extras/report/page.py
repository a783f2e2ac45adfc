"""The report's page: one HTML file that needs no other.

Its layout is page.html.jinja, its looks style.css and viewer.js, its charts charts.py; the controls
of masks over photos, overlay.*, are the demo's too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from unet_ddp import __version__
from unet_ddp.evaluation.results import COLUMNS, Evaluation
from unet_ddp.extras.report.gallery import Picture, legend
from unet_ddp.heads import find_head
from unet_ddp.metrics.scores import show

_MOST_CLASSES = 40  # of a confusion matrix on the page


@dataclass(frozen=True)
class Page:
    """Contents of a report; empty parts are left out."""

    title: str
    facts: Sequence[tuple[str, str]] = ()  # the most important things, by name
    evaluation: Evaluation | None = None
    pictures: Sequence[Picture] = ()
    history: Sequence[Mapping[str, str]] = ()  # the rows of metrics.csv
    chosen_by: str = "Dice"  # the score that chooses the best of them
    range_test: Sequence[Mapping[str, str]] = ()  # the rows of learning_rate.csv
    table: Sequence[Sequence[str]] = ()  # a heading and a row for each run that is compared
    comparison: Sequence[Any] = ()  # charts of the runs that are compared
    provenance: Sequence[tuple[str, str]] = ()  # what run.json says
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


@cache  # to compile it takes as long as a chart
def open_template(name: str) -> Any:
    """Return a Jinja template of this folder."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "show": show,
        "sha256": lambda text: b64encode(sha256(text.encode()).digest()).decode(),
    }
    return environment.get_template(name)


def render(page: Page) -> str:
    """Return the HTML, with style, script and pictures in it."""
    from unet_ddp.extras.report.charts import history_charts, probability_charts

    evaluation = page.evaluation
    html: str = open_template("page.html.jinja").render(
        page=page,
        evaluation=evaluation,
        decision=find_head(evaluation.labels).decision if evaluation else "",
        legend=legend(evaluation.labels) if evaluation else [],
        columns=list(COLUMNS),
        history=[*page.comparison, *history_charts(page.history, page.range_test, page.chosen_by)],
        probabilities=probability_charts(evaluation) if evaluation else [],
        most_classes=_MOST_CLASSES,
        version=__version__,
    )
    return html
