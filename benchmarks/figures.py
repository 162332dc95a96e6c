"""Evaluates samples: medians, ratios per round, and comparisons with targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.cases import MOST_GROWTH, PLAIN, REFERENCES, TARGETS, Target
from benchmarks.feed import WINDOW
from benchmarks.measure import Measured, Samples, paced
from benchmarks.runs import MARKS, Run


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the median and the quartiles of *values*, one per round."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Row:
    """The figures of one run with one variant."""

    variant: str
    run: Run
    speed: Spread
    """Events per second."""
    cpu_us: Spread
    """CPU time of the client's process per event, in microseconds."""
    peak_mb: float
    """Peak resident memory of the client's process, in MB."""
    requests: float
    """Requests that the server received per 1,000 events."""
    ratios: dict[str, Spread]
    """Speed relative to other speeds, computed per round. The keys are the references ``bare``,
    ``good`` and ``npm``; ``plain`` for the synchronous client with dicts; ``window`` for the
    maximum that a window of 100 events allows at the round trip; ``alone`` for the speed of one
    subscription times their number; and ``against`` for the other checkout."""
    cpu_ratios: dict[str, Spread]
    """CPU time per event of the others divided by ours, by the same keys; larger is better."""
    latency_ms: tuple[float, float] | None
    """Latency from publish to handler at low load: the median and the 99th percentile."""
    marks_mb: dict[int, float]
    """Resident memory in MB, by the number of events received before."""

    @property
    def growth(self) -> float | None:
        """Memory at the last mark divided by memory at the first; None without two marks."""
        found = [self.marks_mb[mark] for mark in MARKS if mark in self.marks_mb]
        return found[-1] / found[0] if len(found) > 1 else None

    def as_dict(self) -> dict[str, object]:
        """Return the row as a dict that can be converted to JSON."""
        return {**asdict(self), "growth": self.growth}


def rows(samples: Samples) -> list[Row]:
    """Return the figures of a case, with one row per variant and run."""
    return [_row(samples, variant, run) for variant, run in samples if not run.rate]


def _row(samples: Samples, variant: str, run: Run) -> Row:
    found = samples[variant, run]
    waits = sorted(
        latency
        for each in samples.get((variant, paced(run)), [])
        for latency in each.sample.latencies
    )
    latency = None
    if waits:
        latency = (waits[len(waits) // 2] / 1e6, waits[round((len(waits) - 1) * 0.99)] / 1e6)
    return Row(
        variant=variant,
        run=run,
        speed=Spread.of([each.sample.speed for each in found]),
        cpu_us=Spread.of([each.sample.cpu_us for each in found]),
        peak_mb=max(each.sample.peak_mb for each in found),
        requests=statistics.median(each.requests for each in found),
        ratios=dict(_ratios(samples, variant, run)),
        cpu_ratios=dict(_cpu_ratios(samples, variant, run)),
        latency_ms=latency,
        marks_mb={int(mark): size for mark, size in found[-1].sample.marks.items()},
    )


def _ratios(samples: Samples, variant: str, run: Run) -> Iterator[tuple[str, Spread]]:
    ours = [each.sample.speed for each in samples[variant, run]]
    for name, others in _peers(samples, variant, run):
        yield name, Spread.of([a / b.sample.speed for a, b in zip(ours, others, strict=True)])
    if run.round_trip:
        most = WINDOW / run.round_trip * 1000 * run.streams
        yield "window", Spread.of([speed / most for speed in ours])
    if run.streams > 1:
        alone = _of(samples, variant, replace(run, streams=1))
        if alone is not None:
            pairs = zip(ours, alone, strict=True)
            yield "alone", Spread.of([a / b.sample.speed / run.streams for a, b in pairs])


def _cpu_ratios(samples: Samples, variant: str, run: Run) -> Iterator[tuple[str, Spread]]:
    ours = [each.sample.cpu_us for each in samples[variant, run]]
    for name, others in _peers(samples, variant, run):
        yield name, Spread.of([b.sample.cpu_us / a for a, b in zip(ours, others, strict=True)])


def _peers(samples: Samples, variant: str, run: Run) -> Iterator[tuple[str, list[Measured]]]:
    for way in REFERENCES:
        found = _of(samples, "reference", replace(run, way=way))
        if found is not None and run.way not in REFERENCES[: REFERENCES.index(way) + 1]:
            yield way, found
    if variant != "reference" and run.way != PLAIN:
        found = _of(samples, variant, replace(run, way=PLAIN))
        if found is not None:
            yield "plain", found
    if variant == "here" and ("against", run) in samples:
        yield "against", samples["against", run]


def _of(samples: Samples, variant: str, like: Run) -> list[Measured] | None:
    """Return the samples of a run like *like*, ignoring the number of events; None if missing."""
    for (whose, run), found in samples.items():
        same = run.way == like.way and run.shape == like.shape and run.rate == like.rate
        if whose == variant and same:
            return found
    return None


@dataclass(frozen=True)
class Verdict:
    """A measured ratio and its target."""

    case: str
    what: str
    variant: str
    before: float | None
    """The ratio when the target was set."""
    wanted: float | None
    found: Spread
    by_cpu: Spread | None
    """The same ratio computed from CPU time, which other load hardly affects; None if unknown."""

    @property
    def is_of_speed(self) -> bool:
        """Whether the ratio is one of speeds, which other load affects, rather than of memory."""
        return self.case != "memory"

    @property
    def is_reached(self) -> bool | None:
        """Whether the median reaches the target; None without a target."""
        return None if self.wanted is None else self.found.median >= self.wanted


def verdicts(case: str, found: Sequence[Row]) -> list[Verdict]:
    """Return the measured ratios of a case with their targets."""
    result = []
    for target in TARGETS:
        for row in found:
            if target.case == case and _is_of(target, row) and target.to in row.ratios:
                many = f", {target.streams} subscriptions" if target.streams > 1 else ""
                what = f"{target.way} / {target.to}, {target.size} per response{many}"
                wanted = target.native if row.variant == "native" else target.pure
                ratio, by_cpu = row.ratios[target.to], row.cpu_ratios.get(target.to)
                result.append(Verdict(case, what, row.variant, target.today, wanted, ratio, by_cpu))
    ours = [row for row in found if row.variant != "reference"]
    return result + [_of_memory(case, row) for row in ours if row.growth and case == "memory"]


def _is_of(target: Target, row: Row) -> bool:
    run = row.run
    wanted = (target.way, target.kind, target.size, target.streams)
    return wanted == (run.way, run.kind, run.size, run.streams)


def _of_memory(case: str, row: Row) -> Verdict:
    """Return the verdict on memory growth, inverted so that larger is better, as for speeds."""
    assert row.growth is not None
    what = f"{row.run.way}: memory at {MARKS[0]:,} events / at {MARKS[-1]:,}"
    ratio = Spread(1 / row.growth, 1 / row.growth, 1 / row.growth)
    return Verdict(case, what, row.variant, None, 1 / MOST_GROWTH, ratio, None)
