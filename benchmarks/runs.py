"""The jobs that a client's process receives, and the measurements that it returns."""

from __future__ import annotations

import resource
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WARM_UP = 0.2  # share of the events for connecting, compiling the decoder and filling the queue
MARKS = (10_000, 100_000, 1_000_000)  # numbers of events after which memory is measured


@dataclass(frozen=True)
class Run:
    """One way of receiving events, and the shape of the traffic."""

    way: str
    kind: str
    """Kind of event: a key of `feed.KINDS`."""
    size: int
    """Maximum number of events per response."""
    round_trip: int = 0
    """Network round trip to the server, in milliseconds."""
    pause: float = 0.0
    """Milliseconds that the handler sleeps per event."""
    streams: int = 1
    """Number of subscriptions in the process, each to a different topic."""
    rate: int = 0
    """Responses per second; 0 if only credit limits them."""
    events: int = 0
    """Number of events to receive, over all subscriptions."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Kind, size, round trip, pause and streams; runs with equal shapes can be compared."""
        return self.kind, self.size, self.round_trip, self.pause, self.streams

    def names(self) -> list[str]:
        """Return the names of the topics or managed subscriptions on the benchmark server."""
        return [f"{self.kind}_{self.size}_{self.rate}_{n}" for n in range(self.streams)]


@dataclass(frozen=True)
class Job:
    """A run, and the address and CA file of its server."""

    run: Run
    target: str
    ca_file: str

    def to_json(self) -> dict[str, Any]:
        """Return the job as a dict for JSON; see `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Job:
        """Return the job from the dict that `to_json` returned."""
        return cls(Run(**told["run"]), told["target"], told["ca_file"])


@dataclass(frozen=True)
class Sample:
    """The measurements of one run, without its warm-up."""

    events: int
    seconds: float
    cpu: float
    """CPU time of the client's process, in seconds."""
    peak_mb: float = 0.0
    """Peak resident memory of the client's process since its start, in MB."""
    latencies: list[int] = field(default_factory=list)
    """Times from publish to handler in nanoseconds; empty unless the run has a rate."""
    marks: dict[str, float] = field(default_factory=dict)
    """Resident memory in MB, by the number of events received before."""

    @property
    def speed(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time per event, in microseconds."""
        return self.cpu / self.events * 1e6


class Meter:
    """Measures from the end of the warm-up to the last event. Thread-safe."""

    def __init__(self, run: Run) -> None:
        self.is_paced = run.rate > 0
        self.latencies: list[int] = []
        self._lock = threading.Lock()
        self._seen = 0
        self._last = run.events
        self._marks = {mark: 0.0 for mark in MARKS if mark <= run.events}
        self._next_mark = min(self._marks, default=run.events + 1)
        self._began: tuple[int, float, float] | None = None
        self._ended: tuple[int, float, float] | None = None

    def is_enough(self, count: int) -> bool:
        """Count *count* received events; return whether the run has received all its events."""
        with self._lock:
            self._seen += count
            if self._seen >= self._next_mark:
                self._mark()
            if self._began is None:
                if self._seen >= WARM_UP * self._last:
                    self._began = self._now()
            elif self._ended is None and self._seen >= self._last:
                self._ended = self._now()
            return self._ended is not None

    def published(self, replay_id: bytes) -> None:
        """Record the latency of an event that has reached its handler now.

        The first 8 bytes of a benchmark server's replay ids are the publish time in nanoseconds.
        """
        if self._began is not None:
            self.latencies.append(time.time_ns() - int.from_bytes(replay_id[:8], "big"))

    def sample(self) -> Sample:
        """Return the measurements of the completed run."""
        assert self._began is not None
        assert self._ended is not None
        events, seconds, cpu = (
            end - start for end, start in zip(self._ended, self._began, strict=True)
        )
        marks = {str(mark): megabytes for mark, megabytes in self._marks.items()}
        return Sample(int(events), seconds, cpu, peak_mb(), self.latencies, marks)

    def _now(self) -> tuple[int, float, float]:
        return self._seen, time.perf_counter(), time.process_time()

    def _mark(self) -> None:
        self._marks[self._next_mark] = resident_mb()
        later = [mark for mark in self._marks if mark > self._next_mark]
        self._next_mark = min(later, default=self._last * 2 + 1)


def peak_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def resident_mb() -> float:
    """Return the current resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
