"""Line charts as inline SVG: no library, sharp at any size, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 400, 250  # of the drawing, scaled to the page
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 40  # room around it
_MOST_DOTS = 60

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line; points whose value is nan are left out."""

    name: str
    points: Sequence[Point]
    dashed: bool = False


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    across: str,
    x_range: Point | None = None,
    y_range: Point | None = None,
    mark: tuple[float, str] | None = None,
) -> str:
    """A chart as a `<figure>` of HTML.

    Args:
        across: what the horizontal axis shows.
        x_range: from where to where; what the points need when absent.
        y_range: likewise.
        mark: a place on the horizontal axis, and what is there.
    """
    kept = [Series(s.name, [p for p in s.points if math.isfinite(p[1])], s.dashed) for s in series]
    kept = [one for one in kept if one.points]
    points = [point for one in kept for point in one.points]
    if not points:
        return ""
    x_low, x_high = x_range or _span([x for x, _ in points])
    y_low, y_high = y_range or _span([y for _, y in points])

    whole = float(all(x == int(x) for x, _ in points) and x_range is None)  # epochs have no halves

    def place(point: Point) -> Point:
        x = _LEFT + (point[0] - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - (point[1] - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)
        return x, y

    parts = [
        *(_across(place((x, y_low)), x) for x in ticks(x_low, x_high, least=whole)),
        *(_up(place((x_low, y)), y) for y in ticks(y_low, y_high)),
        f'<text x="{(_WIDTH + _LEFT) / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{escape(across)}</text>",
    ]
    if mark is not None:
        x, _ = place((mark[0], y_low))
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}">'
            f"<title>{escape(mark[1])}</title></line>"
        )
    parts += [_line(number, one, place) for number, one in enumerate(kept)]
    return (
        f"<figure><h3>{escape(title)}</h3>{_legend(kept)}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg></figure>"
    )


def ticks(low: float, high: float, *, least: float = 0.0, most: int = 6) -> list[float]:
    """Round numbers in [low, high]: steps of 1, 2 or 5 times a power of ten, about `most`.

    Args:
        least: the smallest step.
    """
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _span(values: list[float]) -> Point:
    low, high = min(values), max(values)
    room = (high - low) * 0.05 or abs(low) * 0.1 or 1.0
    return (
        (low, high)
        if high > low and all(v == int(v) for v in values)
        else (low - room, high + room)
    )


def _across(at: Point, value: float) -> str:
    x, y = at
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y:.1f}"/>'
        f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{value:g}</text>'
    )


def _up(at: Point, value: float) -> str:
    x, y = at
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    )


def _line(number: int, series: Series, place: object) -> str:
    assert callable(place)
    places = [place(point) for point in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = " dashed" if series.dashed else ""
    line = f'<polyline class="s{number}{dashed}" points="{path}"/>'
    if len(places) > _MOST_DOTS or series.dashed:
        return line
    dots = (
        f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(series.name)}: '
        f"{point[1]:.5g} at {point[0]:.5g}</title></circle>"
        for (x, y), point in zip(places, series.points, strict=True)
    )
    return line + "".join(dots)


def _legend(series: Sequence[Series]) -> str:
    """What each line is."""
    entries = (f'<span><i class="s{k}"></i>{escape(s.name)}</span>' for k, s in enumerate(series))
    return f'<p class="legend">{"".join(entries)}</p>'
