"""What must be true: of each reader at each delivery and commit, and of all at the end.

An event is known by its number in the order of publication on its topic. The oracle sees what the
org stored, what a program was given and has done, which gaps it was told, and which positions were
committed or stored; it shares no code with the client.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.kernel import Kernel

GRACE_S = 600.0
"""How long after a skip its gap may be told, in seconds. A record is read in a thread of its own,
after the events that follow the gap may have been delivered; the request takes up to 30 s.
"""

# Skips that the guarantees page excepts, each with its words. The run counts how often each was
# used; a skip without a gap that is none of these fails the run.
EXCEPTIONS = {
    "stopped": "events are skipped without a sign: after a stop and a start during an outage of a"
    " client without `record_of` (or without the right to read the record), or between two"
    " processes",
    "expired while away": "with nothing of ours on disk, after more than 72 h without a process",
    "expired while reading": "if the position expired while older events were still being read",
    "not committed yet": "Until the first confirmed commit of a managed subscription with"
    " defaultReplay LATEST, a crash can lose events",
    "moved": "or after the org was moved to another instance, which invalidates every position, if"
    " `errorRecoveryReplay` is LATEST",
    "again": "Each event is delivered to a handler at least once.",
}


class Broken(AssertionError):  # noqa: N818 - a verdict
    """A promise is broken."""


class Truth:
    """The events of one topic, in order of publication, and their positions, which may change.

    Args:
        kernel: Has the time.
        retention_s: For how long the service keeps an event, in seconds.
    """

    def __init__(self, kernel: Kernel, retention_s: float) -> None:
        self._kernel = kernel
        self._retention_s = retention_s
        self.numbers: dict[str, int] = {}  # by event id
        self.positions: list[int] = []
        self.times: list[float] = []  # of publication, in seconds since the start
        self.by_position: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, event_id: str, position: int) -> None:
        self.numbers[event_id] = len(self.positions)
        self.by_position[position] = len(self.positions)
        self.positions.append(position)
        self.times.append(self._kernel.now)

    def up_to(self, position: int) -> int:
        """Return how many events are at or before a position."""
        return bisect.bisect_right(self.positions, position)

    def expired(self) -> int:
        """Return how many events are no longer retained."""
        return bisect.bisect_right(self.times, self._kernel.now - self._retention_s)

    def moved(self, positions: Mapping[str, int]) -> None:
        """The events have other positions now.

        Args:
            positions: The new position by event id; without events that are no longer retained.
        """
        self.by_position.clear()
        numbers = {self.numbers[event_id]: position for event_id, position in positions.items()}
        # Positions of events that are gone: before all others, in order.
        for number in range(min(numbers, default=len(self))):
            self.positions[number] = min(self.positions[number], number - len(self))
        for number, position in numbers.items():
            self.positions[number] = position


@dataclass
class Skip:
    """Events that were passed over; a gap must be told, or an exception must apply."""

    truth: Truth
    first: int
    last: int
    at: float
    excuse: str | None = None
    """Which of `EXCEPTIONS` covered it when it happened."""


@dataclass
class Life:
    """One subscription object, from its creation to its end.

    Attributes:
        least: The first event that may be delivered: those before are committed.
        last: The event delivered last; None before the first.
        gap_at: When a gap was told last, in seconds since the start.
        given: The events that were delivered and are not done.
    """

    least: int
    last: int | None = None
    gap_at: float = -1e9
    given: set[int] = field(default_factory=set)


class Owner(Protocol):
    """The program of a reader, which has the counts."""

    name: str
    excuses: Counter[str]
    delivered: int
    duplicates: int


@dataclass
class Reader:
    """What one reader must get, over all its processes.

    Attributes:
        owner: Its program.
        truth: Its topic.
        floor: All events before this number are done, or excused.
            None if the first event that is delivered decides where it begins.
        done: Events after `floor` that are done, out of order.
        across: Whether something keeps the position across processes.
        exception: Returns which of `EXCEPTIONS` covers a skip; None if none does.
        skips: What a gap that is still to be told, or an exception, must cover.
    """

    owner: Owner
    truth: Truth
    kernel: Kernel
    across: bool
    exception: Callable[[Skip], str | None]
    floor: int | None = None
    done: set[int] = field(default_factory=set)
    skips: list[Skip] = field(default_factory=list)
    life: Life | None = None

    def begin(self, least: int) -> None:
        """A new subscription object may deliver from event *least* on."""
        self.life = Life(least)
        if not self.across:
            self.forget()

    def forget(self) -> None:
        """Nothing keeps the position: the next event decides where the reader begins."""
        self.floor = None
        self.done.clear()
        self.skips.clear()

    def told(self, reason: str) -> None:
        """A gap was told."""
        life = self.life
        if life is None:
            return
        life.gap_at = self.kernel.now
        for skip in self.skips:
            self.finish(skip.first, skip.last)
        self.skips.clear()
        life.least = 0

    def given(self, event_id: str) -> int:
        """The program was given an event; return its number."""
        number = self.truth.numbers[event_id]
        life, now = self.life, self.kernel.now
        assert life is not None
        self.owner.delivered += 1
        if self.floor is None:
            self.floor = number
        if life.last is None:
            if number < life.least:
                self._fail(f"event {number} again, although those before {life.least} are settled")
            if number < self.floor:
                self.owner.duplicates += self.floor - number
            if number > self.floor:
                self._skip(self.floor, number - 1)
        elif number > life.last + 1:
            self._skip(life.last + 1, number - 1)
        elif number <= life.last:
            if now - life.gap_at > GRACE_S:
                self._wait_for_gap(0, -1)  # a step back is told as well
            self.owner.duplicates += 1
        life.last = number
        life.given.add(number)
        return number

    def _skip(self, first: int, last: int) -> None:
        left = [number for number in range(first, last + 1) if number not in self.done]
        left = [number for number in left if self.floor is not None and number >= self.floor]
        if not left:
            return
        life = self.life
        assert life is not None
        if self.kernel.now - life.gap_at <= GRACE_S:
            self.finish(left[0], left[-1])
        else:
            self._wait_for_gap(left[0], left[-1])

    def _wait_for_gap(self, first: int, last: int) -> None:
        skip = Skip(self.truth, first, last, self.kernel.now)
        skip.excuse = self.exception(skip)
        self.skips.append(skip)

    def finish(self, first: int, last: int) -> None:
        """The program is done with events, or they are excused."""
        if self.life is not None:
            self.life.given.difference_update(range(first, last + 1))
        if self.floor is None or last < self.floor:
            return
        if first <= self.floor:
            self.floor = last + 1
        else:
            self.done.update(range(first, last + 1))
        while self.floor in self.done:
            self.done.discard(self.floor)
            self.floor += 1

    def committed(self, position: int, what: str) -> None:
        """A position was committed or stored: everything up to it must be done."""
        if self.floor is None:
            return
        through = self.truth.up_to(position)
        waiting = {number for skip in self.skips for number in range(skip.first, skip.last + 1)}
        life = self.life
        left = [
            number
            for number in range(self.floor, through)
            if number not in self.done and number not in waiting
        ]
        for number in left:
            if life is not None and number in life.given:
                self._fail(f"{what} a position after event {number}, which is not acked")
        if left:  # the stream began after them
            self._skip(left[0], left[-1])

    def check(self) -> None:
        """Called regularly: what was to be told must have been told."""
        now = self.kernel.now
        late = [skip for skip in self.skips if now - skip.at > GRACE_S]
        for skip in late:
            self.skips.remove(skip)
            name = skip.excuse or self.exception(skip)
            if name is None:
                what = f"events {skip.first} to {skip.last} were skipped"
                if skip.last < skip.first:
                    what = "events were delivered again"
                self._fail(f"{what}, and no gap was told")
            assert name in EXCEPTIONS
            self.owner.excuses[name] += 1
            self.finish(skip.first, skip.last)

    def _fail(self, text: str) -> None:
        raise Broken(f"{self.owner.name}: {text}")
