"""Several sources, one table: what their jobs deliver at about the same time is one write.

A table format takes about a second for a commit, however little is in it, so that twenty sources
with a batch each would never catch up. A source with a batch first waits a moment for the
others; then one of them writes for all, while the next ones gather. Decides nothing about events.

Invariant: of each source one write is under way or waiting, and no position of a source is written
that is older than its last write.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sfpubsub.errors import DecodeError, SfPubSubError
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId

# Seconds that the first one waits for the others. A job looks up four times a second.
DEFAULT_PATIENCE = 0.4

# Seconds after which a position without events, as of a keepalive, is written by itself. The
# service forgets a position after 72 h, so it could wait longer; it is what a restart reads again.
MOVE_AFTER = 60.0

# Positions of a source's writes that may come again as its stored position: the client stores about
# one a second, and a position that it has yet to store is at most two writes old.
_OWN_POSITIONS = 16


# Full batches of several sources that may be one write, if they are there: it takes hardly longer
# than with one of them.
_BATCHES_AT_ONCE = 4


class PartsWriter(Protocol):
    """What is needed of an `EventWriter`."""

    @property
    def sources(self) -> Sequence[Source]:
        """Whose events it takes."""
        ...

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Where each of them resumes."""
        ...

    def write_parts(
        self, parts: Sequence[Part], moves: Mapping[str, ReplayId] | None = None
    ) -> list[WriteResult | DecodeError]:
        """Make the events and positions of several sources durable."""
        ...

    def check(self) -> None:
        """Raise if it can no longer write."""
        ...

    def hear_time(self, process_time: int) -> None:
        """Take note of a time of the service's own clock."""
        ...


@dataclass(eq=False)
class _Waiting:
    """A part that is not written yet."""

    part: Part
    since: float
    result: WriteResult | SfPubSubError | BaseException | None = None


@dataclass
class _Moves:
    """Positions at which there were no events."""

    positions: dict[str, ReplayId] = field(default_factory=dict)
    since: float = 0.0


