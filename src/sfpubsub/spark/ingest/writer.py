"""Writes batches of events to a raw table, each event once.

Responsible for what is new and for the order of the steps; the table's format does the transaction
(`sfpubsub.spark.raw`). Acks nothing: the caller does, after `EventWriter.write` has returned.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.errors import DecodeError, LocalProtocolError, WriteError
from sfpubsub.spark.ingest.dedupe import (
    DEFAULT_WINDOW,
    DEFAULT_WINDOW_KEYS,
    BoundedWindow,
    drop_repeats,
    drop_stored,
)
from sfpubsub.spark.ingest.undecodable import OnUndecodable, Undecodable
from sfpubsub.spark.raw.destination import Destination, Source, claim_table, make_table_directory
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.rows import EventRows, TimedEvents
from sfpubsub.spark.raw.schema import check_rows, joined_keys, renumbered
from sfpubsub.spark.raw.table import RawTable
from sfpubsub.spark.runtime.session import jvm_of
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.types import ReplayId

# Seconds that an event may say to be younger than it was when it arrived: publishers set its time
# themselves, with their own clocks. A look-up in the table begins so much earlier.
_CLOCK_MARGIN = 24 * 3600.0


@dataclass(frozen=True)
class WriteResult:
    """What became of one write. All of it is durable."""

    rows: int
    """Events written."""
    duplicates: int
    """Events dropped because the table has them, or because they came twice."""
    undecodable: int
    """Events that could not be decoded: rows without JSON, or `set_aside`."""
    batch_id: str | None
    """The table's name for the batch; None if nothing was left to write."""
    first_seq: int | None
    """``ingest_seq`` of the first row."""
    position: ReplayId | None
    """Where the topic or channel resumes; None with a managed subscription."""
    set_aside: int = 0
    """Events that have no row because they could not be decoded: quarantined or skipped."""
    repeated: bool = False
    """Whether nothing was looked at, because the table has a batch of this name already."""


@dataclass(frozen=True)
class Part:
    """What one source contributes to a write."""

    source: str
    """Its name."""
    rows: EventRows
    """Not empty."""


@dataclass(frozen=True)
class _Screened:
    """What is to be written of a part."""

    rows: pa.Table
    result: WriteResult
    """Without a batch."""


