"""A plot of a series over time as inline SVG: one line, three marks a side, no script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from sfpubsub.monitoring.history import KEPT, Point, Series
from sfpubsub.monitoring.html import element

# Of the drawing's own units; the page scales it to its width.
_WIDTH, _HEIGHT = 480, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 22

# Columns with one value each, the largest of those in it: a peak must not get lost.
_COLUMNS = 180

# Hours between two marks below, and how far from an edge one is left out: half of its text.
_HOURS = 2
_HALF = 24


def plot(series: Series, points: Sequence[Point], now: float) -> Element:
    """Return a figure of *points*.

    Args:
        series: What they are of.
        points: Oldest first.
        now: The right edge, in seconds since 1970 UTC; the left one is `KEPT` before.
    """
    values = [point.value for point in points if point.value is not None]
    last = "nothing yet" if not values else f"{number(values[-1])} {series.unit} now"
    peak = max(values, default=0.0)
    top = _round_up(peak)
    caption = element("figcaption", element("strong", series.title), f" {last}")
    drawing = element(
        "svg",
        *_grid(top, now),
        *(element("path", d=path, class_="line") for path in _paths(points, top, now)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{series.title}, the last 6 hours: at most {number(peak)} {series.unit}",
    )
    return element("figure", caption, drawing)


def number(value: float) -> str:
    """Return a value as people read it: three digits of it, at least."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _grid(top: float, now: float) -> list[Element]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        label = element("text", number(top * share), x=_LEFT - 6, y=y + 4, class_="value")
        parts.append(label)
    step = _HOURS * 3600
    hour = (int(now - KEPT) // step + 1) * step
    while hour <= now:
        text, x = datetime.fromtimestamp(hour, UTC).strftime("%H:%M"), _x(hour, now)
        if _LEFT + _HALF <= x <= _WIDTH - _HALF:
            parts.append(element("text", text, x=x, y=_HEIGHT - 4, class_="time"))
        hour += step
    return parts


def _paths(points: Sequence[Point], top: float, now: float) -> list[str]:
    """Return a path for each run of points without a hole."""
    columns: dict[int, Point] = {}
    for point in points:
        column = int((point.at - now + KEPT) / KEPT * _COLUMNS)
        seen = columns.get(column)
        if column >= 0 and (seen is None or _value(point) >= _value(seen)):
            columns[column] = point
    paths: list[list[str]] = []
    run: list[str] = []
    before = None
    for column, point in sorted(columns.items()):
        if point.value is None or (before is not None and column > before + 1):
            paths.append(run)
            run = []
        if point.value is not None:
            run.append(f"{_x(point.at, now)} {_y(point.value, top)}")
        before = column
    paths.append(run)
    # A single point is a dot: a line to itself, with round ends.
    return [f"M{' L'.join(run if len(run) > 1 else run * 2)}" for run in paths if run]


def _value(point: Point) -> float:
    return -1.0 if point.value is None else point.value


def _x(at: float, now: float) -> float:
    return round(_LEFT + (at - now + KEPT) / KEPT * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _round_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is not below *value*; 1 at least."""
    power = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * power:
                return factor * power
        power *= 10
