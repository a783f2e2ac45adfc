"""The page itself: HTML that needs nothing beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from unet_ddp import __version__
from unet_ddp.evaluation.report.curves import calibration_chart, history_charts, threshold_chart
from unet_ddp.evaluation.report.gallery import IGNORED, Picture, class_colours, difference_colours
from unet_ddp.evaluation.results import Evaluation

_HERE = Path(__file__).parent
_MOST_CLASSES = 40  # of a confusion matrix on the page


@dataclass(frozen=True)
class Page:
    """What a report shows; parts that are empty are left out."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    """The most important things, by name."""
    evaluation: Evaluation | None = None
    gallery: Sequence[Picture] = ()
    history: Sequence[Mapping[str, str]] = ()
    """The rows of metrics.csv."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def render(page: Page) -> str:
    """The report as one HTML file: style, script and pictures are in it."""
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    script = (_HERE / "viewer.js").read_text(encoding="utf-8")
    body = [
        f"<header><h1>{escape(page.title)}</h1>{_facts(page.facts)}{_notes(page.notes)}</header>",
        _section("Worst images first", _gallery(page)),
        _section("Scores", _scores(page.evaluation)),
        _section("Epochs", history_charts(page.history)),
        _section("Probabilities", _probabilities(page.evaluation)),
        _section("Confusion", _confusion(page.evaluation)),
        _section("Configuration", _settings(page.settings)),
        f"<footer>unet_ddp {__version__}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + f"\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def figures(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The figures over the whole set, for a report's head; Dice first."""
    found = [
        ("Dice", show(evaluation.scores.dice)),
        ("IoU", show(evaluation.scores.iou)),
        ("calibration error", show(evaluation.calibration.error)),
    ]
    if evaluation.curve is not None:
        threshold = evaluation.curve.best
        dice = show(evaluation.curve.dice_at(threshold))
        found.append(("best threshold", f"{threshold:.3f} (Dice {dice})"))
    return found


def _section(title: str, content: str) -> str:
    name = title.split()[0].lower()
    return f'<section id="{name}"><h2>{title}</h2>{content}</section>' if content else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl>{''.join(items)}</dl>"


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


# -- tables --------------------------------------------------------------------------------


def _scores(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    scores, pixels = evaluation.scores, evaluation.confusion.sum(axis=1)
    columns = (
        scores.dice_per_class,
        scores.iou_per_class,
        scores.precision_per_class,
        scores.recall_per_class,
        evaluation.boundary_f,
        [int(count) / max(1, int(pixels.sum())) for count in pixels],
    )
    names = ("Dice", "IoU", "precision", "recall", "boundary F", "share of pixels")
    rows = (
        _row(name, [show(value) for value in values])
        for name, *values in zip(evaluation.labels.class_names, *columns, strict=True)
    )
    at = "the images' own size" if evaluation.full_size else "the network's scale"
    how = (
        "the most probable class in each pixel"
        if evaluation.threshold is None
        else f"foreground from probability {evaluation.threshold:.3f} on"
    )
    return (
        f"<p>Over {len(evaluation.records)} images at {at}; {how}.</p>"
        f"{_table(_heading('class', names), rows)}"
    )


def _confusion(evaluation: Evaluation | None) -> str:
    """Shares of each true class; pixel counts are in the cells' titles."""
    if evaluation is None:
        return ""
    names = evaluation.labels.class_names
    if len(names) > _MOST_CLASSES:
        return (
            f"<p>{len(names)} classes are too many for a table here: confusion.csv of "
            "<code>python -m unet_ddp evaluate</code> has it.</p>"
        )
    rows = []
    for name, row in zip(names, evaluation.confusion.tolist(), strict=True):
        total = sum(row)
        cells = "".join(
            f'<td class="heat" style="--share:{count / total if total else 0:.3f}" '
            f'title="{count} pixels of {escape(name)} taken for {escape(other)}">'
            f"{f'{count / total:.1%}' if total else '–'}</td>"
            for other, count in zip(names, row, strict=True)
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        "<p>Each row is a true class; what share of its pixels was taken for which class.</p>"
        f"{_table(_heading('truth', names), rows)}"
    )


def _settings(settings: Mapping[str, Any]) -> str:
    rows = [
        _row(name, [escape(str(value))]) for name, value in settings.items() if value is not None
    ]
    return _table("", rows, "settings") if rows else ""


def _heading(first: str, names: Iterable[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    return f'<thead><tr><th scope="col">{first}</th>{cells}</tr></thead>'


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'


def _table(heading: str, rows: Iterable[str], kind: str = "numbers") -> str:
    body = f"{heading}<tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{body}</table></div>'


def show(value: float) -> str:
    """A figure of the tables; a dash for what could not be scored."""
    return "–" if math.isnan(value) else f"{value:.4f}"


def _probabilities(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    charts = threshold_chart(evaluation) + calibration_chart(evaluation)
    told = f"Expected calibration error {show(evaluation.calibration.error)}."
    if evaluation.curve is not None:
        best = evaluation.curve.best
        told += (
            f" Dice {show(evaluation.curve.dice_at(0.5))} at threshold 0.5; at best "
            f"{show(evaluation.curve.dice_at(best))}, at {best:.3f}."
        )
    return f'<p>{told}</p><div class="charts">{charts}</div>'


# -- gallery -------------------------------------------------------------------------------


def _gallery(page: Page) -> str:
    if not page.gallery or page.evaluation is None:
        return ""
    count, total = len(page.gallery), len(page.evaluation.records)
    cards = (_card(number, picture, page) for number, picture in enumerate(page.gallery, start=1))
    links = (
        f'<li><a href="#image-{number}"><b>{escape(picture.name)}</b> '
        f"{show(picture.scores.dice)}</a></li>"
        for number, picture in enumerate(page.gallery, start=1)
    )
    return (
        f"<p>{count} of {total} images, by their own Dice: wrong labels and weak spots are found "
        "here.</p>"
        '<div class="bar" role="toolbar" aria-label="images">'
        '<button id="previous" aria-label="previous image">←</button>'
        f'<output id="position">1 of {count}</output>'
        '<button id="next" aria-label="next image">→</button>'
        '<label><input type="checkbox" id="layers" checked> masks over the photographs</label>'
        '<span class="hint">keys: ← → images, M masks</span></div>'
        f'{_gallery_legend(page.evaluation)}<ol class="cards">{"".join(cards)}</ol>'
        f'<details open><summary>All {count} by name</summary><ol class="names">{"".join(links)}</ol>'
        "</details>"
    )


def _card(number: int, picture: Picture, page: Page) -> str:
    panels = "".join(
        f'<figure><img src="{uri}" alt="{what} of {escape(picture.name)}" width="{picture.width}" '
        f'height="{picture.height}"><figcaption>{what}</figcaption></figure>'
        for what, uri in (
            ("truth", picture.truth),
            ("prediction", picture.prediction),
            ("difference", picture.difference),
        )
    )
    return (
        f'<li class="card" id="image-{number}" style="--photo:url({picture.photo})">'
        f"<h3>{escape(picture.name)}</h3><p>{_about(picture, page)}</p>"
        f'<div class="panels">{panels}</div></li>'
    )


def _about(picture: Picture, page: Page) -> str:
    """The image's scores; of several classes, its three worst."""
    assert page.evaluation is not None
    names, scores = page.evaluation.labels.class_names, picture.scores
    if len(names) == 2:
        return (
            f"Dice {show(scores.dice)}, IoU {show(scores.iou)}, precision "
            f"{show(scores.precision_per_class[1])}, recall {show(scores.recall_per_class[1])}"
        )
    found = sorted(
        (dice, name)
        for dice, name in zip(scores.dice_per_class, names, strict=True)
        if not math.isnan(dice)
    )
    worst = ", ".join(f"{escape(name)} ({dice:.3f})" for dice, name in found[:3])
    return f"mean Dice {show(scores.dice)}; worst classes: {worst}"


def _gallery_legend(evaluation: Evaluation) -> str:
    labels = evaluation.labels
    entries = [(labels.class_names[k], colour) for k, colour in class_colours(labels).items()]
    told = (
        ("false positive", "false negative (missed)")
        if labels.num_classes == 2
        else ("wrong class",)
    )
    entries += zip(told, difference_colours(labels).values(), strict=True)
    if labels.ignore is not None:
        entries.append(("ignored", IGNORED))
    spans = (
        f'<span><i style="background:rgb{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f'<p class="legend">{"".join(spans)}</p>'
