"""A plot of a series over time as inline SVG: one line, three marks a side, no script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element

from sfpubsub.monitoring.history import EVERY, KEPT, Point, Series
from sfpubsub.monitoring.html import element

# Of the drawing's own units; the page scales it to its width.
_WIDTH, _HEIGHT = 480, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 22

# Columns with one value each at most, the largest of those in it: a peak must not get lost.
_COLUMNS = 180

# Seconds that a plot shows at least: of a run that began just now there is little to see.
_SHORTEST = 900.0

# Seconds between two marks below: the first of these with which there are no more than so many.
_STEPS = (300, 900, 1800, 3600, 7200)
_MARKS = 6

# How far from an edge a mark is left out: half of its text.
_HALF = 24


class Window(NamedTuple):
    """The time that a plot shows, in seconds since 1970 UTC."""

    begin: float
    end: float

    @classmethod
    def of(cls, started: float, now: float) -> Window:
        """Return that of a run: all of it, within bounds."""
        return cls(now - min(KEPT, max(_SHORTEST, now - started)), now)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def x(self, at: float) -> float:
        """Return where a time is in the drawing."""
        share = (at - self.begin) / self.seconds
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def plot(series: Series, points: Sequence[Point], window: Window) -> Element:
    """Return a figure of *points*, oldest first, within a window."""
    values = [point.value for point in points if point.value is not None]
    last = "nothing yet" if not values else f"{number(values[-1])} {series.unit} now"
    peak = max(values, default=0.0)
    top = _round_up(peak)
    caption = element("figcaption", element("strong", series.title), f" {last}")
    drawing = element(
        "svg",
        *_grid(top, window),
        *(element("path", d=path, class_="line") for path in _paths(points, top, window)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{series.title}: at most {number(peak)} {series.unit}",
    )
    return element("figure", caption, drawing)


def number(value: float) -> str:
    """Return a value in readable form: three digits of it, at least."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _grid(top: float, window: Window) -> list[Element]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _y(top * share, top)
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        label = element("text", number(top * share), x=_LEFT - 6, y=y + 4, class_="value")
        parts.append(label)
    step = next((step for step in _STEPS if window.seconds / step <= _MARKS), _STEPS[-1])
    first = (int(window.begin) // step + 1) * step
    for at in range(first, int(window.end), step):
        text, x = datetime.fromtimestamp(at, UTC).strftime("%H:%M"), window.x(at)
        if _LEFT + _HALF <= x <= _WIDTH - _HALF:
            parts.append(element("text", text, x=x, y=_HEIGHT - 4, class_="time"))
    return parts


def _paths(points: Sequence[Point], top: float, window: Window) -> list[str]:
    """Return a path for each run of points without a hole."""
    columns: dict[int, Point] = {}
    width = max(window.seconds / _COLUMNS, 1.5 * EVERY)  # so that none is empty without a reason
    for point in points:
        column = int((point.at - window.begin) // width)
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
            run.append(f"{window.x(point.at)} {_y(point.value, top)}")
        before = column
    paths.append(run)
    # A single point is a dot: a line to itself, with round ends.
    return [f"M{' L'.join(run if len(run) > 1 else run * 2)}" for run in paths if run]


def _value(point: Point) -> float:
    return -1.0 if point.value is None else point.value


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
