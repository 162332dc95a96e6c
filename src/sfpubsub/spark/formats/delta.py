"""One Delta table: its properties and commits, and appends that are made once.

Only documented interfaces are used: Spark's SQL and DataFrame writer, and the library delta-rs
(`deltalake`). Each of our commits has a *number*, Delta's ``txnVersion`` for our application id,
and a *note*, its ``userMetadata``. A table accepts each number once: if it already has the same or
a higher one, nothing is committed. Spark says nothing of that, so a commit is looked up by its
note. Of two commits at the same time, Delta rejects one.

Spark needs a job of about 0.4 s for an append with a number, delta-rs needs 10 ms. So delta-rs is
used for tables on a local disk whose features it keeps. The environment variable
``SFPUBSUB_DELTALAKE=0`` switches it off. Both read and write the same log.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import Conflict, FormatError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import column_definitions
from sfpubsub.spark.formats.store import (
    DONE_BYTES,
    LARGE_BYTES,
    UNORDERED,
    Files,
    Notes,
    Sessions,
    TableStore,
    Told,
)
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.runtime.sql import pairs_in_sql, quoted

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("sfpubsub.spark")

# Session settings for the application id, number and note of a statement.
APPLICATION_SETTING = "spark.databricks.delta.write.txnAppId"
NUMBER_SETTING = "spark.databricks.delta.write.txnVersion"
NOTE_SETTING = "spark.databricks.delta.commitInfo.userMetadata"

# Number of commits that are read from the log first, and by how much more at each further attempt.
# The newest ones are almost always ours.
_COMMITS, _MORE = 8, 16

# Table features that an append by delta-rs keeps: it was seen to check constraints, and to leave
# deleted rows deleted. Spark appends to a table with any other feature.
_KEPT = {"appendOnly", "invariants", "checkConstraints", "deletionVectors"}

# Table property after whose duration Delta forgets our numbers. Spark's writer knows how.
_RETENTION = "delta.setTransactionRetentionDuration"

# Table property: how long VACUUM keeps old files; and its default.
_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_WEEK = "interval 168 hours"

# The highest writer version of which these are all features.
_KEPT_VERSION = 3

# Paths that delta-rs can open; it crashes if a name has other characters, such as brackets.
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)

_SWITCH = "SFPUBSUB_DELTALAKE"

# Columns, mostly of times, whose minimum and maximum in each file are stored, so that readers can
# skip files. By default, Delta stores them for the first 32 columns, which include replay ids.
_BOUNDED = (
    "record_id",
    "step",
    "event_time",
    "received_at",
    "ingest_seq",
    "commit_timestamp",
    "batch",
    "_piece",
)

# Commits between checkpoints of the log, each of which costs Spark six jobs. Delta's default of 10
# is too frequent for tables with a small commit every few seconds. A new reader reads at most this
# many small log files.
_CHECKPOINT_COMMITS = 50


class Commit(NamedTuple):
    """One commit in a table's log."""

    version: int
    operation: str
    note: str | None


