"""Plot a series over time as inline SVG: one line, a few ticks per axis, no script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element

from sfpubsub.monitoring.history import EVERY, KEPT, Point, Series
from sfpubsub.monitoring.html import element

# In the drawing's own units. The page scales the drawing to the available width.
_WIDTH, _HEIGHT = 480, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 22

# Number of columns. Each shows at most one value, the largest in it, so that no peak is lost.
_COLUMNS = 180

# Shortest time span of a plot, in seconds: a run that just began has little to show.
_SHORTEST = 900.0

# Candidate intervals between ticks on the time axis, in seconds: the first one that gives at most
# `_MARKS` ticks is used.
_STEPS = (300, 900, 1800, 3600, 7200)
_MARKS = 6

# Ticks closer to an edge than this are omitted: half the width of a label.
_HALF = 24


class Window(NamedTuple):
    """Time span of a plot, in seconds since the epoch."""

    begin: float
    end: float

    @classmethod
    def of(cls, started: float, now: float) -> Window:
        """Return the window from *started* to *now*, both in seconds since the epoch.

        A window shorter than 15 min is extended to start earlier. One longer than 6 h is cut to its
        last 6 h.
        """
        return cls(now - min(KEPT, max(_SHORTEST, now - started)), now)

    @property
    def seconds(self) -> float:
        """Length of the time span, in seconds."""
        return self.end - self.begin

    def x(self, at: float) -> float:
        """Return the x coordinate at which the plot shows a time."""
        share = (at - self.begin) / self.seconds
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def plot(series: Series, points: Sequence[Point], window: Window) -> Element:
    """Return a figure that plots *points* (oldest first) within *window*."""
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
    """Format a value for display with about three significant digits."""
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
    """Return one SVG path for each sequence of points without a gap."""
    columns: dict[int, Point] = {}
    # Wider than EVERY, because otherwise some columns would contain no point.
    width = max(window.seconds / _COLUMNS, 1.5 * EVERY)
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
    # A single point becomes a dot: a line to itself with round caps.
    return [f"M{' L'.join(run if len(run) > 1 else run * 2)}" for run in paths if run]


def _value(point: Point) -> float:
    return -1.0 if point.value is None else point.value


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _round_up(value: float) -> float:
    """Return *value* rounded up to 1, 2 or 5 times a power of ten; at least 1."""
    power = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * power:
                return factor * power
        power *= 10
