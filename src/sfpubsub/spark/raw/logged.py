"""A raw table in a table format: what Delta and Iceberg have in common.

Each transaction of ours carries a `State`, and rows or none. Two things are asked of a format: to
find the newest state that is part of the table, and to commit a transaction only if no other one of
ours came in between. From that follows the fence: a writer begins with a transaction that has no
rows, and any older writer, were it stopped in the middle of a commit and continued a week later,
finds that its own can no longer be made.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.beside import STAGING_NAME
from sfpubsub.spark.raw.destination import Destination, Source, joined
from sfpubsub.spark.raw.frames import frame_of, keys_among
from sfpubsub.spark.raw.schema import (
    ADDED_COLUMNS,
    HOUR_SECONDS,
    SCHEMA,
    hour_of,
    hour_start,
    joined_keys,
)
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.raw.table import RawTable
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line, own_session
from sfpubsub.types import ReplayId

# Tries to begin a table. Each fails only if another writer, or somebody's compaction, committed at
# the same moment.
_FENCE_TRIES = 5

# Keys that are brought to the driver at once. A row takes about 50 bytes there.
_KEYS_AT_ONCE = 1_000_000

_CREATED = pa.schema([*SCHEMA, *(pa.field(name, pa.string()) for name in ADDED_COLUMNS)])


class Conflict(Exception):  # noqa: N818  # never leaves this package; not an error of the user's
    """Another transaction came in between; nothing was committed."""


class LoggedTable(RawTable):
    """A raw table in a table format. Not thread-safe.

    Args:
        spark: The session that writes; its settings are left alone.
        place: Where the table is.
        sources: Whose events it is to take.

    Raises:
        ConfigurationError: Spark lacks the format's jars.
    """

    def __init__(
        self, spark: SparkSession, place: Destination, sources: tuple[Source, ...]
    ) -> None:
        self.place = place
        self._sources = sources
        self._writer = uuid.uuid4().hex
        self._state: State | None = None
        self._spark = own_session(spark)

    @property
    def _known(self) -> State:
        if self._state is None:
            raise AssertionError("a table is read before it is used")
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

        Before that, what a dead write left for Spark to read is removed; it is no part of anything.

        1. Read the newest state in the log.
        2. If this writer had begun and the state is another's, give up: it was taken over.
        3. Commit a transaction without rows on top of it. From now on no write that began before
           it can be committed: not an older writer's, and not a failed one of our own that Spark
           may still be busy with.
        """
        if self.place.local is not None:
            shutil.rmtree(self.place.local / STAGING_NAME, ignore_errors=True)
        for _ in range(_FENCE_TRIES):
            with self._errors("cannot be read"):
                found = self._load()
            if found is None:
                self._check_vacant()
                found = State.first(self._sources, self._writer)
            elif self._state is not None and found.writer != self._writer:
                raise self._taken_over(found)
            sources = joined(found.sources, self._sources, self.place)
            try:
                with self._errors("cannot be written"):
                    self._commit(None, found.taken_by(self._writer, sources))
            except Conflict:
                continue
            return
        raise WriteError(
            f"{self.place} is being written by others all the time: end the other writers of it"
        )

    def append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        """See `RawTable`. One transaction, which the format makes durable and visible at once."""
        batch = f"b{self.next_seq:019d}"
        for column, text in zip(ADDED_COLUMNS, (hour_of(now), batch), strict=True):
            rows = rows.append_column(column, pa.repeat(pa.scalar(text), len(rows)))
        state = self._known.grown(batch, len(rows), positions, now, name)
        self._try_commit(rows, state, f"batch {batch} of {state.rows} events was not written")
        return batch

    def move(self, positions: Mapping[str, ReplayId]) -> None:
        """See `RawTable`."""
        self._try_commit(None, self._known.moved(positions), "the position was not written")

    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        """See `RawTable`. The time is the end of the rows' hour."""
        if self.next_seq == 0 or hour_of(self.newest_time) < hour_of(oldest):
            return  # Spark takes a second to find nothing
        with self._errors("cannot be read"):
            frame = self._rows().where(f.col("ingest_hour") >= hour_of(oldest))
            frame = frame.select("ingest_hour", "dedupe_key")
            some = frame.limit(_KEYS_AT_ONCE + 1).toArrow()
            if len(some) <= _KEYS_AT_ONCE:
                yield from _keys(some)
                return
            counts = frame.groupBy("ingest_hour").count().orderBy("ingest_hour").collect()
            for first, last in _spans([(row["ingest_hour"], row["count"]) for row in counts]):
                yield from _keys(frame.where(f.col("ingest_hour").between(first, last)).toArrow())

    def stored(
        self, keys: Collection[bytes], first: float | None, last: float | None
    ) -> set[bytes]:
        """See `RawTable`."""
        if not keys or self.next_seq == 0:
            return set()
        with self._errors("cannot be read"):
            rows = self._rows()
            if first is not None:
                rows = rows.where(f.col("ingest_hour") >= hour_of(first))
            if last is not None:
                rows = rows.where(f.col("ingest_hour") <= hour_of(last))
            return keys_among(self._spark, rows, keys)

    def _try_commit(self, rows: pa.Table | None, state: State, failed: str) -> None:
        try:
            self._commit(rows, state)
        except (Conflict, *SPARK_ERRORS, pa.ArrowException) as error:
            self._look_for_another(error)
            raise WriteError(
                f"{failed} to {self.place}, and none of it is acked: {first_line(error)}"
            ) from error

    def _check_vacant(self) -> None:
        """Make sure that a table that is going to be made has its place to itself."""
        if self.place.local is not None or self.place.in_catalog:
            return  # looked at before, or the catalog's business
        jvm: Any = self._spark._jvm
        with self._errors("cannot be read"):
            path = jvm.org.apache.hadoop.fs.Path(self.place.address)
            conf = self._spark._jsparkSession.sessionState().newHadoopConf()
            files = path.getFileSystem(conf)
            entries = files.listStatus(path) if files.exists(path) else []
            names = [str(entry.getPath().getName()) for entry in entries]
        foreign = sorted(name for name in names if not name.startswith(("_", ".")))
        if foreign:
            raise ConfigurationError(
                f"{self.place} is not empty and not a table of sfpubsub (it holds {foreign[0]!r}): "
                f"name another destination"
            )

    def _look_for_another(self, cause: Exception) -> None:
        try:
            found = self._load()
        except (*SPARK_ERRORS, ConfigurationError):
            return  # the cause says more
        if found is not None and found.writer != self._writer:
            raise self._taken_over(found) from cause

    def _taken_over(self, found: State) -> WriteError:
        return WriteError(
            f"{self.place} has been taken over by another writer ({found.writer[:8]}); this one "
            f"({self._writer[:8]}) can write no more, and nothing that is not written is acked: "
            f"run one job a table"
        )

    @contextmanager
    def _active_session(self) -> Iterator[None]:
        """Make ours the thread's session: some of what the formats do looks for it there."""
        jvm: Any = self._spark._jvm
        sessions = jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(self._spark._jsparkSession)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (*SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{self.place} {what}: {first_line(error)}") from error

    def _commit(self, rows: pa.Table | None, state: State) -> None:
        """Commit, make sure that it is in the table, and take *state* for the known one."""
        empty = rows is None
        with frame_of(
            self._spark,
            _CREATED.empty_table() if rows is None else rows,
            scratch=self._scratch(),
        ) as frame:
            self._write(frame, state, empty=empty)
        if self.place.local is not None:
            # Spark flushes nothing, and what is acked must outlive a loss of power. Which files
            # are new only the format knows, so everything that waits for the disk goes to it.
            os.sync()
        self._state = state

    def _scratch(self) -> Path | None:
        if self.place.local is None:
            return None
        scratch = self.place.local / STAGING_NAME
        scratch.mkdir(exist_ok=True)
        return scratch

    def _from_rows(self, known: State) -> State:
        """Return the state as the rows tell it, for a log that has lost or undone ours.

        A position is that of the source's last row, which is no later than the lost one: what
        comes again is in the window.

        Args:
            known: What still holds: whose table it is, who wrote last, and the highest number.
        """
        rows = self._rows().orderBy(f.col("ingest_seq").desc())
        found = rows.select("ingest_seq", "ingest_hour").limit(1).collect()
        state = replace(
            State.first(known.sources, known.writer),
            number=known.number,
            application=known.application,
        )
        if not found:
            return state
        (row,) = found
        keeping = [source.name for source in known.sources if source.keeps_position]
        positions = {}
        if keeping:
            # Redriven rows, and those of a query, may be others' or without a position.
            own = f.col("subscription").isin(keeping) & f.col("replay_id").isNotNull()
            last = f.max_by("replay_id", "ingest_seq")
            ids = rows.where(own).groupBy("subscription").agg(last).collect()
            positions = {name: ReplayId(bytes(place)) for name, place in ids}
        return replace(
            state,
            next_seq=row["ingest_seq"] + 1,
            positions=positions,
            time=hour_start(row["ingest_hour"]),
        )

    @abstractmethod
    def _load(self) -> State | None:
        """Return the newest state; None if there is no table.

        Raises:
            ConfigurationError: The table is not ours.
        """

    @abstractmethod
    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        """Commit the rows with their state, on top of the known one or the one just loaded.

        Makes the table if there is none. Returns when the transaction is known to be in the table.

        Args:
            frame: With the table's columns.
            state: What the transaction carries.
            empty: Whether the frame has no rows.

        Raises:
            Conflict: Another transaction of ours, or of another writer, came in between.
        """

    @abstractmethod
    def _rows(self) -> DataFrame:
        """Return the table as it is now."""


def _spans(counts: list[tuple[str, int]]) -> Iterator[tuple[str, str]]:
    """Divide hours, in their order, into spans that the driver can hold."""
    start, total = 0, 0
    for index, (_, count) in enumerate(counts):
        if total and total + count > _KEYS_AT_ONCE:
            yield counts[start][0], counts[index - 1][0]
            start, total = index, 0
        total += count
    if counts:
        yield counts[start][0], counts[-1][0]


def _keys(rows: pa.Table) -> Iterator[tuple[float, bytes]]:
    """Yield the keys of each hour, in the order of hours."""
    for hour in sorted(pc.unique(rows["ingest_hour"]).to_pylist()):
        keys = rows.filter(pc.equal(rows["ingest_hour"], hour))["dedupe_key"]
        yield hour_start(hour) + HOUR_SECONDS, joined_keys(keys)