class DeltaStore(TableStore):
    """A Delta table, by means of Spark. See `TableStore`."""

    @property
    def _path(self) -> str:
        """Path or URL of a table that is not in a catalog."""
        return path_of(self._spark, self._place)[1]

    @property
    def _spark(self) -> SparkSession:
        return self._sessions.plain

    @property
    def _name(self) -> str:
        return self.in_sql(self._spark)

    def exists(self) -> bool:
        """See `TableStore`."""
        in_catalog = self._place.in_catalog
        if in_catalog and not self._spark.catalog.tableExists(self._name):
            return False
        try:
            found = self._detail()
        except AnalysisException as error:
            if not in_catalog and "DELTA_MISSING_DELTA_TABLE" in str(error):
                return False
            raise ConfigurationError(
                f"{self._name} is not a table of format delta: {first_line(error)}"
            ) from error
        if found["format"] != "delta":
            raise ConfigurationError(
                f"{self._name} is a table of format {found['format']}: choose another "
                f"destination, or write in the table's format"
            )
        return True

    def identity(self) -> str:
        """See `TableStore`. It is the id that Delta gave to the table."""
        return str(self._detail()["id"])

    def properties(self) -> dict[str, str]:
        """See `TableStore`."""
        return dict(self._detail()["properties"])

    def version(self) -> str:
        """See `TableStore`. It is the number of the newest commit."""
        return str(self._history(1)[0].version)

    def is_restored_since(self, version: str) -> bool:
        """See `TableStore`. The log is deleted after 30 days (``delta.logRetentionDuration``)."""
        newer = takewhile(lambda each: each.version > int(version), self.commits())
        return any(each.operation == "RESTORE" for each in newer)

    def commits(self) -> Iterator[Commit]:
        """Yield the commits that the log still has, newest first."""
        count, last = _COMMITS, None
        while True:
            found = self._history(count)
            for commit in found:
                if last is None or commit.version < last:
                    yield commit
                    last = commit.version
            if len(found) < count:
                return
            count *= _MORE

    def number(self) -> int | None:
        """See `TableStore`."""
        return self.told().number

    def told(self) -> Told:
        """See `TableStore`."""
        is_restored, version = False, 0
        for commit in self.commits():
            found = self._notes.number_of(commit.note)
            if found is not None:
                return Told(commit.note, found, is_restored)
            is_restored = is_restored or commit.operation == "RESTORE"
            version = commit.version
        return Told(None, 0 if version == 0 else None)

    def _has(self, number: int, note: str) -> bool:
        """Return whether the commit with this number and note is in the table's log."""
        for commit in self.commits():
            if commit.note == note:
                return True
            if (self._notes.number_of(commit.note) or number + 1) <= number:
                return False
        return False

    def append(
        self, rows: pa.Table | None, number: int, note: str, *, after: int | None = None
    ) -> bool:
        """See `TableStore`."""
        if after is not None and self.told().is_restored:
            return False
        if rows is None:
            self._save(self._numbered(self.read().limit(0), number, note))
        else:
            with self._frame(rows) as frame:
                self._save(self._numbered(frame, number, note))
        return self._has(number, note)

    def insert(self, rows: DataFrame, number: int, note: str) -> bool:
        """See `TableStore`."""
        # A compaction that Delta adds to the commit takes its note from the session, in which
        # another thread may have set that of another table.
        with self._sessions.settings({NOTE_SETTING: note}):
            self._save(self._numbered(rows, number, note))
        return self._is_made(number, note)

    def delete(self, condition: str, number: int, note: str) -> bool:
        """See `TableStore`."""
        return self._change(f"DELETE FROM {self._name} WHERE {condition}", number, note)  # noqa: S608

    def _change(self, statement: str, number: int, note: str) -> bool:
        settings = {
            APPLICATION_SETTING: self._notes.application,
            NUMBER_SETTING: str(number),
            NOTE_SETTING: note,
        }
        with self._sessions.settings(settings) as spark, _conflicts():
            spark.sql(statement)
        return self._is_made(number, note)

    def _is_made(self, number: int, note: str) -> bool:
        """Return whether a change is in the log; record it if it had nothing to do.

        Delta makes no commit for such a change.
        """
        return self._has(number, note) or self.append(None, number, note)

    def create(
        self,
        columns: StructType,
        properties: Mapping[str, str],
        *,
        partition: str | None = None,
        merged: bool = False,
    ) -> None:
        """See `TableStore`."""
        given = {
            "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
            "delta.dataSkippingStatsColumns": ",".join(
                name for name in _BOUNDED if name in columns.names
            ),
            **({"delta.enableDeletionVectors": "true"} if merged else {}),
            **properties,
        }
        if partition is not None and not self._place.in_catalog:
            # SQL cannot create a table in a directory that has other files.
            of_delta = {key: text for key, text in given.items() if key.startswith("delta.")}
            nothing = frame_of_rows(self._spark, [], columns)
            writer = nothing.write.format("delta").mode("append").options(**of_delta)
            self._save(writer.partitionBy(partition))
            others = {key: text for key, text in given.items() if key not in of_delta}
            if others:
                self.set(others)
            return
        partitioned = "" if partition is None else f"PARTITIONED BY ({quoted(partition)}) "
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({column_definitions(columns)}) "
            f"USING delta {partitioned}TBLPROPERTIES ({pairs_in_sql(given)})"
        )

    def set(self, properties: Mapping[str, str]) -> None:
        """See `TableStore`."""
        self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({pairs_in_sql(properties)})")

    def widen(self, columns: StructType) -> None:
        """See `TableStore`."""
        if _lacking(self.columns().jsonValue(), columns.jsonValue()):
            nothing = frame_of_rows(self._spark, [], columns)
            writer = nothing.write.format("delta").mode("append")
            self._save(writer.option("mergeSchema", "true"))

    def files(self) -> Files:
        """See `TableStore`."""
        found = self._detail()
        return Files(int(found["numFiles"]), int(found["sizeInBytes"]))

    def compact(self, where: str | None = None) -> None:
        """See `TableStore`."""
        only = "" if where is None else f" WHERE {where}"
        sizes = {
            "spark.databricks.delta.optimize.minFileSize": str(DONE_BYTES),
            "spark.databricks.delta.optimize.maxFileSize": str(LARGE_BYTES),
        }
        with self._sessions.settings(sizes) as spark:
            spark.sql(f"OPTIMIZE {self.in_sql(spark)}{only}")

    def expire(self, age: float) -> None:
        """See `TableStore`.

        Newer versions of Delta ignore VACUUM's clause RETAIN; all use the table's property.
        """
        wanted = f"interval {math.ceil(age / 3600)} hours"
        if self.properties().get(_FILE_RETENTION, _WEEK) != wanted:
            self.set({_FILE_RETENTION: wanted})
        self._spark.sql(f"VACUUM {self._name}")

    def read(self, spark: SparkSession | None = None, version: str | None = None) -> DataFrame:
        """See `TableStore`."""
        reader = (spark or self._spark).read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        if self._place.in_catalog:
            return reader.table(self._name)
        return reader.load(self._path)

    def _numbered(self, rows: DataFrame, number: int, note: str) -> DataFrameWriter:
        # A number that the table already has, or a higher one, makes Delta write nothing.
        numbered = {
            "userMetadata": note,
            "txnAppId": self._notes.application,
            "txnVersion": str(number),
        }
        return rows.write.format("delta").mode("append").options(**numbered)

    def _save(self, writer: DataFrameWriter) -> None:
        with _conflicts():
            if self._place.in_catalog:
                writer.saveAsTable(self._name)
            else:
                writer.save(self._path)

    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {self._name}").collect()[0]

    def _history(self, count: int) -> list[Commit]:
        """Return up to *count* commits, newest first."""
        found = self._spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT {count}")
        rows = found.select("version", "operation", "userMetadata").collect()
        return [Commit(*row) for row in rows]


