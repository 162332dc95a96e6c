"""The metrics registry: counters that are updated, and functions that are called on demand.

Nearly all metrics are read on demand from the existing state of a subscription, a job or a table,
so they cost nothing in a process that is not monitored. The others are updated once per write.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sfpubsub.monitoring.metrics import BUCKETS, Metric

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Histogram:
    """Counts of observed values per bucket."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """Count per bucket (not cumulative); the last bucket counts the values above all bounds."""
    total: float = 0.0
    """Sum of all values."""

    def with_value(self, value: float) -> Histogram:
        """Return a copy of the histogram with *value* added."""
        counts = list(self.counts)
        counts[bisect_left(BUCKETS, value)] += 1
        return Histogram(tuple(counts), self.total + value)


@dataclass(frozen=True)
class Sample:
    """One value of a metric, with its labels."""

    metric: Metric
    value: float | Histogram
    labels: Labels = ()


Reader: TypeAlias = Callable[[], Iterable[Sample]]


def labels_of(values: Mapping[str, str]) -> Labels:
    """Return labels sorted by name, so that equal labels compare as equal."""
    return tuple(sorted(values.items()))


class Registry:
    """All metrics of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._counts: dict[tuple[Metric, Labels], float] = {}
        self._histograms: dict[tuple[Metric, Labels], Histogram] = {}
        self._readers: list[Reader] = []
        self._forwards: dict[Metric, tuple[Callable[[float, Labels], None], ...]] = {}

    def add(self, metric: Metric, amount: float = 1.0, labels: Labels = ()) -> None:
        """Increase a counter by *amount*."""
        with self._lock:
            key = metric, labels
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Add *value* to a histogram, and pass it to the functions registered with `forward`."""
        with self._lock:
            key = metric, labels
            self._histograms[key] = self._histograms.get(key, Histogram()).with_value(value)
            forwards = self._forwards.get(metric, ())
        for forward in forwards:
            forward(value, labels)

    def forward(self, metric: Metric, take: Callable[[float, Labels], None]) -> None:
        """Register *take*, which is called with each value recorded for the histogram *metric*."""
        with self._lock:
            self._forwards[metric] = (*self._forwards.get(metric, ()), take)

    def read(self, reader: Reader) -> None:
        """Register *reader*, which returns samples. Every `collect` calls it; it must not block."""
        with self._lock:
            self._readers.append(reader)

    def collect(self) -> list[Sample]:
        """Return the current values of all metrics."""
        with self._lock:
            found: list[Sample] = [Sample(m, value, at) for (m, at), value in self._counts.items()]
            found += [Sample(m, value, at) for (m, at), value in self._histograms.items()]
            readers = list(self._readers)
        for reader in readers:  # outside the lock, because a reader may acquire other locks
            found += reader()
        return found