class Together:
    """One writer for the jobs of several sources. Thread-safe.

    Args:
        writer: Of their table. Used by one thread at a time.
        max_events: Events after which a write waits for nobody; it takes some more that are there.
        max_bytes: Payload bytes of a write; what a source hands over may be beyond.
        patience: Seconds that a write waits for the other sources.
    """

    def __init__(
        self,
        writer: PartsWriter,
        *,
        max_events: int,
        max_bytes: int,
        patience: float = DEFAULT_PATIENCE,
    ) -> None:
        self._writer = writer
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._patience = patience
        self._changed = threading.Condition()  # guards what follows
        self._running = {source.name for source in writer.sources}
        self._waiting: list[_Waiting] = []
        self._is_led = False  # whether a thread is gathering or writing
        self._is_gathering = False
        self._moves = _Moves()
        self._own: dict[str, deque[ReplayId]] = {
            source.name: deque(maxlen=_OWN_POSITIONS) for source in writer.sources
        }

    def member(self, source: Source) -> Member:
        """Return what one source's job writes with."""
        return Member(self, self._writer, source)

    def write(self, source: str, rows: EventRows) -> WriteResult:
        """Write a source's events along with what others have; wait until they are durable.

        Raises:
            DecodeError: One of them cannot be decoded, and the policy is to fail.
            WriteError: Nothing of the write is acked.
        """
        own = _Waiting(Part(source, rows), time.monotonic())
        with self._changed:
            self._waiting.append(own)
            self._changed.notify_all()
            self._changed.wait_for(lambda: own.result is not None or not self._is_led)
            if own.result is None:
                self._is_led = True
        while own.result is None:  # once, unless those before it fill a write
            self._lead()
            with self._changed:
                self._is_led = own.result is None
                self._changed.notify_all()
        if isinstance(own.result, BaseException):
            raise own.result
        return own.result

    def note(self, source: str, position: ReplayId) -> None:
        """Take a position at which there are no events to write: it goes with the next write."""
        with self._changed:
            if position in self._own[source] or self._is_waiting(source):
                return  # of a write that is done, or older than one under way
            if not self._moves.positions:
                self._moves.since = time.monotonic()
            self._moves.positions[source] = position

    def look(self) -> None:
        """Write positions that have waited long enough; cheap if there are none.

        Raises:
            WriteError: They were not written; they are tried again.
        """
        self._flush(older_than=MOVE_AFTER)

    def flush(self) -> None:
        """Write all positions that wait.

        Raises:
            WriteError: They were not written; they are tried again.
        """
        self._flush(older_than=0.0)

    def leave(self, source: str) -> None:
        """Note that a source has ended: nobody waits for it, and its last position is written.

        Raises:
            WriteError: It was not written.
        """
        with self._changed:
            self._running.discard(source)
            self._changed.notify_all()
        self._flush(older_than=0.0)

    def wants(self, source: str) -> bool:
        """Whether a write is being gathered that the source has not joined."""
        with self._changed:
            return self._is_gathering and not self._is_waiting(source)

    def position(self, source: str) -> ReplayId | None:
        """Return where a source resumes."""
        return self._writer.positions.get(source)

    def _lead(self) -> None:
        """Gather, write, and tell everybody what became of it."""
        with self._changed:
            self._is_gathering = True
            rest = self._waiting[0].since + self._patience - time.monotonic()
            self._changed.wait_for(self._is_complete, timeout=max(0.0, rest))
            self._is_gathering = False
            group = self._group()
            moves, self._moves = self._moves, _Moves()
        for waiting in group:
            moves.positions.pop(waiting.part.source, None)
        results: Sequence[WriteResult | BaseException]
        try:
            results = self._writer.write_parts([w.part for w in group], moves.positions)
        except BaseException as error:  # noqa: BLE001  # raised by each of them
            results = [error] * len(group)
            self._restore(moves)
        with self._changed:
            for waiting, result in zip(group, results, strict=True):
                waiting.result = result
                self._waiting.remove(waiting)
                if isinstance(result, WriteResult) and result.position is not None:
                    self._own[waiting.part.source].append(result.position)
            self._changed.notify_all()

    def _flush(self, *, older_than: float) -> None:
        with self._changed:
            if not older_than:
                self._changed.wait_for(lambda: not self._is_led)
            old = self._moves.since + older_than <= time.monotonic()
            if not self._moves.positions or not old or self._is_led:
                return
            self._is_led = True
            moves, self._moves = self._moves, _Moves()
        try:
            self._writer.write_parts([], moves.positions)
        except BaseException:
            self._restore(moves)
            raise
        finally:
            with self._changed:
                self._is_led = False
                self._changed.notify_all()

    def _restore(self, moves: _Moves) -> None:
        with self._changed:
            since = min(moves.since, self._moves.since or moves.since)
            self._moves = _Moves({**moves.positions, **self._moves.positions}, since)

    def _is_waiting(self, source: str) -> bool:
        return any(waiting.part.source == source for waiting in self._waiting)

    def _is_complete(self) -> bool:
        """Whether nobody is left to wait for, or there is enough for a write."""
        if self._running <= {waiting.part.source for waiting in self._waiting}:
            return True
        return self._has(self._waiting, self._max_events)

    def _group(self) -> list[_Waiting]:
        """Return those that came first, up to a full write; one at least."""
        group: list[_Waiting] = []
        for waiting in self._waiting:
            if group and self._has(group, _BATCHES_AT_ONCE * self._max_events):
                break
            group.append(waiting)
        return group

    def _has(self, group: Collection[_Waiting], events: int) -> bool:
        """Whether they are so many, or all that one write can have."""
        return (
            sum(len(waiting.part.rows) for waiting in group) >= events
            or sum(waiting.part.rows.bytes for waiting in group) >= self._max_bytes
        )


class Member:
    """What the job of one source writes with. For that job's threads.

    Also keeps the source's position, as `TableReplayStore` asks for it.

    Args:
        together: The others.
        writer: Of the table.
        source: Whose events come.
    """

    def __init__(self, together: Together, writer: PartsWriter, source: Source) -> None:
        self._together = together
        self._writer = writer
        self._source = source
        self.sources = (source,)
        """Itself alone."""

    @property
    def is_wanted(self) -> bool:
        """Whether others write, and wait for what there is by now."""
        return self._together.wants(self._source.name)

    def write_read(self, received: EventRows) -> WriteResult:
        """See `EventWriter.write_read`."""
        return self._together.write(self._source.name, received)

    def check(self) -> None:
        """Make sure that Spark can still write; write what has waited long enough.

        Raises:
            WriteError: It cannot, or it was not.
        """
        self._writer.check()
        self._together.look()

    def hear_time(self, process_time: int) -> None:
        """See `EventWriter.hear_time`."""
        self._writer.hear_time(process_time)

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Where the source resumes."""
        return self._writer.positions

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Keep a position at which there are no events; it is durable after a while."""
        self._together.note(source or self._source.name, position)

    def flush(self) -> None:
        """Make a position durable at once that would wait for a while.

        Raises:
            WriteError: It was not written; it is tried again.
        """
        self._together.flush()

    def leave(self) -> None:
        """End: nobody waits for this source any more.

        Raises:
            WriteError: Its last position was not written.
        """
        self._together.leave(self._source.name)
