"""Raw tables in formats with a log.

Each transaction by sfpubsub adds a `State` to the table, as the note of a change
(formats/store.py), and optionally rows. A table accepts the number of each state once. This allows
fencing: a writer starts by committing an empty transaction. After that, no older writer can commit,
even if it was suspended during a commit and resumes a week later.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import cached_property, reduce
from operator import or_
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import Conflict, FormatError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.flushing import Flusher
from sfpubsub.spark.formats.frames import columns_that_differ, spark_schema
from sfpubsub.spark.formats.listing import paths_of_files
from sfpubsub.spark.formats.store import Notes, Sessions, TableStore, open_store
from sfpubsub.spark.raw.layout import PARTITION, STORED, before, day_of, end_of, start_of
from sfpubsub.spark.raw.organisation import one_org
from sfpubsub.spark.raw.schema import BATCH_COLUMN, SCHEMA, joined_keys
from sfpubsub.spark.raw.sidecar_paths import STAGING_NAME
from sfpubsub.spark.raw.sources import Source, joined
from sfpubsub.spark.raw.state import APPLICATION, State
from sfpubsub.spark.raw.table import RawTable, StoredRow, rows_among
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.runtime.checks import check_file_system, check_session
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.types import ReplayId

T = TypeVar("T")

_log = logging.getLogger("sfpubsub.spark")

# The text that the note of each of our transactions contains.
_KEY = "sfpubsub.state"

# Attempts to start writing a table. An attempt fails only if another writer, or a compaction,
# commits at the same moment.
_FENCE_TRIES = 5

# Maximum number of keys collected by the driver at a time. Each takes about 50 bytes there.
_KEYS_AT_ONCE = 1_000_000


def raw_store(
    sessions: Sessions, place: Destination, scratch: Callable[[], Path | None] = lambda: None
) -> TableStore:
    """Return the store of a raw table; see `TableStore` for the arguments."""

    def number_of(note: str | None) -> int | None:
        state = State.from_json(note, str(place))
        return None if state is None else state.number

    return open_store(sessions, place, Notes(APPLICATION, _KEY, number_of), scratch)


class LoggedTable(RawTable):
    """A raw table in a format with a log. Not thread-safe.

    Args:
        spark: Session from which the writing session is created; its settings are not changed.
        place: Location of the table.
        sources: Sources whose events will be written.
        properties: Properties to set if the table has to be created.
        org_id: Id of the org whose events will be written; None if it is not known.

    Raises:
        ConfigurationError: Spark lacks the jars of the format or the file system.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Destination,
        sources: tuple[Source, ...],
        properties: Mapping[str, str] | None = None,
        org_id: str | None = None,
    ) -> None:
        self._properties = dict(properties or {})
        self._org_id = org_id
        self.place = place
        self._sources = sources
        self._writer = uuid.uuid4().hex
        self._state: State | None = None
        self._is_restored = False
        """Whether `_load` found that the table was restored to an older version."""
        check_session(spark, place.format)
        if place.local is None and not place.in_catalog:
            check_file_system(spark, place.address)
        self._sessions = Sessions(spark, place)
        self._store = raw_store(self._sessions, place, self._scratch)
        self._exists = False
        self._flusher = None if place.local is None else Flusher(place.format, place.local)

    @cached_property
    def _spark(self) -> SparkSession:
        return self._sessions.plain

    @property
    def _known(self) -> State:
        if self._state is None:
            raise AssertionError("the state of the table was not loaded: call recover() first")
        return self._state

    @property
    def next_seq(self) -> int:
        """See `RawTable`."""
        return self._known.next_seq

    @property
    def sources(self) -> tuple[Source, ...]:
        """See `RawTable`."""
        return self._known.sources

    @property
    def org_id(self) -> str | None:
        """See `RawTable`."""
        return self._known.org_id

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        """See `RawTable`."""
        return self._known.positions

    @property
    def newest_time(self) -> float:
        """See `RawTable`."""
        return self._state.time if self._state else 0.0

    @property
    def names(self) -> Collection[str]:
        """See `RawTable`."""
        return self._known.names

    def recover(self) -> None:
        """See `RawTable`.

        First, temporary files left by a failed write are removed. Then:

        1. Read the newest state in the log.
        2. If this writer had already started and the state belongs to another writer, raise
           WriteError: that writer has taken over the table.
        3. If the table was restored to an older version, call `on_restored`.
        4. Commit an empty transaction on top of that state. After that, no earlier write can be
           committed: neither one of an older writer, nor a failed one of this writer that Spark is
           still executing.
        """
        if self.place.local is not None:
            shutil.rmtree(self.place.local / STAGING_NAME, ignore_errors=True)
        for _ in range(_FENCE_TRIES):
            with self._errors("cannot be read"):
                found = self._load()
                restored = self._is_restored
                names = [source.name for source in found.sources] if found and restored else []
                last = self._positions_of_rows(self._store.read(), names) if restored else {}
            if found is None:
                self._check_vacant()
                found = State.first(self._sources, self._writer)
            elif self._state is not None and found.writer != self._writer:
                raise self._taken_over(found)
            sources = joined(found.sources, self._sources, self.place)
            org_id = one_org(found.org_id, self._org_id, self.place)
            if restored and self.on_restored is not None:
                self.on_restored(found.sources, last)
            try:
                with self._errors("cannot be written"):
                    self._commit(None, found.taken_by(self._writer, sources, org_id), after=None)
            except Conflict:
                continue
            return
        raise WriteError(f"other writers keep writing to {self.place}: stop them")

    def append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """See `RawTable`. A single commit to the table contains the batch and the positions."""
        batch = f"b{self.next_seq:019d}"
        rows = rows.select(SCHEMA.names)
        for name_, value in ((PARTITION, day_of(now)), (BATCH_COLUMN, batch)):
            field = STORED.field(name_)
            rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), len(rows)))
        state = self._known.grown(batch, len(rows), positions, now, name)
        self._try_commit(rows, state, f"writing batch {batch} of {state.rows} events")
        return batch

    def move(self, positions: Mapping[str, ReplayId]) -> None:
        """See `RawTable`."""
        self._try_commit(None, self._known.moved(positions), "writing the position")

    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """See `RawTable`.

        Yields a pair per partition; its time is the partition's end, but at most `newest_time`.
        """
        if self.next_seq == 0 or day_of(self.newest_time) < day_of(oldest):
            return  # there are no such rows, and Spark would need about 1 s to find that out
        with self._errors("cannot be read"):
            frame = self._store.read().where(f.col(PARTITION) >= f.lit(day_of(oldest)))
            frame = frame.select(PARTITION, "dedupe_key")
            some = to_arrow(frame.limit(_KEYS_AT_ONCE + 1))
            if len(some) <= _KEYS_AT_ONCE:
                yield from self._keys(some)
                return
            counts = frame.groupBy(PARTITION).count().orderBy(PARTITION).collect()
            for first, last in _spans([(row[PARTITION], row["count"]) for row in counts]):
                some = to_arrow(frame.where(f.col(PARTITION).between(f.lit(first), f.lit(last))))
                yield from self._keys(some)

    def _keys(self, rows: pa.Table) -> Iterator[tuple[float, bytes]]:
        """Yield one pair, as in `keys_since`, for each partition in *rows*; oldest first."""
        column = rows[PARTITION]
        for day in sorted(pc.unique(column).to_pylist()):
            written = min(end_of(day), max(self.newest_time, start_of(day)))
            yield written, joined_keys(rows.filter(pc.equal(column, day))["dedupe_key"])

    def rows_with(
        self, keys: Collection[bytes], spans: Sequence[tuple[float, float]]
    ) -> Mapping[bytes, StoredRow]:
        """See `RawTable`."""
        if not keys or not spans or self.next_seq == 0:
            return {}
        written = reduce(or_, [self._written(first, last) for first, last in spans])
        with self._errors("cannot be read"):
            return rows_among(self._spark, self._store.read().where(written), keys)

    def _written(self, first: float, last: float) -> Column:
        """Return a condition that selects the partitions of rows written from *first* to *last*."""
        return f.col(PARTITION).between(f.lit(day_of(first)), f.lit(day_of(last)))

    def compact_before(self, day: date) -> None:
        """See `RawTable`."""
        try:
            if self._store.files().are_many_and_small:
                self._store.compact(before(day))
                self._flush()
        except (FormatError, *SPARK_ERRORS, pa.ArrowException, OSError) as error:
            _log.warning("%s was not compacted: %s", self.place, first_line(error))

    def _try_commit(self, rows: pa.Table | None, state: State, failed: str) -> None:
        try:
            self._commit(rows, state, after=self._known.number)
        except (Conflict, FormatError, *SPARK_ERRORS, pa.ArrowException) as error:
            self._look_for_another(error)
            raise WriteError(
                f"{failed} to {self.place} failed, so nothing was acked: {first_line(error)}"
            ) from error

    def _check_vacant(self) -> None:
        """Check that the URL of a new table has no files except hidden ones.

        Local paths and catalog tables are not checked here.

        Raises:
            ConfigurationError: The URL has other files.
        """
        if self.place.local is not None or self.place.in_catalog:
            return  # checked by `check_destination`, or the responsibility of the catalog
        with self._errors("cannot be read"):
            foreign = paths_of_files(self._spark, self.place.address, most=1)
        for path in foreign:
            name = path.removeprefix(self.place.address).lstrip("/").partition("/")[0]
            raise ConfigurationError(
                f"{self.place} is neither empty nor an sfpubsub table (it contains {name!r}): "
                f"choose another destination"
            )

    def _look_for_another(self, cause: Exception) -> None:
        try:
            found = self._load()
        except (FormatError, *SPARK_ERRORS, ConfigurationError):
            return  # the original error is more helpful
        if found is not None and found.writer != self._writer:
            raise self._taken_over(found) from cause

    def _taken_over(self, found: State) -> WriteError:
        return WriteError(
            f"{self.place} was taken over by another writer ({found.writer[:8]}); this writer "
            f"({self._writer[:8]}) can no longer write, and unwritten events are not acked: run "
            f"only one job per table"
        )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FormatError, *SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{self.place} {what}: {first_line(error)}") from error

    def _commit(self, rows: pa.Table | None, state: State, *, after: int | None) -> None:
        """Commit *rows* durably, and verify that the commit is in the table.

        Create the table if necessary. *state* becomes the current state.

        Args:
            rows: Rows with the table's columns; None for none.
            state: State of the transaction.
            after: See `TableStore.append`.

        Raises:
            Conflict: The transaction was not committed, because sfpubsub committed another one in
                the meantime, the table was restored, or another program keeps changing it.
        """
        self._write(rows, state, after)
        self._flush()
        self._state = state

    def _flush(self) -> None:
        """Make the table's files durable.

        Spark does not flush, but acked events must survive a power loss.
        """
        if self._flusher is not None and self.place.local is not None:
            self._flusher.flush([self.place.local])

    def _write(self, rows: pa.Table | None, state: State, after: int | None) -> None:
        if not self._exists:
            if not self._store.exists():
                self._store.create(spark_schema(STORED), self._properties, partition=PARTITION)
            self._exists = True
        if not self._store.append(rows, state.number, state.to_json(), after=after):
            raise Conflict(
                f"nothing was written, because the table already has transaction {state.number}, "
                f"or was restored to an earlier version: use only one writer for each table"
            )

    def _scratch(self) -> Path | None:
        if self.place.local is None:
            return None
        scratch = self.place.local / STAGING_NAME
        scratch.mkdir(exist_ok=True)
        return scratch

    def _from_rows(self, known: State) -> State:
        """Reconstruct the state from the rows, if the log has lost it or a restore has undone it.

        Each source resumes after its last row, which is never later than the lost position. Events
        delivered again are dropped as duplicates. ``ingest_seq`` continues from the highest number
        ever used, because batch ids are derived from it, and readers never return to a batch id
        that they have passed.

        Args:
            known: An earlier state. Only its sources, writer, org, transaction number and
                `State.next_seq` are used.
        """
        rows = self._store.read().orderBy(f.col("ingest_seq").desc())
        found = rows.select("ingest_seq", PARTITION, "org_id").limit(1).collect()
        state = replace(
            State.first(known.sources, known.writer),
            number=known.number,
            next_seq=known.next_seq,
            org_id=known.org_id,
        )
        if not found:
            return state
        (row,) = found
        keeping = [source.name for source in known.sources if source.keeps_position]
        return replace(
            state,
            next_seq=max(known.next_seq, row["ingest_seq"] + 1),
            positions=self._positions_of_rows(rows, keeping),
            time=start_of(row[PARTITION]),
            org_id=known.org_id or row["org_id"],
        )

    def _positions_of_rows(self, rows: DataFrame, names: Sequence[str]) -> dict[str, ReplayId]:
        """Return the position of the newest row of each source in *names*, by name of the source.

        Sources without rows are omitted.
        """
        if not names:
            return {}
        # Rows that were redriven or written by a query may have other sources or no position.
        own = f.col("subscription").isin(*names) & f.col("replay_id").isNotNull()
        last = f.max_by("replay_id", "ingest_seq")
        ids = rows.where(own).groupBy("subscription").agg(last).collect()
        return {name: ReplayId(bytes(place)) for name, place in ids}

    def _load(self) -> State | None:
        """Return the newest state, or None if there is no table. Also set `_is_restored`.

        Raises:
            ConfigurationError: The table was not created by sfpubsub.
        """
        self._is_restored = False
        if not self._store.exists():
            return None
        told = self._store.told()
        self._is_restored = told.is_restored
        state = State.from_json(told.note, str(self.place))
        if state is None:
            rows = self._store.read()
            if told.number == 0:
                return self._adopted(rows)
            self._check_columns(rows)
            # Above any count of transactions, and above the time of an earlier loss.
            number = told.number or time.time_ns() // 1000
            return self._from_rows(State.first(self._sources, self._writer, number))
        if told.is_restored or (not told.is_certain and self._is_outdated(state)):
            return self._from_rows(state)
        return state

    def _is_outdated(self, state: State) -> bool:
        """Return whether the table has newer rows than a state tells."""
        ((newest,),) = self._store.read().agg(f.max("ingest_seq")).collect()
        return newest is not None and newest >= state.next_seq

    def _check_columns(self, rows: DataFrame) -> None:
        misfits = columns_that_differ(rows.schema, STORED)
        if misfits:
            raise ConfigurationError(
                f"{self.place} is not an sfpubsub table, or was created for sfpubsub with the "
                f"wrong columns ({'; '.join(misfits)}): choose another destination"
            )

    def _adopted(self, rows: DataFrame) -> State:
        """Return the initial state of an empty table that the user created in advance.

        Raises:
            ConfigurationError: A column of a raw table is missing or has the wrong type, or the
                table already has rows.
        """
        self._check_columns(rows)
        if rows.limit(1).count():
            raise ConfigurationError(
                f"{self.place} has rows that sfpubsub did not write: choose another destination"
            )
        self._store.adopt()
        return State.first(self._sources, self._writer)


def _spans(counts: list[tuple[T, int]]) -> Iterator[tuple[T, T]]:
    """Divide the partitions into consecutive spans; yield the first and last partition of each.

    Each span has at most `_KEYS_AT_ONCE` rows, unless a single partition has more.

    Args:
        counts: Each partition's value and number of rows, in order.
    """
    start, total = 0, 0
    for index, (_, count) in enumerate(counts):
        if total and total + count > _KEYS_AT_ONCE:
            yield counts[start][0], counts[index - 1][0]
            start, total = index, 0
        total += count
    if counts:
        yield counts[start][0], counts[-1][0]
