"""Measurements from the last six hours, for the plots on the web page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

# Seconds between points, and seconds for which they are kept: 1,440 points per series.
EVERY = 15.0
KEPT = 6 * 3600.0


class Point(NamedTuple):
    """One measurement. `at` is in seconds since the epoch. A value of None is a gap in the plot."""

    at: float
    value: float | None


@dataclass(frozen=True)
class Series:
    """A quantity measured over time."""

    title: str
    unit: str
    read: Callable[[float], float | None]
    """Returns the value at a given time; for a rate, the count so far."""
    is_rate: bool = False
    """Whether to plot the increase per second instead of the count."""


class History:
    """The measured points of all series. Thread-safe for one writer and any number of readers."""

    def __init__(self) -> None:
        self._points: dict[Series, deque[Point]] = {}
        self._last: dict[Series, Point] = {}
        self._due = 0.0

    def follow(self, series: Series) -> None:
        """Start measuring *series*."""
        self._points = {**self._points, series: deque(maxlen=int(KEPT / EVERY))}

    def measure(self, now: float) -> None:
        """Append a point to each series, unless the last points are less than `EVERY` seconds old.

        Args:
            now: Seconds since the epoch.
        """
        if now < self._due:
            return
        self._due = now + EVERY
        for series, points in self._points.items():
            point = Point(now, series.read(now))
            if series.is_rate:
                last, self._last[series] = self._last.get(series), point
                if last is None:
                    continue
                point = Point(now, _rate(last, point))
            points.append(point)

    def points(self) -> dict[Series, list[Point]]:
        """Return the points of each series, oldest first."""
        return {series: list(points) for series, points in self._points.items()}


def _rate(last: Point, now: Point) -> float | None:
    if last.value is None or now.value is None or now.at <= last.at:
        return None
    return max(0.0, now.value - last.value) / (now.at - last.at)
