"""What a client's process is asked to do, and what it measures."""

from __future__ import annotations

import resource
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WARM_UP = 0.2  # part of the events: connects, compiles the decoder, fills the client's queue
MARKS = (10_000, 100_000, 1_000_000)  # events after which the memory is looked at


@dataclass(frozen=True)
class Run:
    """A way to receive, in a shape of traffic."""

    way: str
    kind: str
    """Of events: one of `feed.KINDS`."""
    size: int
    """Events in a response, at most."""
    round_trip: int = 0
    """Milliseconds."""
    pause: float = 0.0
    """Milliseconds that the handler sleeps for each event."""
    streams: int = 1
    """Subscriptions in the process, each to a topic of its own."""
    rate: int = 0
    """Responses a second; 0 for as many as credit allows."""
    events: int = 0
    """When enough were received, over all streams."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """All but the way: runs of one shape can be compared."""
        return self.kind, self.size, self.round_trip, self.pause, self.streams

    def names(self) -> list[str]:
        """Return the names of the feeds, as the servers know them."""
        return [f"{self.kind}_{self.size}_{self.rate}_{n}" for n in range(self.streams)]


@dataclass(frozen=True)
class Job:
    """A run, and the server to receive from."""

    run: Run
    target: str
    ca_file: str

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Job:
        """Return a job that another process was told."""
        return cls(Run(**told["run"]), told["target"], told["ca_file"])


@dataclass(frozen=True)
class Sample:
    """What one run came to, from the end of the warm-up on."""

    events: int
    seconds: float
    cpu: float
    """CPU seconds of the client's process."""
    peak_mb: float = 0.0
    """The most memory that its process ever had resident, in MB."""
    latencies: list[int] = field(default_factory=list)
    """From publish to handler, in nanoseconds; where the rate is given."""
    marks: dict[str, float] = field(default_factory=dict)
    """Resident memory by number of events, in MB."""

    @property
    def speed(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time of an event, in microseconds."""
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
        self._began: tuple[float, ...] | None = None
        self._ended: tuple[float, ...] | None = None

    def is_enough(self, count: int) -> bool:
        """Count *count* events, and return whether there were enough."""
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
        """Note that the event with that replay id is with its handler now."""
        if self._began is not None:
            self.latencies.append(time.time_ns() - int.from_bytes(replay_id[:8], "big"))

    def begin(self) -> None:
        """Say that the warm-up is over; for who cannot count."""
        self._began = self._now()

    def deduct(self, events: int) -> None:
        """Say that *events* were received since `begin`, and are to be taken off what comes."""
        assert self._began is not None
        self._seen += events
        now = self._now()
        self._began = tuple([2 * end - start for end, start in zip(now, self._began, strict=True)])

    def end(self, events: int) -> None:
        """Say that so many events were received since then."""
        self._seen += events
        self._ended = self._now()

    def sample(self) -> Sample:
        """Return what was measured."""
        assert self._began is not None
        assert self._ended is not None
        events, seconds, cpu = (
            end - start for end, start in zip(self._ended, self._began, strict=True)
        )
        marks = {str(mark): megabytes for mark, megabytes in self._marks.items()}
        return Sample(int(events), seconds, cpu, peak_mb(), self.latencies, marks)

    def _now(self) -> tuple[float, ...]:
        return self._seen, time.perf_counter(), time.process_time()

    def _mark(self) -> None:
        self._marks[self._next_mark] = resident_mb()
        later = [mark for mark in self._marks if mark > self._next_mark]
        self._next_mark = min(later, default=self._last * 2 + 1)


def peak_mb() -> float:
    """Return the most memory that this process ever had resident, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def resident_mb() -> float:
    """Return the memory that this process has resident now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
