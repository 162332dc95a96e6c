"""The interface of one table in a format with a log, and the sessions in which tables are changed.

Everything that a table must keep apart from its rows goes into its log: each of our changes has a
*number*, and a *note*, a text that contains the number and is unique to the attempt. A table
accepts each number once. So of two writers that make the same change, one loses, and a change that
is repeated after a crash is not made twice. The newest note outlives the format's own cleaning, as
far as the format allows (`Told`).

Raw tables (raw/logged.py) and derived tables (target.py) use the same stores. This module does not
depend on events.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import ModuleType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import frame_of
from sfpubsub.spark.runtime.runtimes import delta_settings
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.spark.runtime.sql import quoted

UNORDERED = ("replay_id", "dedupe_key")
"""Columns whose values have no meaningful order, so that files have no minimum and maximum."""

# Settings for the Parquet files that Spark writes: store times as `target.parquet_of` does, and
# omit the minimum and maximum of the same columns.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in UNORDERED},
}


class Sessions:
    """The sessions in which tables of one location are changed. Thread-safe.

    Both are ours, so what we set there never changes what the caller's own session writes.

    Args:
        spark: Any session of the driver.
        place: The location.
    """

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self._given = spark
        self._settings = dict(_SETTINGS)
        if place.format == "delta":
            self._settings |= delta_settings(local=place.local is not None)
        self._lock = RLock()

    @cached_property
    def plain(self) -> SparkSession:
        """A session for what several threads may do at once: its settings never change."""
        return own_session(self._given, self._settings)

    @cached_property
    def changing(self) -> SparkSession:
        """The session for statements, whose numbers and notes are settings. See `settings`."""
        return own_session(self._given, self._settings)

    @contextmanager
    def settings(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """Yield `changing` with some settings, and unset them afterwards. Other threads wait."""
        with self._lock:
            try:
                for name, value in settings.items():
                    self.changing.conf.set(name, value)
                yield self.changing
            finally:
                for name in settings:
                    self.changing.conf.unset(name)


@dataclass(frozen=True)
class Notes:
    """What one kind of table writes into its notes."""

    application: str
    """Application id under which Delta keeps the numbers."""
    key: str
    """A text that each note contains: in Iceberg, the name of the property with the note."""
    number_of: Callable[[str | None], int | None]
    """Returns the number in a note; None if the note is not ours."""


# A table is compacted from this number of files on, if they are smaller than this on average. A
# reader opens a file in some milliseconds, and reads 32 MiB in about a second.
MOST_FILES = 20
SMALL_BYTES = 32 * 1024 * 1024

# A compaction leaves files from this size on as they are, and writes none that are larger than
# this. So a table that is compacted again and again is not rewritten as a whole each time.
DONE_BYTES = 4 * SMALL_BYTES
LARGE_BYTES = 2 * DONE_BYTES


@dataclass(frozen=True)
class Files:
    """The live files with a table's rows."""

    count: int
    size: int
    """Their total size in bytes."""

    @property
    def are_many_and_small(self) -> bool:
        """Whether they are worth rewriting as fewer, larger ones."""
        return self.count >= MOST_FILES and self.size < self.count * SMALL_BYTES


@dataclass(frozen=True)
class Told:
    """What a table's log tells of our changes."""

    note: str | None
    """The newest of our notes; None if the log has none."""
    number: int | None
    """The highest number that the table has had; 0 if none. None if it is not known: Delta removes
    commits from its log after 30 days.
    """
    is_restored: bool = False
    """Whether the table was restored to before that change."""
    is_certain: bool = True
    """Whether there is certainly no later change: False if the snapshots that would tell have
    expired.
    """


