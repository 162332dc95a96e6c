"""Writes batches of events to a raw table, each event once.

Responsible for what is new and for the order of the steps; the table's format does the transaction
(`sfpubsub.spark.raw`). Acks nothing: the caller does, after `EventWriter.write` has returned.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, DecodeError, LocalProtocolError, WriteError
from sfpubsub.spark.ingest.dedupe import Conflict
from sfpubsub.spark.ingest.key_window import (
    DEFAULT_WINDOW,
    DEFAULT_WINDOW_KEYS,
    KeyWindow,
)
from sfpubsub.spark.ingest.known_events import KnownEvents
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.run_directory import keys_directory
from sfpubsub.spark.ingest.screening import Part, ScreenedPart, screen, taken_of
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.ingest.undecodable import OnUndecodable, Undecodable
from sfpubsub.spark.raw.beside import CONFLICTS_NAME
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.ownership import claim_table, make_table_directory
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.rows import EventRows, TimedEvents
from sfpubsub.spark.raw.schema import check_rows, of_org, renumbered, schemas_in
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.table import RawTable
from sfpubsub.spark.runtime.session import jvm_of
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")


class EventWriter:
    """The one writer of one raw table. A context manager; one thread at a time may write.

    Making it takes the table over: for a directory of this machine by a lease, for table formats by
    a transaction that ends every older writer. It removes what a dead writer left, and reads the
    keys of the window from the table.

    Args:
        spark: A classic session (not Spark Connect), on this machine or with a shared file system;
            for table formats with their jars (`spark_session`).
        path: The table's directory, or for table formats a URL, or the name of a catalog's table
            (``schema.table``, ``catalog.schema.table``); made if it is missing. One that was made
            beforehand, with the same columns, is taken while it is empty.
        format: ``parquet``, ``delta`` or ``iceberg``.
        subscription: Name or id of the managed subscription whose events come, or several of them.
        topic: The topic, or several; the table keeps the position of each (`TableReplayStore`).
        channel: The channel of the Streaming API, or several; as with topics.
        window: Seconds for which a dedupe key is kept, in memory and on local disk.
        window_keys: Keys that may be kept, with 1.1 bytes of memory and 24 of disk each. With more
            of them in *window* older events are looked up in the table, which takes longer.
        staging: With parquet: a directory to keep staging and sidecars in, on the table's file
            system and not in the table; by default where they were before, or beside the table.
        clock: Seconds since 1970 UTC; decides on the window and on the day of a batch.
        on_undecodable: What becomes of an event that cannot be decoded: ``keep``: its row has no
            JSON; ``quarantine``: it is put into *quarantine* and has no row; ``skip``: it is
            counted, logged, and has no row; ``fail``: `write` raises.
        quarantine: Where such events are kept.
        org_id: Id of the org that the events come from, 18 characters; null in the table without.
        table_properties: For table formats: what the table is given if it has to be made, such as
            ``delta.logRetentionDuration``.

    Raises:
        ConfigurationError: The destination is not valid or another's, or another writer lives; or
            Spark lacks the format's jars; or *on_undecodable* is not a policy, or does not go with
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
        org_id: str | None = None,
        table_properties: Mapping[str, str] | None = None,
    ) -> None:
        place = Destination.parse(path, format, staging)
        self.sources: tuple[Source, ...] = Source.several(subscription, topic, channel)
        """Whose events it takes."""
        self._source_of = {source.name: source for source in self.sources}
        self._undecodable = Undecodable(on_undecodable, quarantine)
        self.destination = place
        self.org_id = org_id
        self._sidecars = Sidecars(spark, place, clock=clock)
        self._told: set[str] = set()
        """Schemas that are known to be lacking."""
        self._trusted = False  # whether window, numbers and position are those of the table
        self._is_closed = False
        self._busy = threading.Lock()  # held while the table may change
        self._jvm = jvm_of(spark)
        self._lease: Lease | None = None
        place.check(self.sources)  # before anything of ours is in it
        with ExitStack() as unless_done:
            if place.local is not None:
                make_table_directory(place.local)
                self._lease = Lease.acquire(place.local, self._jvm.pid)
                unless_done.callback(self._lease.release)
            self._table = _open_table(spark, place, self.sources, table_properties)
            self._table.on_restored = self._note_restored
            # Whose the table is may change, and its keys are its own all the same.
            self._window = KeyWindow(
                f"{place.format} {place}", keys_directory(place), window, window_keys
            )
            unless_done.callback(self._window.close)
            self._known = KnownEvents(self._table, self._window, clock)
            self._known.recover()
            self._trusted = True
            unless_done.pop_all()

    def write(self, batches: TimedEvents | Iterable[TimedEvents]) -> WriteResult:
        """Make the events of *batches* durable, each once.

        1. Decode the events.
        2. Drop those that came before: in these batches, by the window, or by the table, which is
           asked once for all that the window cannot tell (dedupe.py).
        3. Keep beside the table those that have the id of another event and another payload.
        4. Put those that cannot be decoded into the quarantine, which makes them durable. They
           have no row. (By default there is no quarantine, and their row has no JSON.)
        5. Make the schemas of these events durable beside the table, where they are not yet.
        6. Hand rows and positions to the table, which publishes them at once and returns when they
           are durable. With no rows left, the positions alone: a redelivered tail is done too.
        7. Remember the keys. Only then return, and only then may the caller ack.

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
            screened = screen(parts, self._known, self._undecodable)
            self._keep_conflicts(screened.judged, screened.conflicts)
            going = [found for found in screened.parts if isinstance(found, ScreenedPart)]
            for part, found in zip(parts, screened.parts, strict=True):
                if isinstance(found, ScreenedPart):
                    self._sidecars.keep_schemas(part.rows.schemas)
                    position = part.rows.position
                    if position is not None and self._source_of[part.source].keeps_position:
                        positions[part.source] = position
            first_seq, batch_id = self._table.next_seq, None
            if any(found.result.rows for found in going):
                rows = pa.concat_tables([found.rows for found in going])
                marks = [mark for found in going for mark in found.marks]
                batch_id = self._append(rows, marks, positions, screened.now)
            else:
                self._move(positions)
        results: list[WriteResult | DecodeError] = []
        for part, found in zip(parts, screened.parts, strict=True):
            if not isinstance(found, ScreenedPart):
                results.append(found)
                continue
            result = replace(found.result, position=positions.get(part.source))
            if result.rows:
                result = replace(result, batch_id=batch_id, first_seq=first_seq)
                first_seq += result.rows
            results.append(result)
        return results

    def write_rows(
        self, rows: pa.Table, *, name: str | None = None, schemas: Mapping[str, str] | None = None
    ) -> WriteResult:
        """Make rows of a raw table durable, each once; the table's position stays as it is.

        They are new or not by their ``dedupe_key``, as in `write`, and get an ``ingest_seq`` of
        their own. What they say otherwise is not looked at.

        Args:
            rows: With the columns of `sfpubsub.spark.raw.schema.SCHEMA`, in the order to keep;
                ``ingest_seq`` may be missing, and ``schema_json`` be there, as the streaming source
                has it. Of any subscription.
            name: What a streaming query calls these rows. It is part of the transaction, and if
                one of the table's last 32 batches has it, nothing is done: they are in the table.
                Rows without one may be of any age, and are looked up however old they are.
            schemas: The Avro schemas of the rows as JSON texts, by id. They are durable before the
                rows. Rows whose schema is neither here nor in ``schema_json`` nor kept beside the
                table are written, and the log says so: typed tables need it.

        Raises:
            LocalProtocolError: Columns are missing or of other types; or the writer was closed.
            WriteError: Whether the rows are in the table is unknown; write them again.
        """
        given = {**schemas_in(rows), **(schemas or {})}
        rows = check_rows(rows)
        with self._turn():
            if name is not None and name in self._table.names:
                return WriteResult(0, 0, 0, None, None, self.position, repeated=True)
            is_live = name is not None  # else they may be of any age
            now = self._known.time_of(rows, is_live=is_live)
            marks = self._known.marks(rows, now)
            verdict = self._known.judge(rows, marks, now, is_live=is_live)
            self._keep_conflicts(rows, verdict.conflicts)
            new = verdict.new
            first_seq = self._table.next_seq
            self._sidecars.keep_schemas(given)
            self._tell_lacking(rows)
            batch_id = None
            if new:
                taken = taken_of(rows, new), [marks[index] for index in new]
                batch_id = self._append(*taken, {}, now, name)
        return WriteResult(
            rows=len(new),
            duplicates=len(rows) - len(new) - len(verdict.conflicts),
            undecodable=0,
            batch_id=batch_id,
            first_seq=first_seq if new else None,
            position=self.position,
            conflicts=len(verdict.conflicts),
            reencoded=len(verdict.reencoded),
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

    def hear_time(self, process_time: int) -> None:
        """Compare this machine's clock with the service's. Safe in any thread.

        Args:
            process_time: What the service's clock says now, or lately said for the first time, in
                milliseconds since 1970 UTC (`CommitReceipt.process_time`).
        """
        self._known.hear_time(process_time / 1000)

    def close(self) -> None:
        """Give the table up; nothing can be written after that. Does nothing the second time.

        If a write is under way in another thread the lease stays, and ends with this process.
        """
        self._is_closed = True
        # Kept from now on: a write that was about to begin finds it taken.
        if self._busy.acquire(blocking=False):
            self._window.close()
            if self._lease is not None:
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

    def _keep_conflicts(self, rows: pa.Table, conflicts: list[Conflict]) -> None:
        if not conflicts:
            return
        self._sidecars.keep_conflicts(rows, conflicts)
        _log.warning(
            "%s: %d events have the id of another event and another payload; they are not rows of "
            "the table, and are kept in %s",
            self.destination,
            len(conflicts),
            CONFLICTS_NAME,
        )

    def _append(
        self,
        rows: pa.Table,
        marks: list[int],
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """Hand rows to the table, and remember their keys."""
        rows = renumbered(of_org(rows, self.org_id).combine_chunks(), self._table.next_seq)
        batch_id = self._table.append(rows, positions, now, name)
        self._known.add(rows, marks, now)
        return batch_id

    def _tell_lacking(self, rows: pa.Table) -> None:
        wanted = set(pc.unique(rows["schema_id"]).to_pylist()) - {None, ""} - self._told
        lacking = self._sidecars.lacks_schemas(wanted) if wanted else []
        if lacking:
            _log.warning(
                "rows of schema %s are written to %s without it: give schemas=, or put it "
                "into the _schemas beside the table before typed tables are made of them",
                ", ".join(lacking),
                self.destination,
            )
            self._told.update(lacking)

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
                self._known.recover()
            self._trusted = False  # until all is done
            yield
            self._trusted = True
        finally:
            self._busy.release()

    def _note_restored(self, sources: Sequence[Source], last: Mapping[str, ReplayId]) -> None:
        """Note that rows were taken back which a managed subscription will not deliver again."""
        gaps = [
            Gap("restored", source.name, after=last.get(source.name))
            for source in sources
            if not source.keeps_position
        ]
        for gap in gaps:
            _log.warning("%s was restored: %s", self.destination, gap)
        self._sidecars.keep_gaps(gaps)
        for source in sources:
            if source.keeps_position:
                _log.warning(
                    "%s was restored: what came after the newest row of %s is read again",
                    self.destination,
                    source,
                )


def _open_table(
    spark: SparkSession,
    place: Destination,
    sources: tuple[Source, ...],
    properties: Mapping[str, str] | None,
) -> RawTable:
    if place.format == "delta":
        from sfpubsub.spark.raw.delta import DeltaTable

        return DeltaTable(spark, place, sources, properties)
    if place.format == "iceberg":
        from sfpubsub.spark.raw.iceberg import IcebergTable

        return IcebergTable(spark, place, sources, properties)
    if properties:
        raise ConfigurationError("table properties go with delta and iceberg; parquet has none")
    if place.local is None:
        raise AssertionError("a parquet table has a directory")
    beside, layout = claim_table(place.local, sources, place.staging)
    return ParquetTable(spark, place.local, beside, layout)
