"""Combine batches that several sources deliver at about the same time into one write.

A commit of a table format takes about a second, however small it is, so twenty sources that each
write their own batches would never keep up. The first source that has a batch waits briefly for the
others. Then its thread writes the batches of all of them, while the next group is collected.

Invariant: each source has at most one write in progress or waiting, and never writes a position
older than its last write.
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

# Seconds that the first source waits for the others. Each job checks four times a second whether
# another source is waiting.
DEFAULT_PATIENCE = 0.4

# Seconds after which a position without events, such as one from a keepalive, is written on its
# own. The service accepts positions for 72 h, so this could be longer, but a restart would then
# receive more events again.
MOVE_AFTER = 60.0

# Number of written positions remembered per source, so that `SharedWriter.note` can ignore them.
# The client stores about one position per second, which is at most two writes old.
_OWN_POSITIONS = 16

# Maximum number of full batches combined into one write, which takes hardly longer than one batch.
_BATCHES_AT_ONCE = 4


class PartsWriter(Protocol):
    """The part of an `EventWriter` that `SharedWriter` needs."""

    @property
    def sources(self) -> Sequence[Source]:
        """Sources whose events the writer accepts."""
        ...

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Stored positions by source name; a source without a position is omitted."""
        ...

    def write_parts(
        self, parts: Sequence[Part], moves: Mapping[str, ReplayId] | None = None
    ) -> list[WriteResult | DecodeError]:
        """Write the parts durably; return the result of each. See `EventWriter.write_parts`."""
        ...

    def check(self) -> None:
        """Raise WriteError if the writer can no longer write."""
        ...

    def record_time(self, process_time: int) -> None:
        """Record the service's time, in milliseconds since the epoch."""
        ...


@dataclass(eq=False)
class _Waiting:
    """A source's `screening.Part` that is waiting to be written and, once written, its result."""

    part: Part
    since: float
    result: WriteResult | SfPubSubError | BaseException | None = None


@dataclass
class _Moves:
    """Positions recorded by `SharedWriter.note`, which the next write stores."""

    positions: dict[str, ReplayId] = field(default_factory=dict)
    since: float = 0.0


