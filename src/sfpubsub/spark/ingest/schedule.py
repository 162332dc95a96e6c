"""When an ingest job flushes a batch, who writes for whom, and when a job is over.

`IngestSchedule` decides for one source, and `SharedWrites` for all sources of a table. Each returns
what to do next, and the time at which something may be due without any input. This module is pure:
no Spark, no I/O, no clock, no threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from sfpubsub.spark.ingest.progress import Ending
from sfpubsub.spark.ingest.settings import IngestSettings
from sfpubsub.types import Health, ReplayId

# Longest time between looks at the subscription's health and at `stop`, and between checks of
# Spark's JVM, in seconds.
LOOK_EVERY = 0.25
CHECK_EVERY = 1.0

# Seconds that the first source waits for the others. Each job checks four times a second whether
# another source is waiting.
DEFAULT_PATIENCE = 0.4

# Seconds after which a position without events, such as one from a keepalive, is written on its
# own. The service accepts positions for 72 h, so this could be longer, but a restart would then
# receive more events again.
MOVE_AFTER = 60.0

# Number of written positions remembered per source, so that `SharedWrites.move` can ignore them.
# The client stores about one position per second, which is at most two writes old.
_OWN_POSITIONS = 16

# Maximum number of full batches combined into one write, which takes hardly longer than one batch.
_BATCHES_AT_ONCE = 4


@dataclass(frozen=True)
class Receive:
    """Wait for the next response, but not longer than *timeout* seconds."""

    timeout: float


@dataclass(frozen=True)
class Look:
    """Look at the subscription's health, and store what it says."""


@dataclass(frozen=True)
class Flush:
    """Begin to write the collected events."""


@dataclass(frozen=True)
class Finish:
    """Wait for the current write, and ack its events."""


@dataclass(frozen=True)
class Check:
    """Check that the writer can still write."""


@dataclass(frozen=True)
class End:
    """The job is over. All that it has taken is written."""

    ending: Ending


Next: TypeAlias = Receive | Look | Flush | Finish | Check | End


class IngestSchedule:
    """The decisions of one source's job. Not thread-safe; the job serialises.

    Args:
        settings: When a batch is full, and when the job ends.
        now: The present time, on a monotonic clock, in seconds.
    """

    def __init__(self, settings: IngestSettings, now: float) -> None:
        self._settings = settings
        self._active = self._looked = self._checked = now
        self._received = 0  # events taken so far
        self._pending = self._bytes = 0  # events and payload bytes that are collected
        self._opened = 0.0  # when the first of them was taken
        self._is_writing = False
        self._is_quiet = False  # whether the last wait brought no response
        self._is_caught_up = False
        self._ending: Ending | None = None

    # What happens.

    def stop(self) -> None:
        """End the job, once all that was taken is written."""
        self._ending = self._ending or "stopped"

    def room(self, count: int) -> int:
        """Return how many of a response's *count* events to take."""
        most = self._settings.max_events
        return count if most is None else min(count, most - self._received)

    def taken(self, count: int, size: int, now: float) -> None:
        """Note that *count* events were collected; all that are collected have *size* bytes."""
        if not self._pending:
            self._opened = now
        self._pending += count
        self._received += count
        self._bytes = size
        self._active = now
        self._is_caught_up = self._is_quiet = False

    def nothing_received(self) -> None:
        """Note that no response has arrived in time."""
        self._is_quiet = True

    def looked(self, health: Health, now: float) -> None:
        """Note a look at the subscription's health."""
        self._looked = now
        if not self._is_quiet:
            return
        self._is_quiet = False
        if not health.can_receive:
            self._active = now
        # The keepalive may have arrived after events that are yet to be delivered.
        elif health.state == "streaming" and health.caught_up and not health.pending_count:
            self._is_caught_up = True

    def flushed(self) -> None:
        """Note that the collected events are being written."""
        self._is_writing, self._pending, self._bytes = True, 0, 0

    def finished(self, now: float) -> None:
        """Note that the write has succeeded."""
        self._is_writing = False
        self._active = self._checked = now

    def checked(self, now: float) -> None:
        """Note that the writer was checked."""
        self._checked = now

    # What to do.

    def next(self, now: float, *, is_written: bool, flush_requested: bool) -> Next:
        """Return what to do next.

        Args:
            now: The present time.
            is_written: Whether the current write is done.
            flush_requested: Whether other sources wait for this one's events.
        """
        self._ending = self._ending or self._end(now)
        if self._ending is not None:
            if self._pending:
                return Finish() if self._is_writing else Flush()
            return Finish() if self._is_writing else End(self._ending)
        if self._is_writing and is_written:
            return Finish()
        if self._is_quiet or now - self._looked >= LOOK_EVERY:
            return Look()
        if self._is_full():
            # If a write is in progress, no more events are taken until it ends.
            return Finish() if self._is_writing else Flush()
        if self._is_writing:
            return Receive(LOOK_EVERY)
        if self._pending and (flush_requested or now >= self._flush_at):
            return Flush()
        if now - self._checked >= CHECK_EVERY:
            return Check()  # detects an exit of Spark while the job is idle
        return Receive(min(LOOK_EVERY, self._flush_at - now if self._pending else LOOK_EVERY))

    @property
    def _flush_at(self) -> float:
        return self._opened + self._settings.batch_seconds

    def _is_full(self) -> bool:
        settings = self._settings
        return self._pending >= settings.batch_events or self._bytes >= settings.batch_bytes

    def _end(self, now: float) -> Ending | None:
        settings = self._settings
        if settings.max_events is not None and self._received >= settings.max_events:
            return "max-events"
        if self._is_quiet:
            return None  # only the next look tells whether the stream is open
        if self._is_caught_up and settings.until_caught_up:
            return "caught-up"
        # During a write, the stream may only seem idle, because too many events are unacked.
        if settings.idle_timeout is not None and not self._is_writing:
            return "idle" if now - self._active >= settings.idle_timeout else None
        return None


