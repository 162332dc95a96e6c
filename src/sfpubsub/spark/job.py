"""The ingest loop: take events, write them, ack them.

Decides when a batch is full and when the job is over. An event is acked only after its write has
returned; whatever ends the loop otherwise acks nothing, and the events come again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol, TypeAlias

from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.spark.tables import Received
from sfpubsub.spark.writer import WriteResult
from sfpubsub.types import Gap, Health, ReplayId

# Events of one write. Spark costs about 0.1 s a write, which 10,000 events spread thin (measured:
# 10k events 0.2 s, 100k events 1 s), and a killed job receives no more than these again.
DEFAULT_BATCH_EVENTS = 10_000

# Seconds that the first event of a batch waits for the others.
DEFAULT_BATCH_SECONDS = 10.0

# Payload bytes of one write. They travel to an executor within one task, with their JSON of about
# twice the size, and Spark refuses 128 MiB (spark.rpc.message.maxSize).
MAX_BATCH_BYTES = 32 * 1024 * 1024

# Seconds without an event after which ``once`` ends. Longer than the 20 s that gRPC gives a
# connection to be made, so that an endpoint out of reach shows itself and is not taken for idle.
DEFAULT_IDLE_TIMEOUT = 30.0

# Seconds: the longest sleep without a look at `IngestJob.stop` and at Spark's JVM.
_POLL = 0.25
_CHECK_EVERY = 1.0

# Subscription states (protocol/states.py) in which nothing can arrive, however much there is.
_NOT_LISTENING = frozenset({"new", "waiting", "renewing", "paused"})
_ENDED = frozenset({"draining", "closing", "closed"})

Ending: TypeAlias = Literal["idle", "max-events", "stopped"]


class Subscription(Protocol):
    """What the loop needs of a subscription with manual acks."""

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next response's events, or None after *timeout* seconds."""
        ...

    def health(self) -> Health:
        """Return what it is doing."""
        ...


class Writer(Protocol):
    """What the loop needs of an `EventWriter`."""

    def write(self, batches: list[Received]) -> WriteResult:
        """Make the events durable."""
        ...

    def check(self) -> None:
        """Raise if it can no longer write."""
        ...


@dataclass(frozen=True)
class Progress:
    """What a job has done so far. Counts are of this run."""

    received: int = 0
    """Events taken from the subscription and done with: `rows`, `duplicates` and `set_aside`."""
    rows: int = 0
    """Events written."""
    duplicates: int = 0
    """Events that the table had already."""
    undecodable: int = 0
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    batches: int = 0
    """Batches published."""
    position: ReplayId | None = None
    """The last event's position that was made durable."""

    def after(self, result: WriteResult, position: ReplayId | None) -> Progress:
        """Return the progress with one more write."""
        return Progress(
            received=self.received + result.rows + result.duplicates + result.set_aside,
            rows=self.rows + result.rows,
            duplicates=self.duplicates + result.duplicates,
            undecodable=self.undecodable + result.undecodable,
            set_aside=self.set_aside + result.set_aside,
            batches=self.batches + (result.batch_id is not None),
            position=position or self.position,
        )


@dataclass(frozen=True)
class Summary:
    """How a job ended."""

    progress: Progress
    ending: Ending
    gaps: tuple[Gap, ...]
    """Every position that the subscription gave up: events may be missing there."""


class _Taken:
    """The first *count* events of a batch."""

    def __init__(self, batch: EventBatch, count: int) -> None:
        self._batch = batch
        self._count = count
        self.received_at = batch.received_at

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        return islice(self._batch, self._count)

    @property
    def bytes(self) -> int:
        return sum(len(raw.payload) for raw in self._batch.raw_events[: self._count])

    @property
    def position(self) -> ReplayId:
        return self._batch.raw_events[self._count - 1].replay_id

    def ack(self) -> None:
        first = self._batch.first_seq
        self._batch.ack_range(first, first + self._count - 1)


