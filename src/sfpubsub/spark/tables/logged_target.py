"""The common part of Delta and Iceberg targets: locking, listing tables, and the session.

On a local path, a lease (raw/lease.py) excludes other processes, as for a raw table. At a URL or in
a catalog, there is no lease: a process detects another writer when a table is not at the step
(steps.py) that the process expects.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.durable import make_directory
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import FormatError
from sfpubsub.spark.formats.delta import DeltaStore
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.iceberg import Busy, Iceberg
from sfpubsub.spark.formats.target import FACTS, LAST, Target, TargetTable
from sfpubsub.spark.raw.flushing import Flusher
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.listing import paths_of_files
from sfpubsub.spark.runtime.checks import check_file_system
from sfpubsub.spark.runtime.session import (
    SPARK_ERRORS,
    driver_at,
    first_line,
    own_session,
)
from sfpubsub.spark.runtime.sql import quoted

# Key of the number of a change in its note.
NUMBER = "sfpubsub.change"

# How far the numbers of two steps are apart.
_PARTS = LAST + 1

# Settings for the Parquet files that Spark writes: store times as `target.parquet_of` does, and
# omit the minimum and maximum of the same columns.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "parquet.column.statistics.enabled#replay_id": "false",
    "parquet.column.statistics.enabled#dedupe_key": "false",
}


# Pattern of files that every table of a format has, and that Spark lists.
_LOGS = {"delta": "_delta_log/*.json", "iceberg": "metadata/version-hint.text"}


class LoggedTarget(Target):
    """A target for Delta or Iceberg tables. See `Target`.

    Args:
        spark: Any Spark session; the target uses a new session of the same driver.
        place: Location of the tables; a missing local directory is created.
        settings: Session settings that the format needs.

    Raises:
        ConfigurationError: Another process is writing there, the directory cannot be created, or
            Spark does not support the file system.
    """

    def __init__(
        self, spark: SparkSession, place: Destination, settings: Mapping[str, str]
    ) -> None:
        if place.local is None and not place.in_catalog:
            check_file_system(spark, place.address)
        super().__init__(own_session(spark, {**_SETTINGS, **settings}), place)
        self._tables: dict[str, TargetTable] = {}
        self._lock = RLock()
        """Guards the opened tables, and the session's settings while they are changed."""
        self._lease: Lease | None = None
        self._flusher: Flusher | None = None
        if place.local is not None:
            self._flusher = Flusher(place.format, place.local)
            try:
                make_directory(place.local)
            except OSError as error:
                raise ConfigurationError(
                    f"{place} cannot be created ({error.strerror}): choose another directory"
                ) from error
            self._lease = Lease.acquire(place.local, driver_at(spark, place.local).pid)

    def table(self, name: str) -> TargetTable:
        """See `Target`."""
        with self._lock:
            if name not in self._tables:
                self._tables[name] = self._open(name)
            return self._tables[name]

    def names(self) -> list[str]:
        """See `Target`."""
        try:
            return sorted(name for name in self._listed() if self._is_ours(name))
        except SPARK_ERRORS as error:
            raise WriteError(f"{self.place} cannot be listed: {first_line(error)}") from error

    def finish(self, step: int) -> None:
        """See `Target`. Flush local files; elsewhere, each transaction is already durable."""
        if self._flusher is None:
            return
        try:
            self._flusher.flush(self._directories())
        except OSError as error:
            raise WriteError(
                f"step {step} of {self.place} was not flushed to the disk ({error}): fix the "
                f"problem and restart to complete the step"
            ) from error

    def close(self) -> None:
        """See `Target`."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @contextmanager
    def settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Set session settings within the block, and unset them afterwards. Thread-safe.

        Other threads that change settings wait.
        """
        with self._lock:
            try:
                for name, value in settings.items():
                    self.spark.conf.set(name, value)
                yield
            finally:
                for name in settings:
                    self.spark.conf.unset(name)

    @abstractmethod
    def _open(self, name: str) -> TargetTable:
        """Return a new object for the table *name*, which need not exist."""

    def _is_ours(self, name: str) -> bool:
        try:
            return self.table(name).exists()
        except ConfigurationError:
            return False

    def _directories(self) -> list[Path]:
        """Return the directories in a local target, which may be tables."""
        local = self.place.local
        return [] if local is None else [Path(each) for each in os.scandir(local) if each.is_dir()]

    def _listed(self) -> list[str]:
        if self.place.in_catalog:
            rows = self.spark.sql(f"SHOW TABLES IN {self.place.in_sql}").collect()
            return [str(row["tableName"]) for row in rows]
        if self.place.local is not None:
            return [entry.name for entry in self._directories()]
        url = self.place.address
        found = paths_of_files(self.spark, f"{url}/*/{_LOGS[self.place.format]}")
        return list({path.removeprefix(url).lstrip("/").partition("/")[0] for path in found})


