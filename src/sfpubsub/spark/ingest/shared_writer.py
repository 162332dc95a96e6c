"""One writer for the jobs of several sources, whose batches are combined into one write.

A commit of a table format takes about a second, however small it is, so twenty sources that each
write their own batches would never keep up. `SharedWrites` decides whose thread writes, when, and
what; this module carries that out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from sfpubsub.errors import DecodeError
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.schedule import (
    DEFAULT_PATIENCE,
    MOVE_AFTER,
    Group,
    SharedWrites,
    Waiting,
)
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.sources import Source
from sfpubsub.types import ReplayId


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


class SharedWriter:
    """Shares one writer among the jobs of several sources. Thread-safe.

    Args:
        writer: Writer of the table; used by one thread at a time.
        max_events: See `SharedWrites`.
        max_bytes: See `SharedWrites`.
        patience: See `SharedWrites`.
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
        self._changed = threading.Condition()  # guards the following attributes
        self._writes: SharedWrites[EventRows] = SharedWrites(
            [source.name for source in writer.sources],
            max_events=max_events,
            max_bytes=max_bytes,
            patience=patience,
        )
        self._results: dict[Waiting[EventRows], WriteResult | BaseException] = {}

    def of(self, source: Source) -> SourceWriter:
        """Return the writer for one source's job."""
        return SourceWriter(self, self._writer, source)

    def write(self, source: str, rows: EventRows) -> WriteResult:
        """Write a source's events together with those of others; wait until they are durable.

        Raises:
            DecodeError: An event cannot be decoded, and the policy is ``fail``.
            WriteError: The write failed; nothing may be acked.
        """
        with self._changed:
            own = self._writes.add(source, rows, time.monotonic())
            self._changed.notify_all()
            self._changed.wait_for(lambda: own in self._results or not self._writes.has_leader)
            leads = own not in self._results
            self._writes.has_leader = self._writes.has_leader or leads
        while leads:  # usually once; more often if earlier batches fill a write
            self._write_next()
            with self._changed:
                leads = self._writes.has_leader = own not in self._results
                self._changed.notify_all()
        with self._changed:
            result = self._results.pop(own)
        if isinstance(result, BaseException):
            raise result
        return result

    def move(self, source: str, position: ReplayId) -> None:
        """Record a position without events; see `SharedWrites.move`."""
        with self._changed:
            self._writes.move(source, position, time.monotonic())

    def flush_due(self) -> None:
        """Write the recorded positions if the oldest is at least `MOVE_AFTER` seconds old.

        Otherwise the call is cheap. If another thread is writing, the positions are written by the
        next call or with the next write.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._flush(MOVE_AFTER, waits=False)

    def flush(self) -> None:
        """Write all recorded positions, after waiting for the write in progress.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._flush(0.0, waits=True)

    def leave(self, source: str) -> None:
        """Remove a source that has ended, and write the recorded positions of all sources.

        Raises:
            WriteError: The positions could not be written. The source is removed anyway.
        """
        with self._changed:
            self._writes.leave(source)
            self._changed.notify_all()
        self.flush()

    def flush_requested(self, source: str) -> bool:
        """Return whether a write is waiting for more sources to join it, including *source*."""
        with self._changed:
            return self._writes.flush_requested(source)

    def _write_next(self) -> None:
        """Wait until a group is complete, write it, and set the result of each batch."""
        with self._changed:
            while not isinstance(group := self._writes.next(time.monotonic()), Group):
                self._changed.wait(max(0.0, group - time.monotonic()))
        results: Sequence[WriteResult | BaseException]
        try:
            parts = [Part(each.source, each.batch) for each in group.batches]
            results = self._writer.write_parts(parts, group.moves)
        except BaseException as error:  # noqa: BLE001  # raised in each source's thread
            results = [error] * len(group.batches)
            with self._changed:
                self._writes.failed(group)
        else:
            with self._changed:
                self._writes.wrote(group, [getattr(each, "position", None) for each in results])
        with self._changed:
            self._results.update(zip(group.batches, results, strict=True))
            self._changed.notify_all()

    def _flush(self, older_than: float, *, waits: bool) -> None:
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: not self._writes.has_leader)
            group = self._writes.moves_due(time.monotonic(), after=older_than)
            if group is None:
                return
            self._writes.has_leader = True
        try:
            self._writer.write_parts([], group.moves)
        except BaseException:
            with self._changed:
                self._writes.failed(group)
            raise
        finally:
            with self._changed:
                self._writes.has_leader = False
                self._changed.notify_all()


class SourceWriter:
    """The writer for one source's job. Use it only in that job's threads.

    `TableReplayStore` can use it to store the source's position.

    Args:
        shared: The shared writer.
        writer: Writer of the table.
        source: The job's source.
    """

    def __init__(self, shared: SharedWriter, writer: PartsWriter, source: Source) -> None:
        self._shared = shared
        self._writer = writer
        self._source = source
        self.sources = (source,)
        """The job's source, as the only element."""

    @property
    def flush_requested(self) -> bool:
        """Whether other sources are about to write and are waiting for this source."""
        return self._shared.flush_requested(self._source.name)

    def write_collected(self, received: EventRows) -> WriteResult:
        """See `EventWriter.write_collected`."""
        return self._shared.write(self._source.name, received)

    def check(self) -> None:
        """Check that Spark's JVM is still alive, and call `SharedWriter.flush_due`.

        Raises:
            WriteError: Spark has exited, or the positions could not be written.
        """
        self._writer.check()
        self._shared.flush_due()

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
        `SharedWrites.move`.
        """
        self._shared.move(source or self._source.name, position)

    def flush(self) -> None:
        """Write the recorded positions of all sources, after waiting for the write in progress.

        Raises:
            WriteError: The positions could not be written. They are kept for the next write.
        """
        self._shared.flush()

    def leave(self) -> None:
        """Leave the group, so that no source waits for this one, and write all recorded positions.

        Raises:
            WriteError: The positions could not be written. The source has left anyway.
        """
        self._shared.leave(self._source.name)
