"""The report's page: one HTML file that needs no other.

Its layout is page.html.jinja, its looks style.css and viewer.js, its charts charts.py.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def _policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy: nothing is loaded, no script runs but the page's own.

    Attributes may have styles: the charts' and the gallery's differ in each page.
    """
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{style_hash}'; style-src-attr "
        f"'unsafe-inline'; script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'"
    )


def render(page: Page) -> str:
    """Return the HTML, with style, script and pictures in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # or it reports on its font cache
    from unet_ddp.evaluation.report.charts import history_charts, probability_charts

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    style, script = (
        f"\n{(Path(__file__).parent / name).read_text(encoding='utf-8')}"
        for name in ("style.css", "viewer.js")
    )
    evaluation = page.evaluation
    return environment.get_template("page.html.jinja").render(
        page=page,
        style=style,
        script=script,
        policy=_policy(style, script),
        evaluation=evaluation,
        legend=legend(evaluation.labels) if evaluation else [],
        columns=list(COLUMNS),
        history=history_charts(page.history),
        probabilities=probability_charts(evaluation) if evaluation else [],
        most_classes=_MOST_CLASSES,
        version=__version__,
    )
