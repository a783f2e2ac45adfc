"""The report's page: one HTML file that needs no other.

Its layout is page.html.jinja, its looks style.css and viewer.js, its charts charts.py.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from unet_ddp import __version__
from unet_ddp.evaluation.report.gallery import Picture, legend
from unet_ddp.evaluation.results import COLUMNS, Evaluation
from unet_ddp.evaluation.tables import show

_MOST_CLASSES = 40  # of a confusion matrix on the page


@dataclass(frozen=True)
class Page:
    """Contents of a report; empty parts are left out."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    """The most important things, by name."""
    evaluation: Evaluation | None = None
    pictures: Sequence[Picture] = ()
    history: Sequence[Mapping[str, str]] = ()
    """The rows of metrics.csv."""
    range_test: Sequence[Mapping[str, str]] = ()
    """The rows of learning_rate.csv."""
    table: Sequence[Sequence[str]] = ()
    """A heading and a row for each run that is compared."""
    comparison: Sequence[Any] = ()
    """Charts of the runs that are compared."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def render(page: Page) -> str:
    """Return the HTML, with style, script and pictures in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from unet_ddp.evaluation.report.charts import history_charts, probability_charts

    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "show": show,
        "sha256": lambda text: b64encode(sha256(text.encode()).digest()).decode(),
    }
    evaluation = page.evaluation
    return environment.get_template("page.html.jinja").render(
        page=page,
        style=(folder / "style.css").read_text(encoding="utf-8"),
        script=(folder / "viewer.js").read_text(encoding="utf-8"),
        evaluation=evaluation,
        legend=legend(evaluation.labels) if evaluation else [],
        columns=list(COLUMNS),
        history=[*page.comparison, *history_charts(page.history, page.range_test)],
        probabilities=probability_charts(evaluation) if evaluation else [],
        most_classes=_MOST_CLASSES,
        version=__version__,
    )