class LocalDeltaStore(DeltaStore):
    """A Delta table on a local disk, by means of delta-rs. See `TableStore`.

    If the table has features that delta-rs does not keep, all calls go to Spark.
    """

    _loaded: DeltaTable | None = None
    _last: tuple[int, str] | None = None
    """Version and note of the newest commit by this object."""

    def exists(self) -> bool:
        """See `TableStore`."""
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self._path))

    def identity(self) -> str:
        """See `TableStore`."""
        found = self._kept()
        return super().identity() if found is None else str(found.metadata().id)

    def properties(self) -> dict[str, str]:
        """See `TableStore`."""
        found = self._kept()
        return super().properties() if found is None else dict(found.metadata().configuration)

    def columns(self) -> StructType:
        """See `TableStore`."""
        found = self._kept()
        if found is None:
            return super().columns()
        return StructType.fromJson(json.loads(found.schema().to_json()))

    def version(self) -> str:
        """See `TableStore`."""
        found = self._kept()
        return super().version() if found is None else str(found.version())

    def number(self) -> int | None:
        """See `TableStore`. It is always known, because the log keeps it for ever."""
        found = self._kept()
        return super().number() if found is None else self._number_in(found)

    def told(self) -> Told:
        """See `TableStore`."""
        told = super().told()
        return told if told.note is not None else replace(told, number=self.number())

    def append(
        self, rows: pa.Table | None, number: int, note: str, *, after: int | None = None
    ) -> bool:
        """See `TableStore`."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        found = self._kept()
        if found is None:
            return super().append(rows, number, note, after=after)
        if self._number_in(found) >= number:
            return False
        if self._check_kept(found) and after is not None:
            return False
        # delta-rs does not check the number. But if another commit has changed it since *found* was
        # loaded, this one fails.
        try:
            write_deltalake(
                found,
                _fitted(rows, pa.schema(found.schema().to_arrow())),
                mode="append",
                schema_mode="merge",  # columns may be missing
                writer_properties=_writer_properties(found.schema().to_arrow().names),
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": note},
                    app_transactions=[Transaction(self._notes.application, number, _now())],
                ),
            )
        except CommitFailedError as error:
            self._loaded = None
            raise Conflict(str(error)) from error
        except FormatError:
            raise
        except Exception as error:  # delta-rs raises a bare one if it cannot cast
            self._loaded = None
            raise FormatError(f"{type(error).__name__}: {error}") from error
        self._last = int(found.version()), note
        self._check_kept(found)
        return True

    def _check_kept(self, table: DeltaTable) -> bool:
        """Check that the newest commit by this object is in the log.

        On a local disk, Spark makes a commit by a rename that replaces what delta-rs has written
        under the same number in between. So a commit is read back, at once and before the next.

        Returns:
            Whether the table was restored since.

        Raises:
            Conflict: The commit is gone.
        """
        if self._last is None:
            return False
        version, note = self._last
        is_restored = False
        for commit in self._history_of(table, table.version() - version + 1):
            is_restored = is_restored or (
                commit.version > version and commit.operation == "RESTORE"
            )
            if commit.version == version and commit.note != note:
                self._last = self._loaded = None
                raise Conflict(
                    f"another program has replaced version {version} of the table's log while it "
                    f"was written: its rows are lost; change the table only while the job rests"
                )
        return is_restored

    def _history(self, count: int) -> list[Commit]:
        found = self._kept()
        return super()._history(count) if found is None else self._history_of(found, count)

    def _history_of(self, table: DeltaTable, count: int) -> list[Commit]:
        return [
            Commit(each["version"], each.get("operation", ""), each.get("userMetadata"))
            for each in table.history(count)
        ]

    def _number_in(self, table: DeltaTable) -> int:
        return table.transaction_version(self._notes.application) or 0

    def _kept(self) -> DeltaTable | None:
        """Return the newest version of the table; None if delta-rs does not keep its features.

        Also None if delta-rs cannot read it: then Spark does, or says why not.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if self._loaded is None:
                self._loaded = DeltaTable(self._path)
            else:
                self._loaded.update_incremental()
        except DeltaError as error:
            _log.debug("delta-rs cannot read %s, so Spark does: %s", self._path, error)
            self._loaded = None
            return None
        protocol = self._loaded.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        is_old = protocol.min_writer_version <= _KEPT_VERSION
        forgets = _RETENTION in self._loaded.metadata().configuration
        is_kept = features <= _KEPT and (bool(features) or is_old) and not forgets
        return self._loaded if is_kept else None


