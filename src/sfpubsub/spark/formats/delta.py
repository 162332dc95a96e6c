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
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import Conflict, FormatError
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

# The highest writer version of which these are all features.
_KEPT_VERSION = 3

# Paths that delta-rs can open; it crashes if a name has other characters, such as brackets.
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)

_SWITCH = "SFPUBSUB_DELTALAKE"

# Columns whose values have no meaningful order, so files have no minimum and maximum of them.
_UNORDERED = ("replay_id", "dedupe_key")


class Commit(NamedTuple):
    """One commit in a table's log."""

    version: int
    operation: str
    note: str | None


class DeltaStore:
    """One Delta table, by means of Spark. Not thread-safe; different tables may be used at once.

    Args:
        spark: A session of ours, because writing changes its settings.
        application: Application id of our numbers.
        number_of: Returns the number in a note; None if the note is not ours.
        frame: Yields rows as a DataFrame of the session.
        table: Quoted name of the table in a catalog; None for a table at a path.
        path: Path or URL of the table; None for a table in a catalog.
    """

    def __init__(
        self,
        spark: SparkSession,
        application: str,
        *,
        number_of: Callable[[str], int | None],
        frame: Callable[[pa.Table], AbstractContextManager[DataFrame]],
        table: str | None = None,
        path: str | None = None,
    ) -> None:
        self._spark = spark
        self._application = application
        self._number_of = number_of
        self._frame = frame
        self._table = table
        self._path = path
        self.in_sql = table or quoted("delta", path or "")
        """The table's name in SQL."""

    def exists(self) -> bool:
        """Return whether the table exists.

        Raises:
            ConfigurationError: The catalog's table has another format.
        """
        if self._table is not None and not self._spark.catalog.tableExists(self._table):
            return False
        try:
            found = self._detail()
        except AnalysisException as error:
            if self._table is None and "DELTA_MISSING_DELTA_TABLE" in str(error):
                return False
            raise ConfigurationError(
                f"{self.in_sql} is not a table of format delta: {first_line(error)}"
            ) from error
        if found["format"] != "delta":
            raise ConfigurationError(
                f"{self.in_sql} is a table of format {found['format']}: choose another "
                f"destination, or write in the table's format"
            )
        return True

    def identity(self) -> str:
        """Return the id that Delta gave to the table; moving the table keeps it."""
        return str(self._detail()["id"])

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self._detail()["properties"])

    def columns(self) -> StructType:
        """Return the table's columns."""
        return self.read().schema

    def version(self) -> str:
        """Return the number of the newest commit of any writer."""
        return str(self._history(1)[0].version)

    def is_restored_since(self, version: str) -> bool:
        """Return whether the table was restored to any earlier version after *version*.

        A restore in a part of the log that has been deleted (after 30 days,
        ``delta.logRetentionDuration``) is not noticed.
        """
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
        """Return the number of our newest commit; 0 if there is none, None if it is unknown.

        It is unknown if the log, from which Delta removes commits after 30 days, has none of ours
        left.
        """
        version = 0
        for commit in self.commits():
            found = None if commit.note is None else self._number_of(commit.note)
            if found is not None:
                return found
            version = commit.version
        return 0 if version == 0 else None

    def has(self, number: int, note: str) -> bool:
        """Return whether the commit with this number and note is in the table's log."""
        for commit in self.commits():
            if commit.note == note:
                return True
            found = None if commit.note is None else self._number_of(commit.note)
            if found is not None and found <= number:
                return False
        return False

    def append(self, rows: pa.Table | None, number: int, note: str) -> bool:
        """Commit rows once. Columns that *rows* lacks are null.

        Args:
            rows: Rows whose columns match the table's by name and type; None for a commit without
                rows.
            number: Number of the commit.
            note: Text with the number; unique to this attempt.

        Returns:
            Whether this call committed; False if the table already has the number or a higher one.

        Raises:
            Conflict: Another commit of ours came in between.
        """
        if rows is None:
            self.save(self.read().limit(0), number, note)
        else:
            with self._frame(rows) as frame:
                self.save(frame, number, note)
        return self.has(number, note)

    def save(
        self,
        rows: DataFrame,
        number: int,
        note: str,
        *,
        partition: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Commit the rows of a DataFrame, unless the table already has the number or a higher one.

        At a path, this creates the table if it does not exist.

        Args:
            rows: The rows. Without any, Spark may commit nothing.
            number: Number of the commit.
            note: Text with the number; unique to this attempt.
            partition: Column by which a new table is partitioned.
            properties: Properties of a new table, whose names begin with ``delta.``.

        Raises:
            Conflict: Another commit of ours came in between.
        """
        numbered = {
            "userMetadata": note,
            "txnAppId": self._application,
            "txnVersion": str(number),
        }
        writer = rows.write.format("delta").mode("append").options(**numbered, **(properties or {}))
        if partition is not None:
            writer = writer.partitionBy(partition)
        try:
            self._save(writer)
        except SPARK_ERRORS as error:
            if "[DELTA_CONCURRENT_" in str(error):
                raise Conflict(first_line(error)) from error
            raise

    def set(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""
        self._spark.sql(f"ALTER TABLE {self.in_sql} SET TBLPROPERTIES ({pairs_in_sql(properties)})")

    def widen(self, nothing: DataFrame) -> None:
        """Add the columns and nested fields of an empty DataFrame that the table lacks."""
        self._save(nothing.write.format("delta").mode("append").option("mergeSchema", "true"))

    def read(self) -> DataFrame:
        """Return the table's current rows."""
        reader = self._spark.read.format("delta")
        return reader.load(self._path) if self._table is None else reader.table(self._table)

    def settings(self, number: int, note: str) -> Mapping[str, str]:
        """Return the session settings with which a statement has a number and a note."""
        return {
            APPLICATION_SETTING: self._application,
            NUMBER_SETTING: str(number),
            NOTE_SETTING: note,
        }

    def _save(self, writer: DataFrameWriter) -> None:
        if self._table is None:
            writer.save(self._path)
        else:
            writer.saveAsTable(self._table)

    def _detail(self) -> Any:
        return self._spark.sql(f"DESCRIBE DETAIL {self.in_sql}").collect()[0]

    def _history(self, count: int) -> list[Commit]:
        """Return up to *count* commits, newest first."""
        found = self._spark.sql(f"DESCRIBE HISTORY {self.in_sql} LIMIT {count}")
        rows = found.select("version", "operation", "userMetadata").collect()
        return [Commit(*row) for row in rows]


class LocalDeltaStore(DeltaStore):
    """A Delta table on a local disk, by means of delta-rs. See `DeltaStore`.

    If the table has features that delta-rs does not keep, all calls go to Spark.
    """

    _loaded: DeltaTable | None = None
    _last: tuple[int, str] | None = None
    """Version and note of the newest commit by this object."""

    def exists(self) -> bool:
        """See `DeltaStore`."""
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(str(self._path)))

    def identity(self) -> str:
        """See `DeltaStore`."""
        found = self._kept()
        return super().identity() if found is None else str(found.metadata().id)

    def properties(self) -> dict[str, str]:
        """See `DeltaStore`."""
        found = self._kept()
        return super().properties() if found is None else dict(found.metadata().configuration)

    def columns(self) -> StructType:
        """See `DeltaStore`."""
        found = self._kept()
        if found is None:
            return super().columns()
        return StructType.fromJson(json.loads(found.schema().to_json()))

    def version(self) -> str:
        """See `DeltaStore`."""
        found = self._kept()
        return super().version() if found is None else str(found.version())

    def number(self) -> int | None:
        """See `DeltaStore`. It is always known, because the log keeps it forever."""
        found = self._kept()
        return super().number() if found is None else self._number_in(found)

    def append(self, rows: pa.Table | None, number: int, note: str) -> bool:
        """See `DeltaStore`."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        found = self._kept()
        if found is None:
            return super().append(rows, number, note)
        if self._number_in(found) >= number:
            return False
        self._check_kept(found)
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
                    app_transactions=[Transaction(self._application, number, _now())],
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

    def _check_kept(self, table: DeltaTable) -> None:
        """Check that the newest commit by this object is in the log.

        On a local disk, Spark makes a commit by a rename that replaces what delta-rs has written
        under the same number in between. So a commit is read back, at once and before the next.

        Raises:
            Conflict: The commit is gone.
        """
        if self._last is None:
            return
        version, note = self._last
        for commit in self._history_of(table, table.version() - version + 1):
            if commit.version == version and commit.note != note:
                self._last = self._loaded = None
                raise Conflict(
                    f"another program has replaced version {version} of the table's log while it "
                    f"was written: its rows are lost; change the table only while the job rests"
                )

    def _history(self, count: int) -> list[Commit]:
        found = self._kept()
        return super()._history(count) if found is None else self._history_of(found, count)

    def _history_of(self, table: DeltaTable, count: int) -> list[Commit]:
        return [
            Commit(each["version"], each.get("operation", ""), each.get("userMetadata"))
            for each in table.history(count)
        ]

    def _number_in(self, table: DeltaTable) -> int:
        return table.transaction_version(self._application) or 0

    def _kept(self) -> DeltaTable | None:
        """Return the newest version of the table; None if delta-rs does not keep its features.

        Also None if delta-rs cannot read it: then Spark does, or says why not.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            if self._loaded is None:
                self._loaded = DeltaTable(str(self._path))
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
        column_properties={name: unordered for name in _UNORDERED if name in columns},
    )


def delta_store(
    spark: SparkSession,
    application: str,
    *,
    number_of: Callable[[str], int | None],
    frame: Callable[[pa.Table], AbstractContextManager[DataFrame]],
    table: str | None = None,
    path: str | None = None,
    is_local: bool = False,
) -> DeltaStore:
    """Return the store of a Delta table; see `DeltaStore` for the arguments.

    Args:
        spark: See `DeltaStore`.
        application: See `DeltaStore`.
        number_of: See `DeltaStore`.
        frame: See `DeltaStore`.
        table: See `DeltaStore`.
        path: See `DeltaStore`.
        is_local: Whether *path* is a path on a local disk, and not a URL.
    """
    is_fast = (
        is_local
        and path is not None
        and _PLAIN.fullmatch(path) is not None
        and os.environ.get(_SWITCH) != "0"
        and importlib.util.find_spec("deltalake") is not None
    )
    kind = LocalDeltaStore if is_fast else DeltaStore
    return kind(spark, application, number_of=number_of, frame=frame, table=table, path=path)