class SharedWriter:
    """Shares one writer among the jobs of several sources. Thread-safe.

    Args:
        writer: Writer of the table; used by one thread at a time.
        max_events: Number of events at which a write no longer waits for other sources. The write
            may include more events, if they are available.
        max_bytes: Payload bytes at which a write no longer waits for other sources and accepts no
            further ones. The events of the last accepted source may exceed this limit.
        patience: Maximum number of seconds that a write waits for other sources.
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
        self._changed = threading.Condition()  # guards the following attributes
        self._running = {source.name for source in writer.sources}
        self._waiting: list[_Waiting] = []
        self._is_led = False  # whether a thread is gathering or writing
        self._is_gathering = False
        self._moves = _Moves()
        self._own: dict[str, deque[ReplayId]] = {
            source.name: deque(maxlen=_OWN_POSITIONS) for source in writer.sources
        }

    def member(self, source: Source) -> Member:
        """Return the writer for one source's job."""
        return Member(self, self._writer, source)

    def write(self, source: str, rows: EventRows) -> WriteResult:
        """Write a source's events together with those of others; wait until they are durable.

        Raises:
            DecodeError: An event cannot be decoded, and the policy is ``fail``.
            WriteError: The write failed; nothing may be acked.
        """
        own = _Waiting(Part(source, rows), time.monotonic())
        with self._changed:
            self._waiting.append(own)
            self._changed.notify_all()
            self._changed.wait_for(lambda: own.result is not None or not self._is_led)
            if own.result is None:
                self._is_led = True
        while own.result is None:  # usually once; more often if earlier parts fill a write
            self._lead()
            with self._changed:
                self._is_led = own.result is None
                self._changed.notify_all()
        if isinstance(own.result, BaseException):
            raise own.result
        return own.result

    def note(self, source: str, position: ReplayId) -> None:
        """Record a position, such as that of a keepalive, to be stored with the next write.

        The position is ignored if a recent write already stored it, or if events of *source* are
        waiting or being written.
        """
        with self._changed:
            if position in self._own[source] or self._is_waiting(source):
                return  # already written, or older than the write in progress
            if not self._moves.positions:
                self._moves.since = time.monotonic()
            self._moves.positions[source] = position

    def flush_due(self) -> None:
        """Write the recorded positions if the oldest is at least `MOVE_AFTER` seconds old.

        Otherwise the call is cheap. If another thread is writing, the positions are written by the
        next call or with the next write.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._flush(older_than=MOVE_AFTER)

    def flush(self) -> None:
        """Write all recorded positions, after waiting for the write in progress.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._flush(older_than=0.0)

    def leave(self, source: str) -> None:
        """Remove a source that has ended, and write the recorded positions of all sources.

        Raises:
            WriteError: The positions could not be written. The source is removed anyway.
        """
        with self._changed:
            self._running.discard(source)
            self._changed.notify_all()
        self._flush(older_than=0.0)

    def is_awaited(self, source: str) -> bool:
        """Return whether a write is waiting for more sources to join it, including *source*."""
        with self._changed:
            return self._is_gathering and not self._is_waiting(source)

    def position(self, source: str) -> ReplayId | None:
        """Return the stored position of a source; None if it has none."""
        return self._writer.positions.get(source)

    def _lead(self) -> None:
        """Collect a group of parts, write them together, and set the result of each."""
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
        except BaseException as error:  # noqa: BLE001  # raised in each member's thread
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
        """Return whether the write is large enough, or has a part from every running source."""
        if self._running <= {waiting.part.source for waiting in self._waiting}:
            return True
        return self._has(self._waiting, self._max_events)

    def _group(self) -> list[_Waiting]:
        """Return the parts for the next write: the oldest one, then others until the write is full.

        A full write has `_BATCHES_AT_ONCE` times `max_events` events, or `max_bytes` payload bytes.
        """
        group: list[_Waiting] = []
        for waiting in self._waiting:
            if group and self._has(group, _BATCHES_AT_ONCE * self._max_events):
                break
            group.append(waiting)
        return group

    def _has(self, group: Collection[_Waiting], events: int) -> bool:
        """Return whether a group has at least *events* events or `max_bytes` payload bytes."""
        return (
            sum(len(waiting.part.rows) for waiting in group) >= events
            or sum(waiting.part.rows.bytes for waiting in group) >= self._max_bytes
        )


class Member:
    """The writer for one source's job. Use it only in that job's threads.

    `TableReplayStore` can use it to store the source's position.

    Args:
        together: The shared writer.
        writer: Writer of the table.
        source: The job's source.
    """

    def __init__(self, together: SharedWriter, writer: PartsWriter, source: Source) -> None:
        self._together = together
        self._writer = writer
        self._source = source
        self.sources = (source,)
        """The job's source, as the only element."""

    @property
    def is_wanted(self) -> bool:
        """Whether other sources are about to write and are waiting for this source."""
        return self._together.is_awaited(self._source.name)

    def write_read(self, received: EventRows) -> WriteResult:
        """See `EventWriter.write_read`."""
        return self._together.write(self._source.name, received)

    def check(self) -> None:
        """Check that Spark's JVM is still alive, and call `SharedWriter.flush_due`.

        Raises:
            WriteError: Spark has exited, or the positions could not be written.
        """
        self._writer.check()
        self._together.flush_due()

    def record_time(self, process_time: int) -> None:
        """See `EventWriter.record_time`."""
        self._writer.record_time(process_time)

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Stored positions by source name; a source without a position is omitted."""
        return self._writer.positions

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Record a position, such as that of a keepalive.

        It is stored within about `MOVE_AFTER` seconds, unless it is ignored: see
        `SharedWriter.note`.
        """
        self._together.note(source or self._source.name, position)

    def flush(self) -> None:
        """Write the recorded positions of all sources, after waiting for the write in progress.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._together.flush()

    def leave(self) -> None:
        """Leave the group, so that no source waits for this one, and write all recorded positions.

        Raises:
            WriteError: The positions could not be written. The source has left anyway.
        """
        self._together.leave(self._source.name)