def _fitted(rows: pa.Table | None, columns: pa.Schema) -> pa.Table:
    """Return rows with the names of a table's columns; None stands for no rows.

    Raises:
        FormatError: A column is not in the table.
    """
    if rows is None:
        return columns.empty_table()
    names = {name.lower(): name for name in columns.names}
    unknown = [name for name in rows.column_names if name.lower() not in names]
    if unknown:
        raise FormatError(f"the table has no column {unknown[0]}")
    # The table keeps its comments on columns; other ones would be a conflict.
    fields = [field.remove_metadata() for field in rows.schema]
    return rows.cast(pa.schema(fields)).rename_columns(
        [names[name.lower()] for name in rows.column_names]
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _writer_properties(columns: list[str]) -> Any:
    from deltalake import ColumnProperties, WriterProperties

    unordered = ColumnProperties(statistics_enabled="NONE", dictionary_enabled=False)
    return WriterProperties(
        compression="SNAPPY",
        column_properties={name: unordered for name in UNORDERED if name in columns},
    )


def _lacking(there: Any, wanted: Any) -> bool:
    """Return whether the type *there* lacks fields of the type *wanted*, at any depth.

    Both types are in Spark's JSON form.
    """
    if not isinstance(wanted, dict) or not isinstance(there, dict):
        return False
    if wanted["type"] == "struct":
        fields = {field["name"].lower(): field["type"] for field in there["fields"]}
        return any(
            field["name"].lower() not in fields
            or _lacking(fields[field["name"].lower()], field["type"])
            for field in wanted["fields"]
        )
    return any(_lacking(there.get(part), wanted.get(part)) for part in ("elementType", "valueType"))


@contextmanager
def _conflicts() -> Iterator[None]:
    """Raise `Conflict` for the errors of a commit before which another one came."""
    try:
        yield
    except SPARK_ERRORS as error:
        if "[DELTA_CONCURRENT_" in str(error):
            raise Conflict(first_line(error)) from error
        raise


def path_of(_spark: SparkSession, place: Destination) -> tuple[str, ...]:
    """Return the parts of a table's name in SQL."""
    if place.in_catalog:
        return tuple(place.address.split("."))
    return "delta", str(place.local or place.address)


def store_of(
    sessions: Sessions, place: Destination, notes: Notes, scratch: Callable[[], Path | None]
) -> DeltaStore:
    """Return the store of a Delta table; see `TableStore` for the arguments."""
    is_fast = (
        place.local is not None
        and _PLAIN.fullmatch(str(place.local)) is not None
        and os.environ.get(_SWITCH) != "0"
        and importlib.util.find_spec("deltalake") is not None
    )
    kind = LocalDeltaStore if is_fast else DeltaStore
    return kind(sessions, place, notes, scratch)