class EventWriter:
    """The one writer of one raw table. A context manager; one thread at a time may write.

    Making it takes the table over: for a directory of this machine by a lease, for table formats by
    a transaction that ends every older writer. It removes what a dead writer left, and reads the
    keys of the window from the table.

    Args:
        spark: A classic session (not Spark Connect), on this machine or with a shared file system;
            for table formats with their jars (`spark_session`).
        path: The table's directory, or for table formats a URL, or for iceberg the name of a
            catalog's table; made if it is missing.
        format: ``parquet``, ``delta`` or ``iceberg``.
        subscription: Name or id of the managed subscription whose events come, or several of them.
        topic: The topic, or several; the table keeps the position of each (`TableReplayStore`).
        channel: The channel of the Streaming API, or several; as with topics.
        window: Seconds for which a key is kept in memory.
        window_keys: Keys that may be kept, at most 40 bytes each. With more of them in *window*
            each batch is looked up in the table instead, which takes longer.
        staging: With parquet: a directory to keep staging and sidecars in, on the table's file
            system and not in the table; by default where they were before, or beside the table.
        clock: Seconds since 1970 UTC; decides on the window and on the hour of a batch.
        on_undecodable: What becomes of an event that cannot be decoded: ``keep``: its row has no
            JSON; ``quarantine``: it is put into *quarantine* and has no row; ``skip``: it is
            counted, logged, and has no row; ``fail``: `write` raises.
        quarantine: Where such events are kept.

    Raises:
        ConfigurationError: The destination is of no use or another's, or another writer lives; or
            Spark lacks the format's jars; or *on_undecodable* is no policy, or does not go with
            *quarantine*.
        WriteError: The table cannot be read, or Spark has ended.
    """

    is_wanted = False
    """For an `IngestJob`: nobody else writes with this writer."""

    def __init__(
        self,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        format: str = "parquet",  # noqa: A002  # Spark's own word
        subscription: str | Iterable[str] | None = None,
        topic: str | Iterable[str] | None = None,
        channel: str | Iterable[str] | None = None,
        window: float = DEFAULT_WINDOW,
        window_keys: int = DEFAULT_WINDOW_KEYS,
        staging: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
        on_undecodable: OnUndecodable = "keep",
        quarantine: Quarantine | None = None,
    ) -> None:
        place = Destination.parse(path, format, staging)
        self.sources = Source.several(subscription, topic, channel)
        """Whose events it takes."""
        self._source_of = {source.name: source for source in self.sources}
        self._undecodable = Undecodable(on_undecodable, quarantine)
        self.destination = place
        self._trusted = False  # whether window, numbers and position are those of the table
        self._is_closed = False
        self._busy = threading.Lock()  # held while the table may change
        self._clock = clock
        self._window = BoundedWindow(
            window, window_keys, lambda keys, since: self._table.stored(keys, since, None)
        )
        self._jvm = jvm_of(spark)
        self._lease: Lease | None = None
        place.check(self.sources)  # before anything of ours is in it
        with ExitStack() as unless_done:
            if place.local is not None:
                make_table_directory(place.local)
                self._lease = Lease.acquire(place.local, self._jvm.pid)
                unless_done.callback(self._lease.release)
            self._table = _open_table(spark, place, self.sources)
            self._latest = 0.0
            self._recover()
            unless_done.pop_all()

    def write(self, batches: TimedEvents | Iterable[TimedEvents]) -> WriteResult:
        """Make the events of *batches* durable, each once.

        1. Decode the events.
        2. Drop those whose key came before in these batches or is in the window.
        3. Ask the table for those whose own time is older than the window, and drop what it has.
           Those that cannot be decoded have no time, so it is asked for them as well.
        4. Put those that cannot be decoded into the quarantine, which makes them durable. They
           have no row. (By default there is no quarantine, and their row has no JSON.)
        5. Hand rows and positions to the table, which publishes them at once and returns when they
           are durable. With no rows left, the positions alone: a redelivered tail is done too.
        6. Remember the keys. Only then return, and only then may the caller ack.

        If a step fails, nothing may be acked, and the next write begins by reading window, numbers
        and position from the table again: it alone knows whether the batch is in it.

        Args:
            batches: One or more, in order of arrival, of this table's subscription.

        Raises:
            WriteError: Nothing is acked; the same batches may be written again.
            DecodeError: With ``fail``: an event cannot be decoded. Nothing is acked.
            LocalProtocolError: The writer was closed, or is writing in another thread.
        """
        rows = EventRows()
        for batch in [batches] if isinstance(batches, TimedEvents) else batches:
            rows.extend(batch, batch.received_at)
        return self.write_read(rows)

    def write_read(self, received: EventRows, source: str | None = None) -> WriteResult:
        """Do what `write` does after its first step, which may be done elsewhere meanwhile.

        Args:
            received: Events of one of this table's sources.
            source: Its name; may be left out if there is but one.

        Raises:
            WriteError: Nothing is acked; the same events may be written again.
            DecodeError: With ``fail``: an event cannot be decoded. Nothing is acked.
            LocalProtocolError: The writer was closed, or is writing in another thread, or it is not
                known whose the events are.
        """
        (result,) = self.write_parts([Part(self._name(source), received)])
        if isinstance(result, DecodeError):
            raise result
        return result

    def write_parts(
        self, parts: Sequence[Part], moves: Mapping[str, ReplayId] | None = None
    ) -> list[WriteResult | DecodeError]:
        """Make the events of several sources durable, as one batch with all positions.

        Their order in the table is that of the parts, and within a part that of arrival.

        Args:
            parts: At most one of each source.
            moves: Positions, by source, at which there are no events to write.

        Returns:
            What became of each part. One with a DecodeError is left out, position and all.

        Raises:
            WriteError: Nothing is acked; the same events may be written again.
            LocalProtocolError: The writer was closed, or is writing in another thread, or has no
                such source.
        """
        positions = {self._keeping(name): place for name, place in (moves or {}).items()}
        for part in parts:
            self._name(part.source)
        with self._turn():
            now = self._now()
            screened = self._screened(parts, now)
            tables = [found.rows for found in screened if isinstance(found, _Screened)]
            for part, found in zip(parts, screened, strict=True):
                if isinstance(found, _Screened) and found.result.position is not None:
                    positions[part.source] = found.result.position
            rows = pa.concat_tables(tables) if tables else None
            first_seq, batch_id = self._table.next_seq, None
            if rows is not None and len(rows):
                batch_id = self._append(rows, positions, now)
            else:
                self._move(positions)
        results: list[WriteResult | DecodeError] = []
        for found in screened:
            if not isinstance(found, _Screened):
                results.append(found)
            elif found.result.rows:
                results.append(replace(found.result, batch_id=batch_id, first_seq=first_seq))
                first_seq += found.result.rows
            else:
                results.append(found.result)
        return results

    def write_rows(self, rows: pa.Table, *, name: str | None = None) -> WriteResult:
        """Make rows of a raw table durable, each once; the table's position stays as it is.

        They are new or not by their ``dedupe_key``, as in `write`, and get an ``ingest_seq`` of
        their own. What they say otherwise is not looked at.

        Args:
            rows: With the columns of `sfpubsub.spark.raw.schema.SCHEMA`, in the order to keep;
                ``ingest_seq`` may be missing. Of any subscription.
            name: What the caller calls these rows. It is part of the transaction, and if one of
                the table's last 32 batches has it, nothing is done: they are in the table.

        Raises:
            LocalProtocolError: Columns are missing or of other types; or the writer was closed.
            WriteError: Whether the rows are in the table is unknown; write them again.
        """
        rows = check_rows(rows)
        with self._turn():
            if name is not None and name in self._table.names:
                return WriteResult(0, 0, 0, None, None, self.position, repeated=True)
            now = self._now()
            new = self._new(rows, now)
            first_seq = self._table.next_seq
            batch_id = self._append(_taken(rows, new), {}, now, name) if new else None
        return WriteResult(
            rows=len(new),
            duplicates=len(rows) - len(new),
            undecodable=0,
            batch_id=batch_id,
            first_seq=first_seq if new else None,
            position=self.position,
        )

    @property
    def table_sources(self) -> tuple[Source, ...]:
        """Whose table it is: all whose events it was ever to take, this writer's included."""
        return self._table.sources

    @property
    def position(self) -> ReplayId | None:
        """Where the only topic or channel resumes: the last durable position.

        None if there is none, or if there are other sources than one.
        """
        return self.positions.get(self.sources[0].name) if len(self.sources) == 1 else None

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Where each topic and channel resumes, by name, as far as it has a durable position."""
        return self._table.positions

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Make a position durable without events, as after a keepalive.

        Args:
            position: The position.
            source: Name of the topic or channel; may be left out if there is but one source.

        Raises:
            LocalProtocolError: It is a managed subscription, whose position is the service's. Or
                the writer was closed.
            WriteError: It was not made durable.
        """
        name = self._keeping(self._name(source))
        with self._turn():
            self._table.move({name: position})

    def check(self) -> None:
        """Make sure that Spark can still write. Cheap.

        Raises:
            WriteError: Its JVM has ended.
        """
        if not self._jvm.alive():
            raise WriteError(f"spark's JVM (pid {self._jvm.pid}) has ended")

    def close(self) -> None:
        """Give the table up; nothing can be written after that. Does nothing the second time.

        If a write is under way in another thread the lease stays, and ends with this process.
        """
        self._is_closed = True
        # Kept from now on: a write that was about to begin finds it taken.
        if self._lease is not None and self._busy.acquire(blocking=False):
            self._lease.release()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _new(self, rows: pa.Table, now: float) -> list[int]:
        """Return the places of the rows whose keys are new."""
        self._window.expire(now)
        keys = rows["dedupe_key"].to_pylist()
        times = rows["event_time"].cast(pa.int64()).to_pylist()
        first = drop_repeats(keys, self._window)
        unknown = self._unknown([keys[i] for i in first], [times[i] for i in first], now)
        return [first[i] for i in unknown]

    def _screened(self, parts: Sequence[Part], now: float) -> list[_Screened | DecodeError]:
        """Return what is to be written of each part, or why it is left out."""
        found: dict[int, _Screened | DecodeError] = {}
        while True:
            # Together, since a look-up in the table costs as much for all as for one. Without those
            # left out: what they have in common with others is not written by them.
            going = [n for n in range(len(parts)) if not isinstance(found.get(n), DecodeError)]
            tables = [parts[n].rows.table() for n in going]
            if not going:
                break
            new = self._new(pa.concat_tables(tables), now)
            start = taken = 0
            for n, table in zip(going, tables, strict=True):
                end = taken
                while end < len(new) and new[end] < start + len(table):
                    end += 1
                found[n] = self._part(parts[n], table, [i - start for i in new[taken:end]])
                start, taken = start + len(table), end
            if not any(isinstance(found[n], DecodeError) for n in going):
                break
        return [found[n] for n in range(len(parts))]

    def _part(self, part: Part, table: pa.Table, new: list[int]) -> _Screened | DecodeError:
        """Apply the policy to those of the new events of a part that could not be decoded."""
        news = set(new) if part.rows.undecodable else set()
        bad = {index: row for index, row in part.rows.undecodable if index in news}
        kept = new
        try:
            if bad and not self._undecodable.keeps(list(bad.values())):
                kept = [index for index in new if index not in bad]
        except DecodeError as error:
            return error
        keeps_position = self._source_of[part.source].keeps_position
        result = WriteResult(
            rows=len(kept),
            duplicates=len(table) - len(new),
            undecodable=len(bad),
            batch_id=None,
            first_seq=None,
            position=part.rows.position if keeps_position else None,
            set_aside=len(new) - len(kept),
        )
        return _Screened(_taken(table, kept), result)

    def _append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """Hand rows to the table, and remember their keys."""
        rows = renumbered(rows.combine_chunks(), self._table.next_seq)
        batch_id = self._table.append(rows, positions, now, name)
        self._window.add(joined_keys(rows["dedupe_key"]), now)
        return batch_id

    def _move(self, positions: Mapping[str, ReplayId]) -> None:
        """Make those positions durable that are not, if there are any."""
        known = self._table.positions
        moved = {name: place for name, place in positions.items() if known.get(name) != place}
        if moved:
            self._table.move(moved)

    def _name(self, source: str | None) -> str:
        if source is None and len(self.sources) == 1:
            return self.sources[0].name
        if source is None or source not in self._source_of:
            names = ", ".join(self._source_of)
            raise LocalProtocolError(
                f"say of which of its sources they are: {self.destination} takes events of {names}"
                + (f", not of {source}" if source else "")
            )
        return source

    def _keeping(self, name: str) -> str:
        if not self._source_of[self._name(name)].keeps_position:
            raise LocalProtocolError("the position of a managed subscription is the service's")
        return name

    def _unknown(self, keys: list[bytes], times: list[int | None], now: float) -> list[int]:
        """Return the indices of those of *keys*, new to the window, that the table lacks."""
        oldest = now - self._window.length
        when = dict(zip(keys, times, strict=True))

        def stored(suspects: Collection[bytes]) -> set[bytes]:
            known = [time for key in suspects if (time := when[key]) is not None]
            # One of unknown time may have been received at any time. One that says to be from
            # year 1, as an unset date does, was not written before 1970.
            first = None
            if len(known) == len(suspects):
                first = max(0.0, min(known) / 1_000_000 - _CLOCK_MARGIN)
            return self._table.stored(suspects, first, oldest)

        return drop_stored(keys, times, oldest=oldest, stored=stored)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the table for one write, and know it before."""
        if self._is_closed:  # the next writer relies on that: what this one knows is of the past
            raise LocalProtocolError(
                f"the writer of {self.destination} was closed, and others may write by now: make "
                f"another one"
            )
        if not self._busy.acquire(blocking=False):
            raise LocalProtocolError(
                f"the writer of {self.destination} is writing in another thread: one at a time"
            )
        try:
            if not self._trusted:
                self._recover()
            self._trusted = False  # until all is done
            yield
            self._trusted = True
        finally:
            self._busy.release()

    def _recover(self) -> None:
        self._trusted = False
        self._table.recover()
        self._window.clear()
        for written_at, keys in self._table.keys_since(self._now() - self._window.length):
            self._window.add(keys, written_at)
            if self._window.in_table:
                break
        self._trusted = True

    def _now(self) -> float:
        """Read the clock, which must not go back: a batch's hour says where its keys are found."""
        self._latest = max(self._latest, self._table.newest_time, self._clock())
        return self._latest


def _taken(rows: pa.Table, kept: list[int]) -> pa.Table:
    return rows if len(kept) == len(rows) else rows.take(pa.array(kept, pa.int64()))


def _open_table(spark: SparkSession, place: Destination, sources: tuple[Source, ...]) -> RawTable:
    if place.format == "delta":
        from sfpubsub.spark.raw.delta import DeltaTable

        return DeltaTable(spark, place, sources)
    if place.format == "iceberg":
        from sfpubsub.spark.raw.iceberg import IcebergTable

        return IcebergTable(spark, place, sources)
    if place.local is None:
        raise AssertionError("a parquet table has a directory")
    beside = claim_table(place.local, sources, place.staging)
    return ParquetTable(spark, place.local, beside)
