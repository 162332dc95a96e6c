"""Where metrics are until somebody asks: counts that are added to, and functions that are read.

Nearly all are read from what a subscription, a job or a table knows anyway, and only when somebody
asks; a process that nobody asks pays nothing for them. The rest is added up, once a write.
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
    """How often which values came."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """Of each bucket by itself; the last one is beyond all bounds."""
    total: float = 0.0
    """Of all values."""

    def with_value(self, value: float) -> Histogram:
        """Return it with one value more."""
        counts = list(self.counts)
        counts[bisect_left(BUCKETS, value)] += 1
        return Histogram(tuple(counts), self.total + value)


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    value: float | Histogram
    labels: Labels = ()


Reader: TypeAlias = Callable[[], Iterable[Sample]]


def labels_of(values: Mapping[str, str]) -> Labels:
    """Return labels in the order that makes equal ones equal."""
    return tuple(sorted(values.items()))


class Registry:
    """All metrics of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._counts: dict[tuple[Metric, Labels], float] = {}
        self._histograms: dict[tuple[Metric, Labels], Histogram] = {}
        self._readers: list[Reader] = []
        self._forwards: dict[Metric, tuple[Callable[[float, Labels], None], ...]] = {}

    def add(self, metric: Metric, amount: float = 1.0, labels: Labels = ()) -> None:
        """Add to a counter."""
        with self._lock:
            key = metric, labels
            self._counts[key] = self._counts.get(key, 0.0) + amount

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Add a value to a histogram."""
        with self._lock:
            key = metric, labels
            self._histograms[key] = self._histograms.get(key, Histogram()).with_value(value)
            forwards = self._forwards.get(metric, ())
        for forward in forwards:
            forward(value, labels)

    def forward(self, metric: Metric, take: Callable[[float, Labels], None]) -> None:
        """Call *take* with every value of a histogram from now on."""
        with self._lock:
            self._forwards[metric] = (*self._forwards.get(metric, ()), take)

    def read(self, reader: Reader) -> None:
        """Call *reader* whenever somebody asks. It must not wait."""
        with self._lock:
            self._readers.append(reader)

    def collect(self) -> list[Sample]:
        """Return every value there is now."""
        with self._lock:
            found: list[Sample] = [Sample(m, value, at) for (m, at), value in self._counts.items()]
            found += [Sample(m, value, at) for (m, at), value in self._histograms.items()]
            readers = list(self._readers)
        for reader in readers:  # outside the lock: a reader may take one of its own
            found += reader()
        return found