class LoggedTargetTable(TargetTable):
    """One Delta or Iceberg table. See `TargetTable`.

    A change has one number, which grows with the step and its part.

    Args:
        target: The target.
        name: Name of the table.
        store: The table.
        in_sql: The table's name in SQL, in `Target.spark`.
    """

    def __init__(
        self, target: LoggedTarget, name: str, store: DeltaStore | Iceberg, in_sql: str
    ) -> None:
        super().__init__(name)
        self._target = target
        self._spark = target.spark
        self._address = target.place.of(name)
        self._in_sql = in_sql
        self._store = store
        self._exists = False

    def exists(self) -> bool:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if not self._exists and self._store.exists():
                if FACTS not in self._store.properties():
                    raise ConfigurationError(
                        f"{self._address} is a table that sfpubsub did not create: choose another "
                        f"target"
                    )
                self._exists = True
        return self._exists

    def newest(self) -> tuple[int, int]:
        """See `TargetTable`."""
        number = self._number() if self.exists() else 0
        return divmod(number, _PARTS) if number else (0, LAST)

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self._store.properties()[FACTS]))

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return list(self._store.columns().fieldNames())

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`."""
        there = self.exists()
        # Hold the lock of the settings, because these commits would otherwise use the number that
        # another thread may have set for its table.
        with self._errors("cannot be created"), self._target.settings({}):
            if not there:
                self._create(columns, json.dumps(dict(facts or {})), merged=merged)
                self._exists = True
                return
            self._widen(spark_schema(columns))
            text = json.dumps(dict(facts or {}))
            if facts is not None and self._store.properties()[FACTS] != text:
                self._store.set({FACTS: text})

    def append(self, files: Sequence[bytes], step: int, part: int = LAST) -> bool:
        """See `TargetTable`."""
        with self._errors("was not written"):
            rows = [pq.read_table(io.BytesIO(file)) for file in files]
            return self._append(rows, _number_of(step, part))

    def merge(
        self,
        source: DataFrame,
        on: str,
        step: int,
        part: int = LAST,
        *,
        replaced: Mapping[str, str] | None = None,
        added: str | None = None,
    ) -> None:
        """See `TargetTable`."""
        replaced = replaced or {name: quoted("s", name) for name in source.columns}
        new = ", ".join(f"{quoted('t', name)} = {value}" for name, value in replaced.items())
        columns = ", ".join(map(quoted, source.columns))
        values = ", ".join(quoted("s", name) for name in source.columns)
        only = "" if added is None else f" AND {added}"
        with self._errors("was not changed"), self._named(source) as name:
            self._change(
                f"MERGE INTO {self._in_sql} t USING {name} s ON {on} "  # noqa: S608
                f"WHEN MATCHED THEN UPDATE SET {new} "
                f"WHEN NOT MATCHED{only} THEN INSERT ({columns}) VALUES ({values})",
                _number_of(step, part),
            )

    def insert(self, source: DataFrame, step: int, part: int = LAST) -> None:
        """See `TargetTable`."""
        with self._errors("was not written"):
            self._insert(source, _number_of(step, part))

    def delete(self, condition: str, step: int, part: int = LAST) -> None:
        """See `TargetTable`."""
        with self._errors("was not changed"):
            self._change(self._deletion(condition), _number_of(step, part))

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            return self._read()

    @abstractmethod
    def _number(self) -> int:
        """Return the number of the newest change; 0 if there is none."""

    @abstractmethod
    def _create(self, columns: pa.Schema, facts: str, *, merged: bool) -> None:
        """Create the table with columns and facts."""

    @abstractmethod
    def _widen(self, columns: StructType) -> None:
        """Add columns, and fields at every depth, that the table lacks."""

    @abstractmethod
    def _append(self, rows: Sequence[pa.Table], number: int) -> bool:
        """Append rows as a change; return whether this call has made it."""

    @abstractmethod
    def _insert(self, source: DataFrame, number: int) -> None:
        """Append the rows of a DataFrame as a change."""

    @abstractmethod
    def _change(self, statement: str, number: int) -> None:
        """Execute a statement as a change."""

    @abstractmethod
    def _deletion(self, condition: str) -> str:
        """Return the statement that removes the rows for which a condition is true."""

    @abstractmethod
    def _read(self) -> DataFrame:
        """Return the table's rows."""

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FormatError, Busy, *SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{self._address} {what}: {first_line(error)}") from error

    @contextmanager
    def _named(self, rows: DataFrame) -> Iterator[str]:
        """Register a DataFrame as a temporary view, and yield the name of the view."""
        name = f"rows_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)


def _number_of(step: int, part: int) -> int:
    return _PARTS * step + part


def step_of(number: int) -> int:
    """Return the step of a change, for messages."""
    return number // _PARTS


def note_of(number: int) -> str:
    """Return the note of a change; each attempt has another one."""
    return json.dumps({NUMBER: number, "attempt": uuid.uuid4().hex})


def number_in(note: str | None) -> int | None:
    """Return the number of a change from its note; None if another program has made it."""
    try:
        return int(json.loads(note or "null")[NUMBER])
    except (ValueError, KeyError, TypeError):
        return None
