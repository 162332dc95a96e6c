"""The traffic cases and their targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from benchmarks.runs import Run

REFERENCES = ("bare", "good", "npm")
PLAIN = "dicts"  # the way that this package's other ways are compared with

# Events of a run, by events per response: with `dicts` and the accelerator, a run takes about half
# a second.
EVENTS = {100: 48_000, 10: 24_000, 1: 8_000}
# Factors for faster ways, by events per response.
FASTER = {100: {"bare": 3, "raw": 2, "arrow": 2}, 10: {"bare": 3, "raw": 2}, 1: {}}
# For latency, by events per response: responses per second, low enough to keep all sides mostly
# idle, and the number of responses.
PACE = {100: 20, 10: 100, 1: 400}
PACED = {100: 12, 10: 30, 1: 100}


@dataclass(frozen=True)
class Case:
    """Runs that are measured in an interleaved way, and compared with each other."""

    name: str
    about: str
    runs: tuple[Run, ...]
    """Runs of reference clients are measured once per round, other runs once per variant."""
    is_paced: bool = False
    """Whether latency from publish to handler is measured as well."""
    rounds: int | None = None
    """Fixed number of rounds, for runs that are too long to repeat; None to let the user choose."""


@dataclass(frozen=True)
class Target:
    """A target for a ratio of speeds."""

    case: str
    way: str
    size: int
    to: str
    """The reference client or other measure to compare with; a key of `figures.Row.ratios`."""
    today: float | None
    """The ratio when the target was set (2026-11-21); None if unknown."""
    pure: float | None
    native: float | None
    """Target with the accelerator."""
    streams: int = 1
    kind: str = "change"


def _runs(ways: tuple[str, ...], kind: str, size: int, **more: float) -> tuple[Run, ...]:
    return tuple(
        Run(way, kind, size, events=EVENTS[size] * FASTER[size].get(way, 1), **more)  # type: ignore[arg-type]
        for way in ways
    )


SHAPED = ("raw", "dicts", "facts", "json", "arrow", "managed", "stored", "asyncio", "cli")


def _shape(kind: str, size: int, about: str, ways: tuple[str, ...] = SHAPED) -> Case:
    return Case(
        f"{kind}-{size}",
        f"{about}, {size} in a response" if size > 1 else f"{about}, one in a response",
        _runs((*REFERENCES, *ways), kind, size),
        is_paced=True,
    )


def _round_trip(milliseconds: int, seconds: float) -> Case:
    """Return a case whose speed is limited by the credit window; runs take *seconds*."""
    ways = ("bare", "good", "dicts", "managed")
    runs = chain(*(_runs(ways, "change", size, round_trip=milliseconds) for size in (100, 10)))
    events = round(100 / milliseconds * 1000 * seconds)
    return Case(
        f"rtt-{milliseconds}",
        f"change events at a round trip of {milliseconds} ms",
        tuple(replace(run, events=events) for run in runs),
    )


def _handlers() -> Case:
    """Return a case with slow handlers, which run one at a time or eight at a time."""
    ways = ("good", "dicts", "run", "asyncio", "asyncio-run")
    events = {0.0: 10_000, 0.1: 3_000, 1.0: 600}
    return Case(
        "handlers",
        "handlers that sleep for 0, 0.1 and 1 ms an event; `run` has eight workers",
        tuple(
            Run(way, "platform", 10, pause=pause, events=number)
            for pause, number in events.items()
            for way in ways
        ),
    )


def _subscriptions() -> Case:
    """Return a case of runs of two seconds: one subscription gets at most 1,250 events/s."""
    each = 2_500
    return Case(
        "subscriptions",
        "change events on many subscriptions in one process, at a round trip of 80 ms",
        tuple(
            Run(way, "change", 100, round_trip=80, streams=streams, events=each * streams)
            for streams in (1, 8, 32, 64)
            for way in ("bare", "dicts")
        ),
    )


def _memory() -> Case:
    return Case(
        "memory",
        "resident memory after 10,000, 100,000 and 1,000,000 events",
        tuple(
            Run(way, "platform", 100, events=1_000_000)
            for way in ("bare", "dicts", "json", "managed", "stored", "asyncio", "arrow")
        ),
        rounds=1,
    )


CASES = {
    case.name: case
    for case in (
        _shape("change", 1, "change events of 630 bytes"),
        _shape("change", 10, "change events of 630 bytes"),
        _shape("change", 100, "change events of 630 bytes"),
        _shape("sparse", 1, "updates of 270 bytes"),
        _shape("sparse", 100, "updates of 270 bytes"),
        _shape("platform", 1, "platform events of 140 bytes"),
        _shape("platform", 100, "platform events of 140 bytes"),
        _round_trip(10, 1.0),
        _round_trip(80, 2.0),
        _handlers(),
        _subscriptions(),
        _memory(),
    )
}

OURS = sorted({run.way for case in CASES.values() for run in case.runs} - set(REFERENCES))

# The case that CI runs to check that the benchmarks work: a few seconds, one round.
SHORT = Case(
    "short",
    "change events of 630 bytes, in short runs whose figures are not reliable",
    tuple(
        replace(run, events=run.events // 5)
        for size in (100, 1)
        for run in _runs(("bare", "good", "raw", "dicts", "managed", "asyncio"), "change", size)
    ),
    rounds=1,
)

TARGETS = (
    Target("change-1", "dicts", 1, "bare", 0.42, 0.55, 0.65),
    Target("change-1", "dicts", 1, "npm", 0.58, 0.9, 1.0),
    Target("change-10", "dicts", 10, "bare", 0.18, 0.25, 0.5),
    Target("change-100", "dicts", 100, "npm", 3.7, 4.5, 8.0),
    Target("change-100", "dicts", 100, "bare", 0.13, 0.16, 0.3),
    Target("change-100", "facts", 100, "npm", 2.6, 4.0, 7.5),
    Target("change-100", "managed", 100, "plain", 0.85, 0.95, 0.95),
    Target("platform-100", "managed", 100, "plain", 0.66, 0.95, 0.95, kind="platform"),
    Target("change-100", "arrow", 100, "bare", 0.25, None, 0.45),
    Target("change-100", "cli", 100, "npm", 1.9, 2.5, 6.0),
    Target("change-1", "asyncio", 1, "plain", 0.7, 0.9, 0.9),
    Target("change-10", "asyncio", 10, "plain", 1.0, 0.9, 0.9),
    Target("change-100", "asyncio", 100, "plain", 1.0, 0.9, 0.9),
    Target("rtt-80", "dicts", 100, "window", 0.95, 0.95, 0.95),
    Target("rtt-80", "dicts", 10, "window", 0.95, 0.95, 0.95),
    Target("rtt-80", "managed", 100, "window", 0.87, 0.95, 0.95),
    Target("rtt-80", "managed", 10, "window", 0.87, 0.95, 0.95),
    Target("rtt-10", "dicts", 100, "window", 0.75, 0.82, 0.9),
    Target("subscriptions", "dicts", 100, "alone", 0.50, 0.75, 0.85, streams=32),
)
# Targets for other measures: the growth of memory, and the speed of writing to a table.
MOST_GROWTH = 1.05  # maximum ratio of memory after 1,000,000 events to memory after 10,000
INGEST = {"today": 0.50, "pure": 0.6, "native": 0.85}  # relative to the writer alone
