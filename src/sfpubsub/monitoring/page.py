"""The web page: status, plots of the last six hours, positions, gaps, batches and errors.

The page is rendered on the server at each request, and refreshes itself. It shows no payloads and
no secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

from sfpubsub.monitoring.html import document, element, table
from sfpubsub.monitoring.metrics import SYSTEM
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.monitoring.objects import ObjectState
from sfpubsub.monitoring.observation import Facts
from sfpubsub.monitoring.plot import Window, number, plot
from sfpubsub.monitoring.registry import Histogram
from sfpubsub.monitoring.text import span

# Seconds after which the browser reloads the page.
REFRESH = 10


def page(monitor: Monitor) -> str:
    """Return the page as HTML."""
    now = monitor.clock()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="refresh", content=REFRESH),
        element("title", monitor.title),
        element("link", rel="icon", href="data:,"),
        element("link", rel="stylesheet", href="style.css"),
    )
    facts = [observation.facts() for observation in monitor.observations]
    main = element(
        "main",
        element("h1", monitor.title),
        _verdict(monitor),
        *_objects(monitor, now),
        *_plots(monitor, now),
        *(part for each in facts for part in _source(each, now)),
        *_steps(monitor, now),
        *_counts(monitor),
        *_gaps(facts),
        *_warnings(monitor, now),
    )
    footer = element(
        "footer",
        f"Running for {span(now - monitor.started_at)}; ",
        f"as of {_time(now)} UTC, refreshed every {REFRESH} s. ",
        element("a", "/metrics", href="metrics"),
        " ",
        element("a", "/health", href="health"),
    )
    return document(element("html", head, element("body", main, footer), lang="en"))


def _verdict(monitor: Monitor) -> Element:
    found = monitor.problems()
    if not found:
        return element("p", "All is well.", class_="well", role="status")
    rows = (
        element("li", element("strong", problem.situation), f" {problem.reason}")
        for problem in found
    )
    return element("ul", *rows, class_="problems", role="alert")


def _plots(monitor: Monitor, now: float) -> Iterator[Element]:
    window = Window.of(monitor.started_at, now)
    figures = [plot(series, points, window) for series, points in monitor.history.points().items()]
    if figures:
        # The window of a run that just began starts before the run.
        begin = max(window.begin, monitor.started_at)
        yield element("h2", f"Since {_time(begin)[:5]} UTC")
        yield element("div", *figures, class_="plots")


def _objects(monitor: Monitor, now: float) -> Iterator[Element]:
    rows = [
        (
            each.entity,
            each.state,
            "not known" if each.records is None else f"{each.records:,}",
            "no event waits" if each.behind is None else span(each.behind),
            f"{each.queued:,}",
            "none" if each.oldest_entry is None else _ago(each.oldest_entry, now),
            _ago(each.read_at, now),
            _waits(each),
        )
        for each in monitor.objects()
    ]
    if rows:
        yield element("h2", "Objects")
        heads = ("Object", "State", "Records", "Behind the stream by", "Rereads queued")
        yield table((*heads, "Oldest of them", "Last whole read", "Waits for"), rows)


def _waits(each: ObjectState) -> str:
    parked = f"a confirmation of {each.parked_rows:,} deletions" if each.parked_rows else ""
    return "; ".join(filter(None, (*each.waits.values(), parked))) or "nothing"


def _source(facts: Facts, now: float) -> Iterator[Element]:
    health = facts.health
    lag = facts.lag(now)
    yield element("h2", facts.name)
    rows = {
        "State": health.state + (f": {health.reason}" if health.reason else ""),
        "Behind by": "not known" if lag is None else span(lag),
        "Last message": _ago(facts.last_message_at, now),
        "Events": f"{health.delivered:,} delivered, {health.redelivered:,} redelivered",
        "Not acked yet": f"{health.unacked:,}, and {health.pending_count:,} not consumed yet",
        "Reconnects": f"{health.reconnects:,}",
        "Quarantined": f"{health.quarantined:,}, and {health.skipped:,} skipped",
        "Last acked event": _ago(facts.acked_event_at, now),
        "Acked position": facts.acked_position or "none",
        "Received position": health.last_position.hex() if health.last_position else "none",
    }
    if facts.kind == "managed":
        rows["Last commit"] = _ago(facts.last_commit_at, now)
        rows["Committed position"] = health.committed.hex() if health.committed else "none"
    pairs = (part for name, text in rows.items() for part in _pair(name, text))
    yield element("dl", *pairs)


def _pair(name: str, text: str) -> tuple[Element, Element]:
    return element("dt", name), element("dd", text)


def _steps(monitor: Monitor, now: float) -> Iterator[Element]:
    running = [
        (name, "running", f"{number(seconds)} s", "")
        for name, seconds in monitor.steps.running().items()
        if seconds is not None
    ]
    done = [
        (step.name, _ago(step.at, now), f"{number(step.seconds)} s", step.text)
        for step in monitor.steps.done()
    ]
    if running or done:
        yield element("h2", "Batches")
        yield table(("Step", "Ended", "Took", "What it did"), [*running, *done])


def _counts(monitor: Monitor) -> Iterator[Element]:
    rows = [
        (
            sample.metric.meaning,
            ", ".join(value for name, value in sample.labels if name != SYSTEM),
            f"{sample.value:,.0f}",
        )
        for sample in monitor.counts()
        if not isinstance(sample.value, Histogram)
    ]
    if rows:
        yield element("h2", "Counts of this run")
        yield table(("What", "Of", "Count"), rows)


def _gaps(facts: list[Facts]) -> Iterator[Element]:
    rows = [
        (
            each.name,
            gap.reason,
            gap.after.hex() if gap.after else "not known",
            gap.before.hex() if gap.before else "not known",
            gap.error_code or "",
        )
        for each in facts
        for gap in each.health.gaps
    ]
    if facts:
        yield element("h2", "Gaps")
        heads = ("Subscription", "Reason", "After", "Before", "Error code")
        yield table(heads, rows) if rows else element("p", "No position was lost.")


def _warnings(monitor: Monitor, now: float) -> Iterator[Element]:
    yield element("h2", "Warnings and errors")
    rows = [(each.level, _ago(each.at, now), each.text) for each in list(monitor.logged)[::-1]]
    yield table(("Level", "When", "What"), rows) if rows else element("p", "None.")


def _ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{span(max(0.0, now - at))} ago"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
