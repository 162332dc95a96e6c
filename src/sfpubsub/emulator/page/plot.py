"""The plot of a subscription's lag, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from sfpubsub.emulator.org.lag import Lag
from sfpubsub.emulator.page.live import shown_time
from sfpubsub.emulator.page.markup import Markup, tag

_WIDTH, _HEIGHT = 600, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 12, 24
"""Size of the image (`_WIDTH`, `_HEIGHT`) and margins around the curve, in SVG units; the page
scales the image.
"""


def plot(name: str, points: Sequence[Lag]) -> Markup:
    """Return a plot of the lag over time, as SVG.

    Args:
        name: Developer name of the subscription.
        points: The lag at two or more times, in chronological order.
    """
    most = max(point.events for point in points)
    top = max(most, 1)
    begin, end = points[0].at, points[-1].at
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + across * (at - begin) / max(end - begin, 1e-9)

    def y(events: float) -> float:
        return _TOP + up * (1 - events / top)

    line = " ".join(f"{x(point.at):.1f},{y(point.events):.1f}" for point in points)
    floor = y(0)
    said = (
        f"Lag of {name} in events, from {shown_time(begin)} to {shown_time(end)} UTC: "
        f"now {points[-1].events:,}, at most {most:,}"
    )
    return tag(
        "svg",
        tag("title", said),
        tag("path", d=f"M{_LEFT} {_TOP}V{floor:.1f}H{_WIDTH - _RIGHT}", class_="axis"),
        tag(
            "polygon", points=f"{_LEFT},{floor:.1f} {line} {x(end):.1f},{floor:.1f}", class_="area"
        ),
        tag("polyline", points=line, class_="curve"),
        _text(_LEFT - 6, _TOP + 4, f"{top:,}", "end"),
        _text(_LEFT - 6, floor + 4, "0", "end"),
        _text(_LEFT, _HEIGHT - 6, _ago(end - begin), "start"),
        _text(_WIDTH - _RIGHT, _HEIGHT - 6, "now", "end"),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=said,
        class_="plot",
    )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _ago(seconds: float) -> str:
    return f"{seconds / 60:.0f} min ago"
