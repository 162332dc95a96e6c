"""Write batches of events to a raw table, each event exactly once.

This module deduplicates events and orders the steps of a write; the table format handles the
transaction (`sfpubsub.spark.raw`). It acks nothing: the caller acks after `EventWriter.write` has
returned.
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

from sfpubsub.errors import ConfigurationError, DecodeError, LocalProtocolError
from sfpubsub.spark.formats import LOGS
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.lease import Lease
from sfpubsub.spark.ingest.dedupe import Conflict
from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW, KeyWindow
from sfpubsub.spark.ingest.known_events import KnownEvents
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.screening import Part, ScreenedPart, screen, taken_of
from sfpubsub.spark.ingest.settings import DEFAULT_WINDOW_KEYS
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.ingest.undecodable import OnUndecodable, Undecodable
from sfpubsub.spark.raw.destination import check_sources
from sfpubsub.spark.raw.layout import day_of, start_of
from sfpubsub.spark.raw.logged import LoggedTable
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.raw.ownership import claim_table, make_table_directory
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.rows import EventRows, TimedEvents
from sfpubsub.spark.raw.schema import check_rows, of_org, renumbered, schemas_in
from sfpubsub.spark.raw.sidecar_paths import CONFLICTS_NAME
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.table import RawTable
from sfpubsub.spark.runtime.process import Process, check_jvm
from sfpubsub.spark.runtime.session import driver_at, driver_of
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")


class EventWriter:
    """The only writer of a raw table. A context manager; only one thread at a time may write.

    A new writer takes over the table: it takes a lease if the table is in a local directory; with
    a table format, it commits a transaction after which older writers can commit nothing. It also
    removes leftovers of a writer that died, and loads the keys of the dedupe window (`KeyWindow`)
    from the table.

    Args:
        spark: A session, local or with a shared file system; also of Spark Connect. Table
            formats need their jars (`spark_session`).
        path: The table's directory, written with a slash (``./orders``) or as a `Path`; for table
            formats also a URL or the name of a catalog table (``schema.table``,
            ``catalog.schema.table``). A name without a slash or a dot is refused. Created if
            missing. An existing table that sfpubsub did not create is accepted if it is empty and
            has the columns of a raw table.
        format: ``parquet``, ``delta`` or ``iceberg``.
        subscription: Name or id of the managed subscription, or several.
        topic: The topic, or several; the table keeps the position of each (`TableReplayStore`).
        channel: The channel of the Streaming API, or several; handled like topics.
        window: Seconds for which dedupe keys are kept in memory.
        window_keys: Maximum number of dedupe keys, each of which takes 24 bytes of memory. If there
            are more, the oldest are dropped. Events that may be as old as the dropped keys are then
            looked up in the table, which takes longer.
        staging: With parquet: directory for staging and sidecars, on the table's file system and
            outside the table. None keeps the directory of an existing table, and selects the
            default for a new one.
        maintain: For table formats: whether the first write of a day also compacts the days before,
            if the table has many small files. Its events are acked once that is done.
        clock: Returns the time in seconds since the epoch, which determines the window and the day
            of a batch.
        on_undecodable: What to do with an event that cannot be decoded. ``keep``: write its row
            without JSON; ``quarantine``: put it in *quarantine* instead of the table; ``skip``:
            only count and log it; ``fail``: make `write` raise.
        quarantine: Receives undecodable events. Required for *on_undecodable* ``quarantine``, and
            not allowed otherwise.
        org_id: Id of the org that publishes the events, for the column ``org_id``. The table
            remembers it, and rejects the events of another org. None leaves the column null.
        table_properties: For table formats: properties to set if the table has to be created, such
            as ``delta.logRetentionDuration``.

    Raises:
        ConfigurationError: The destination is not valid, belongs to other sources or was not
            created by sfpubsub, or is in use by another writer; Spark lacks the format's jars; or
            *on_undecodable* is not valid or does not match *quarantine*.
        OtherOrgError: The table contains events of another org than *org_id*.
        WriteError: The table cannot be read, or Spark has exited.
        ValueError: *window* or *window_keys* is not positive.
    """

    on_rows: Callable[[pa.Table], object] | None = None
    """Called with the rows of each batch, numbered, once they are in the table."""

    flush_requested = False
    """Always False, because no other job shares this writer. Used by `IngestJob`."""

    def __init__(
        self,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        format: str = "parquet",  # noqa: A002  # named as in Spark
        subscription: str | Iterable[str] | None = None,
        topic: str | Iterable[str] | None = None,
        channel: str | Iterable[str] | None = None,
        window: float = DEFAULT_WINDOW,
        window_keys: int = DEFAULT_WINDOW_KEYS,
        staging: str | os.PathLike[str] | None = None,
        maintain: bool = True,
        clock: Callable[[], float] = time.time,
        on_undecodable: OnUndecodable = "keep",
        quarantine: Quarantine | None = None,
        org_id: str | None = None,
        table_properties: Mapping[str, str] | None = None,
    ) -> None:
        place = Destination.parse(path, format, staging)
        self.sources: tuple[Source, ...] = Source.several(subscription, topic, channel)
        """The sources whose events this writer accepts."""
        self._source_of = {source.name: source for source in self.sources}
        self._undecodable = Undecodable(on_undecodable, quarantine)
        self.destination = place
        self.org_id: str | None = one_org(None, org_id, place)
        self._sidecars = Sidecars(spark, place, clock=clock)
        self._logged: set[str] = set()
        """Ids of missing schemas that were already logged."""
        self._trusted = False  # whether this object's state matches the table
        self._maintains = maintain
        self._is_closed = False
        self._busy = threading.Lock()  # held while the table may change
        self._lease: Lease | None = None
        check_sources(place, self.sources)  # before anything is written to it
        self._process: Process | None
        with ExitStack() as unless_done:
            if place.local is None:
                self._process = driver_of(spark)
            else:
                make_table_directory(place.local)
                self._process = driver_at(spark, place.local)
                self._lease = Lease.acquire(place.local, self._process.pid)
                unless_done.callback(self._lease.release)
            self._table = _open_table(spark, place, self.sources, table_properties, self.org_id)
            self._table.on_restored = self._note_restored
            self._known = KnownEvents(self._table, KeyWindow(window, window_keys), clock)
            self._known.recover()
            self._trusted = True
            unless_done.pop_all()

    def write(self, batches: TimedEvents | Iterable[TimedEvents]) -> WriteResult:
        """Write the events of *batches* durably, each exactly once.

        1. Decode the events.
        2. Drop duplicates, which are found within these batches, in the dedupe window, or in the
           table. A single lookup in the table covers all events that the window cannot classify
           (dedupe.py).
        3. Apply *on_undecodable* to the events that cannot be decoded: by default, their rows have
           no JSON; with ``quarantine``, they are stored durably in *quarantine*, not in the table.
        4. Store conflicts (events with the id of another event but a different payload) durably in
           the sidecar ``_conflicts``.
        5. Store the schemas of the batches' events durably in the sidecar ``_schemas``, unless they
           are already there.
        6. Pass rows and positions to the table, which commits them atomically and returns when they
           are durable. If no rows are left, pass only the positions, so that the duplicates are
           not redelivered again.
        7. Remember the keys, then return. Only after that may the caller ack.

        If a step fails, nothing may be acked. The next write first reloads the window, the next
        ``ingest_seq`` and the positions, because only the table shows whether the rows were
        committed.

        Args:
            batches: One or more batches of the writer's only source, in order of arrival.

        Raises:
            WriteError: The write failed; the same batches can be written again.
            DecodeError: *on_undecodable* is ``fail`` and an event cannot be decoded. Nothing was
                written.
            LocalProtocolError: The writer was closed, another thread is writing, or the writer has
                several sources (use `write_collected`).
        """
        rows = EventRows()
        for batch in [batches] if isinstance(batches, TimedEvents) else batches:
            rows.extend(batch, batch.received_at)
        return self.write_collected(rows)

    def write_collected(self, received: EventRows, source: str | None = None) -> WriteResult:
        """Write collected events durably, each exactly once, as `write` does.

        The events may have been collected and decoded in another thread.

        Args:
            received: Events of one of the table's sources.
            source: Name of the source; optional if there is only one.

        Raises:
            WriteError: The write failed; the same events can be written again.
            DecodeError: *on_undecodable* is ``fail`` and an event cannot be decoded. Nothing was
                written.
            LocalProtocolError: The writer was closed, another thread is writing, or the source is
                unknown or missing.
        """
        (result,) = self.write_parts([Part(self._name(source), received)])
        if isinstance(result, DecodeError):
            raise result
        return result

    def write_parts(
        self, parts: Sequence[Part], moves: Mapping[str, ReplayId] | None = None
    ) -> list[WriteResult | DecodeError]:
        """Write the events and positions of several sources durably, as one batch.

        Events are written in the order of the parts, and within a part in order of arrival.

        Args:
            parts: At most one per source.
            moves: Positions to store for sources without events, by name of the source.

        Returns:
            The result of each part. If it is a DecodeError, neither the events of the part nor its
            position were written.

        Raises:
            WriteError: The write failed; the same events can be written again.
            LocalProtocolError: The writer was closed, another thread is writing, a source is
                unknown, or *moves* contains a managed subscription.
        """
        positions = {self._keeping(name): place for name, place in (moves or {}).items()}
        for part in parts:
            self._name(part.source)
        with self._one_write():
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
        """Write rows of a raw table durably, each exactly once, without changing positions.

        The rows are deduplicated by ``dedupe_key`` as in `write`, and get a new ``ingest_seq``. A
        missing ``org_id`` is filled in; all other columns are stored as they are.

        Args:
            rows: Rows in the order of writing, with the columns of
                `sfpubsub.spark.raw.schema.SCHEMA`; ``ingest_seq`` may be missing, and
                ``schema_json`` may be added, as in the streaming source. They may come from
                any subscription.
            name: A streaming query's name for these rows. It becomes part of the transaction. If
                one of the table's last 32 batches has the same name, nothing is written, because
                the rows are already in the table. Without a name, the rows may be of any age, so
                a larger part of the table is searched for them.
            schemas: The Avro schemas of the rows as JSON text, by id. They are stored durably
                before the rows. Rows whose schema is neither here nor in ``schema_json`` nor in the
                sidecar are written with a warning, because typed tables need the schema.

        Raises:
            LocalProtocolError: The rows do not have the columns and types of a raw table, the
                writer was closed, or another thread is writing.
            OtherOrgError: The ``org_id`` of a row is not that of the table.
            WriteError: It is unknown whether the rows were written; write them again.
        """
        given = {**schemas_in(rows), **(schemas or {})}
        rows = check_rows(rows)
        org_id = self._table.org_id
        for found in pc.unique(rows["org_id"]).to_pylist():
            org_id = one_org(org_id, found, self.destination)
        with self._one_write():
            if name is not None and name in self._table.names:
                return WriteResult(0, 0, 0, None, None, self.position, repeated=True)
            is_live = name is not None  # rows without a name may be of any age
            now = self._known.time_of(rows, is_live=is_live)
            marks = self._known.marks(rows, now)
            verdict = self._known.judge(rows, marks, now, is_live=is_live)
            self._keep_conflicts(rows, verdict.conflicts)
            new = verdict.new
            first_seq = self._table.next_seq
            self._sidecars.keep_schemas(given)
            self._report_lacking(rows)
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
        """All sources of the table: those of this writer and of earlier writers."""
        return self._table.sources

    @property
    def position(self) -> ReplayId | None:
        """Last durable position of the only topic or channel.

        None if the source has no position yet, if the writer has several sources, or if its only
        source is a managed subscription.
        """
        return self.positions.get(self.sources[0].name) if len(self.sources) == 1 else None

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """Last durable positions, by name of the topic or channel."""
        return self._table.positions

    def move(self, position: ReplayId, source: str | None = None) -> None:
        """Store a position durably without writing events, for instance after a keepalive.

        Args:
            position: The position to store.
            source: Name of the topic or channel; optional if there is only one source.

        Raises:
            LocalProtocolError: The source is unknown or missing, or is a managed subscription,
                whose position the service stores; the writer was closed; or another thread is
                writing.
            WriteError: The position could not be stored.
        """
        name = self._keeping(self._name(source))
        with self._one_write():
            self._table.move({name: position})

    def check(self) -> None:
        """Check that Spark's JVM is still alive, if it is on this machine; see `check_jvm`."""
        if self._process is not None:
            check_jvm(self._process)

    def record_time(self, process_time: int) -> None:
        """Record the service's time, to check this machine's clock against it. Thread-safe.

        Args:
            process_time: The service's current or recent time, in milliseconds since the epoch
                (`CommitReceipt.process_time`).
        """
        self._known.record_time(process_time / 1000)

    def close(self) -> None:
        """Release the table; nothing can be written afterwards. Can be called repeatedly.

        If another thread is writing, the lease is kept until this process exits.
        """
        self._is_closed = True
        # Never released: a write that is about to start finds the lock taken.
        if self._busy.acquire(blocking=False) and self._lease is not None:
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
            "%s: %d events have the id of another event but a different payload; they were stored "
            "in %s instead of the table",
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
        """Append rows to the table, and remember their keys."""
        rows = renumbered(of_org(rows, self.org_id).combine_chunks(), self._table.next_seq)
        today = day_of(now)
        is_new_day = 0 < self._table.newest_time < start_of(today)
        batch_id = self._table.append(rows, positions, now, name)
        self._known.add(rows, marks, now)
        if self.on_rows is not None:
            self.on_rows(rows)
        if is_new_day and self._maintains:
            self._table.compact_before(today)
        return batch_id

    def _report_lacking(self, rows: pa.Table) -> None:
        wanted = set(pc.unique(rows["schema_id"]).to_pylist()) - {None, ""} - self._logged
        lacking = self._sidecars.lacks_schemas(wanted) if wanted else []
        if lacking:
            _log.warning(
                "rows with schema %s are written to %s without the schema: pass schemas=, or add "
                "the schema to the table's _schemas before building typed tables",
                ", ".join(lacking),
                self.destination,
            )
            self._logged.update(lacking)

    def _move(self, positions: Mapping[str, ReplayId]) -> None:
        """Store the *positions* that differ from those in the table."""
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
                f"pass one of the sources of {self.destination}: {names}"
                + (f", not {source}" if source else "")
            )
        return source

    def _keeping(self, name: str) -> str:
        if not self._source_of[self._name(name)].keeps_position:
            raise LocalProtocolError(
                f"the position of the managed subscription {name} is stored by the service: ack "
                f"its events instead"
            )
        return name

    @contextmanager
    def _one_write(self) -> Iterator[None]:
        """Lock the writer for one write, and reload the table's state if it is unknown."""
        if self._is_closed:  # the next writer relies on this; this writer's state is outdated
            raise LocalProtocolError(
                f"the writer of {self.destination} was closed, and another writer may be active: "
                f"create a new writer"
            )
        if not self._busy.acquire(blocking=False):
            raise LocalProtocolError(
                f"the writer of {self.destination} is already writing in another thread: use one "
                f"thread at a time"
            )
        try:
            if not self._trusted:
                self._known.recover()
            self._trusted = False  # until the write has succeeded
            yield
            self._trusted = True
        finally:
            self._busy.release()

    def _note_restored(self, sources: Sequence[Source], last: Mapping[str, ReplayId]) -> None:
        """Log that the table was restored, and record a gap for each managed subscription.

        The service does not redeliver the removed events of managed subscriptions. Other sources
        resume after their newest remaining rows.
        """
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
                    "%s was restored: resuming %s after its newest remaining row",
                    self.destination,
                    source,
                )


def _open_table(
    spark: SparkSession,
    place: Destination,
    sources: tuple[Source, ...],
    properties: Mapping[str, str] | None,
    org_id: str | None,
) -> RawTable:
    if place.format in LOGS:
        return LoggedTable(spark, place, sources, properties, org_id)
    if properties:
        raise ConfigurationError(
            "format parquet has no table properties: leave them out, or use delta or iceberg"
        )
    if place.local is None:
        raise AssertionError("a parquet table must be a local directory")
    sidecars = claim_table(place.local, sources, place.staging, org_id)
    return ParquetTable(spark, place.local, sidecars)