class IngestJob:
    """Moves events from one subscription to one table. Not thread-safe, apart from `stop`.

    Args:
        subscription: Opened with ``ack="manual"``. Left open: leaving its own block drains it.
        writer: The table's writer.
        batch_events: Events after which a batch is written.
        batch_seconds: Seconds after a batch's first event after which it is written.
        max_events: End after exactly this many events received, duplicates included; the rest of a
            response is not acked and comes again.
        idle_timeout: End when the open stream has brought nothing for this many seconds; None to
            go on for ever.
        on_progress: Called after each write, in the thread of `run`.
        clock: Seconds; steady.
    """

    def __init__(
        self,
        subscription: Subscription,
        writer: Writer,
        *,
        batch_events: int = DEFAULT_BATCH_EVENTS,
        batch_seconds: float = DEFAULT_BATCH_SECONDS,
        max_events: int | None = None,
        idle_timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription
        self._writer = writer
        self._batch_events = batch_events
        self._batch_seconds = batch_seconds
        self._max_events = max_events
        self._idle_timeout = idle_timeout
        self._on_progress = on_progress
        self._clock = clock
        self._stopping = False
        self._pending: list[_Taken] = []
        self._pending_events = 0
        self._pending_bytes = 0
        self._opened = 0.0
        self._active = 0.0
        self._checked = 0.0
        self._progress = Progress()

    def stop(self) -> None:
        """End `run` soon: what was received is written and acked first. Safe in signal handlers."""
        self._stopping = True

    def run(self) -> Summary:
        """Run until stopped, idle, or done.

        Raises:
            WriteError: A batch was not written, or Spark has ended. Nothing of it was acked.
            SfPubSubError: The subscription failed. What was written before is acked.
        """
        self._active = self._checked = self._clock()
        while True:
            ending = self._ending()
            if ending is not None:
                self._flush()
                return Summary(self._progress, ending, self._subscription.health().gaps)
            batch = self._subscription.next_batch(timeout=self._patience())
            now = self._clock()
            if batch is not None:
                self._take(batch, now)
            else:
                self._look_at_state(now)
            if self._is_full(now):
                self._flush()
            elif now - self._checked >= _CHECK_EVERY:
                self._writer.check()  # an idle job must not outlive its Spark unseen
                self._checked = now

    def _look_at_state(self, now: float) -> None:
        state = self._subscription.health().state
        if state in _NOT_LISTENING:
            self._active = now
        elif state in _ENDED:  # by somebody else; nothing will come any more
            self._stopping = True

    def _ending(self) -> Ending | None:
        received = self._progress.received + self._pending_events
        if self._max_events is not None and received >= self._max_events:
            return "max-events"
        if self._stopping:
            return "stopped"
        idle = self._clock() - self._active
        if self._idle_timeout is not None and idle >= self._idle_timeout:
            return "idle"
        return None

    def _patience(self) -> float:
        if not self._pending:
            return _POLL
        return min(_POLL, max(0.0, self._opened + self._batch_seconds - self._clock()))

    def _take(self, batch: EventBatch, now: float) -> None:
        count = len(batch)
        if self._max_events is not None:
            count = min(count, self._max_events - self._progress.received - self._pending_events)
        if not self._pending:
            self._opened = now
        taken = _Taken(batch, count)
        self._pending.append(taken)
        self._pending_events += count
        self._pending_bytes += taken.bytes
        self._active = now

    def _is_full(self, now: float) -> bool:
        return bool(self._pending) and (
            self._pending_events >= self._batch_events
            or self._pending_bytes >= MAX_BATCH_BYTES
            or now - self._opened >= self._batch_seconds
        )

    def _flush(self) -> None:
        """Write, then ack; the order of these two lines is what the package is for."""
        if not self._pending:
            return
        result = self._writer.write(list(self._pending))
        # Backwards: the acked prefix, and with it the position, moves once and to the end.
        for taken in reversed(self._pending):
            taken.ack()
        self._progress = self._progress.after(result, self._pending[-1].position)
        self._pending = []
        self._pending_events = self._pending_bytes = 0
        self._active = self._checked = self._clock()
        if self._on_progress is not None:
            self._on_progress(self._progress)