class TableStore(ABC):
    """One table, which need not exist. Not thread-safe; different tables may be used at once.

    Every change returns whether this call has made it; False if the table has the number, or a
    higher one, already.

    Args:
        sessions: The sessions for the table's location.
        place: The table.
        notes: What our notes contain.
        scratch: Directory for temporary files with rows; the system's default if None.
    """

    def __init__(
        self,
        sessions: Sessions,
        place: Destination,
        notes: Notes,
        scratch: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._place = place
        self._notes = notes
        self._scratch = scratch

    def in_sql(self, spark: SparkSession) -> str:
        """Return the name of the table in SQL of a session of ours."""
        return name_in_sql(spark, self._place)

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the table exists.

        Raises:
            ConfigurationError: The catalog's table has another format.
        """

    @abstractmethod
    def identity(self) -> str:
        """Return the id of the table, which it keeps if it is moved."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """Return the table's properties."""

    @abstractmethod
    def set(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""

    @abstractmethod
    def create(
        self,
        columns: StructType,
        properties: Mapping[str, str],
        *,
        partition: str | None = None,
        merged: bool = False,
    ) -> None:
        """Create the table, unless it exists.

        Args:
            columns: Its columns, with comments.
            properties: Its properties.
            partition: Name of the column by which it is partitioned. Then its directory may contain
                other files.
            merged: Whether rows will be replaced: if so, they are marked as deleted instead of
                rewriting their files.
        """

    def columns(self) -> StructType:
        """Return the table's columns."""
        return self.read().schema

    def adopt(self) -> None:  # noqa: B027  # only some formats have something to do
        """Prepare a table that another program has created, before its first change."""

    @abstractmethod
    def widen(self, columns: StructType) -> None:
        """Add the columns, and the fields at every depth, that the table lacks."""

    @abstractmethod
    def read(self, spark: SparkSession | None = None, version: str | None = None) -> DataFrame:
        """Return the table's rows.

        Args:
            spark: The session of the DataFrame; by default `Sessions.plain`.
            version: Version of the table; the newest by default.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the current version, of any writer."""

    @abstractmethod
    def is_restored_since(self, version: str) -> bool:
        """Return whether the table was restored to before *version*.

        What the log no longer tells is not noticed.
        """

    @abstractmethod
    def files(self) -> Files:
        """Return the number and size of the files that a reader of the whole table opens."""

    @abstractmethod
    def compact(self, where: str | None = None) -> None:
        """Write the rows of files below `DONE_BYTES` into larger ones; the rows stay the same.

        Our own changes must rest meanwhile, except for appends to other partitions.

        Args:
            where: SQL condition over the partition column; None for the whole table.
        """

    @abstractmethod
    def expire(self, age: float) -> None:
        """Remove files that only versions need which are older than an *age* in seconds."""

    @abstractmethod
    def number(self) -> int | None:
        """Return the number of the newest change; 0 if there is none, None as in `Told.number`.

        Raises:
            WriteError: It is not known whether a change that was killed has been made.
        """

    @abstractmethod
    def told(self) -> Told:
        """Return what the log tells of our changes."""

    @abstractmethod
    def append(
        self, rows: pa.Table | None, number: int, note: str, *, after: int | None = None
    ) -> bool:
        """Append rows as a change. Columns that *rows* lacks are null.

        Args:
            rows: Rows whose columns match the table's by name and type; None for none.
            number: Number of the change.
            note: Note of the change.
            after: Number of the change on which this one builds: nothing is appended if the table
                was restored to before it. None if that does not matter.

        Raises:
            Conflict: Another writer came first.
            FormatError: The rows do not fit the table.
        """

    @abstractmethod
    def insert(self, rows: DataFrame, number: int, note: str) -> bool:
        """Append the rows of a DataFrame of `Sessions.changing` as a change; see `append`."""

    @abstractmethod
    def delete(self, condition: str, number: int, note: str) -> bool:
        """Remove the rows for which an SQL condition is true, as a change."""

    def merge(
        self,
        rows: DataFrame,
        on: str,
        number: int,
        note: str,
        *,
        replaced: Mapping[str, str] | None = None,
        added: str | None = None,
    ) -> bool:
        """Replace matching rows, and add the others, as a change.

        Args:
            rows: A DataFrame of `Sessions.changing`, named ``s`` in SQL.
            on: SQL condition that a row of it matches a row ``t`` of the table.
            number: Number of the change.
            note: Note of the change.
            replaced: Columns to update, with their new values in SQL; None copies all columns.
            added: SQL condition for the rows to add; None adds all that do not match.
        """
        replaced = replaced or {name: quoted("s", name) for name in rows.columns}
        new = ", ".join(f"{quoted('t', name)} = {value}" for name, value in replaced.items())
        columns = ", ".join(map(quoted, rows.columns))
        values = ", ".join(quoted("s", name) for name in rows.columns)
        only = "" if added is None else f" AND {added}"
        with self._named(rows) as name:
            return self._change(
                f"MERGE INTO {self.in_sql(self._sessions.changing)} t "  # noqa: S608
                f"USING {name} s ON {on} "
                f"WHEN MATCHED THEN UPDATE SET {new} "
                f"WHEN NOT MATCHED{only} THEN INSERT ({columns}) VALUES ({values})",
                number,
                note,
            )

    @abstractmethod
    def _change(self, statement: str, number: int, note: str) -> bool:
        """Execute a statement in `Sessions.changing` as a change."""

    @contextmanager
    def _named(self, rows: DataFrame) -> Iterator[str]:
        """Register a DataFrame as a temporary view, and yield the name of the view."""
        name = f"rows_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._sessions.changing.catalog.dropTempView(name)

    def _frame(self, rows: pa.Table) -> AbstractContextManager[DataFrame]:
        """Return rows as a DataFrame of `Sessions.plain`, valid within a ``with`` block."""
        return frame_of(self._sessions.plain, rows, scratch=self._scratch())


def open_store(
    sessions: Sessions,
    place: Destination,
    notes: Notes,
    scratch: Callable[[], Path | None] = lambda: None,
) -> TableStore:
    """Return the store of a table; see `TableStore` for the arguments."""
    store: TableStore = _module(place).store_of(sessions, place, notes, scratch)
    return store


def name_in_sql(spark: SparkSession, place: Destination) -> str:
    """Return the name of a table in SQL of a session of ours."""
    return quoted(*_module(place).path_of(spark, place))


def _module(place: Destination) -> ModuleType:
    return import_module(f"sfpubsub.spark.formats.{place.format}")