class Batch(Protocol):
    """What a source writes."""

    @property
    def bytes(self) -> int:
        """Number of payload bytes."""
        ...

    def __len__(self) -> int:
        """Return the number of events."""
        ...


B = TypeVar("B", bound=Batch)


@dataclass(eq=False)
class Waiting(Generic[B]):
    """A source's batch that waits to be written."""

    source: str
    batch: B
    since: float


@dataclass(frozen=True)
class Group(Generic[B]):
    """What one write contains."""

    batches: Sequence[Waiting[B]]
    moves: dict[str, ReplayId] = field(default_factory=dict)
    """Positions without events, by source."""


class SharedWrites(Generic[B]):
    """Which batches of several sources are written together. Not thread-safe.

    The first source that has a batch waits briefly for the others. Then its thread, the *leader*,
    writes the batches of all of them, while the next group is collected. Invariant: each source has
    at most one batch in a write or waiting, and never writes a position older than its last write.

    Args:
        sources: Names of the sources.
        max_events: Number of events at which a write no longer waits for other sources. The write
            may include more events, if they are available.
        max_bytes: Payload bytes at which a write no longer waits for other sources and accepts no
            further ones. The events of the last accepted source may exceed this limit.
        patience: Maximum number of seconds that a write waits for other sources.
    """

    def __init__(
        self,
        sources: Iterable[str],
        *,
        max_events: int,
        max_bytes: int,
        patience: float = DEFAULT_PATIENCE,
    ) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._patience = patience
        self._own = {name: deque[ReplayId](maxlen=_OWN_POSITIONS) for name in sources}
        self._running = set(self._own)
        self._waiting: list[Waiting[B]] = []
        self._is_gathering = False
        self._moves: dict[str, ReplayId] = {}
        self._moved_at = 0.0
        self.has_leader: bool = False
        """Whether a thread is gathering or writing."""

    def add(self, source: str, batch: B, now: float) -> Waiting[B]:
        """Add a source's batch."""
        waiting = Waiting(source, batch, now)
        self._waiting.append(waiting)
        return waiting

    def move(self, source: str, position: ReplayId, now: float) -> None:
        """Record a position without events, to be stored with the next write.

        It is ignored if a recent write already stored it, or if events of *source* are waiting or
        being written, because it is older than they are.
        """
        if position in self._own[source] or self._has(source):
            return
        if not self._moves:
            self._moved_at = now
        self._moves[source] = position

    def leave(self, source: str) -> None:
        """Remove a source that has ended, so that no write waits for it."""
        self._running.discard(source)

    def flush_requested(self, source: str) -> bool:
        """Return whether a write is waiting for more sources to join it, including *source*."""
        return self._is_gathering and not self._has(source)

    def next(self, now: float) -> Group[B] | float:
        """Return what the leader writes now, or until when it waits for more sources.

        There must be a batch. The result is written next, and then handed to `wrote` or `failed`.
        """
        until = self._waiting[0].since + self._patience
        names = {each.source for each in self._waiting}
        is_complete = self._running <= names or self._fills(self._waiting, self._max_events)
        self._is_gathering = not is_complete and now < until
        return until if self._is_gathering else self._take(self._group())

    def moves_due(self, now: float, *, after: float = MOVE_AFTER) -> Group[B] | None:
        """Return the positions to write on their own, if they are *after* seconds old."""
        if self.has_leader or not self._moves or now < self._moved_at + after:
            return None
        return self._take([])

    def wrote(self, group: Group[B], positions: Iterable[ReplayId | None]) -> None:
        """Note that a group is written. The position of a batch that was left out is None."""
        for waiting, position in zip(group.batches, positions, strict=True):
            self._waiting.remove(waiting)
            if position is not None:
                self._own[waiting.source].append(position)

    def failed(self, group: Group[B]) -> None:
        """Note that a group could not be written. Its positions are kept for the next write."""
        for waiting in group.batches:
            self._waiting.remove(waiting)
        self._moves = {**group.moves, **self._moves}

    def _take(self, batches: Sequence[Waiting[B]]) -> Group[B]:
        moves, self._moves = self._moves, {}
        for waiting in batches:
            moves.pop(waiting.source, None)
        return Group(batches, moves)

    def _has(self, source: str) -> bool:
        return any(waiting.source == source for waiting in self._waiting)

    def _group(self) -> list[Waiting[B]]:
        """Return the batches for the next write: the oldest one, then others until it is full.

        A full write has `_BATCHES_AT_ONCE` times `max_events` events, or `max_bytes` payload bytes.
        """
        group: list[Waiting[B]] = []
        for waiting in self._waiting:
            if group and self._fills(group, _BATCHES_AT_ONCE * self._max_events):
                break
            group.append(waiting)
        return group

    def _fills(self, group: Sequence[Waiting[B]], events: int) -> bool:
        """Return whether a group has at least *events* events or `max_bytes` payload bytes."""
        return (
            sum(len(waiting.batch) for waiting in group) >= events
            or sum(waiting.batch.bytes for waiting in group) >= self._max_bytes
        )
