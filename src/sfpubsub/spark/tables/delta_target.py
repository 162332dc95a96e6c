"""Derived tables in Delta format: at a path or URL, or in a catalog.

Each commit stores the number of its step (steps.py) as the ``txnVersion`` of this package's
application id. Delta skips a commit if the table already has the same or a higher number. Rows
arrive as complete Parquet files, which are added to the table's files and committed through Delta's
own transaction, because a Spark write would need a separate job for each of the many small tables.
Spark executes merges and deletes.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from sfpubsub.durable import sync
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.delta import transaction_number
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.runtimes import check_session, delta_settings
from sfpubsub.spark.runtime.session import active_session, frame_of_rows
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables.logged_target import LoggedTarget, LoggedTargetTable
from sfpubsub.spark.tables.target import Place, TargetTable

# Application id of this package's transactions in Delta.
APPLICATION = "sfpubsub:tables"

# Table property that marks a table as created by this package and stores its facts.
_FACTS = "sfpubsub.facts"

# Session settings for the application id and number of a delete or merge.
APPLICATION_SETTING = "spark.databricks.delta.write.txnAppId"
NUMBER_SETTING = "spark.databricks.delta.write.txnVersion"

# Columns, mostly of times, whose minimum and maximum in each file are stored, so that readers can
# skip files. Delta's own writer stores them for the first 32 columns, which include replay ids.
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

# Commits between checkpoints of the log, each of which costs six Spark jobs. Delta's default of 10
# is too frequent for tables with a small commit every few seconds. A new reader reads at most this
# many small log files.
_CHECKPOINT_COMMITS = 50

# Classes of the JVM.
_TABLE = "io.delta.tables.DeltaTable"
_PATH = "org.apache.hadoop.fs.Path"
_CONVERTERS = "scala.jdk.javaapi.CollectionConverters"

# Modes in which column mapping is off, so that a file's columns have the table's column names.
_UNMAPPED = ("none", "NoMapping")


@dataclass(frozen=True)
class _Version:
    """The step and the column mapping of one version of a table."""

    number: int
    step: int
    """Number of the step that made this package's newest commit."""
    mapping: str
    """Mode of column mapping."""


class DeltaTarget(LoggedTarget):
    """A target for tables in Delta format. See `Target`."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        check_session(spark, "delta")
        super().__init__(spark, place, delta_settings(local=place.local is not None))

    def _open(self, name: str) -> TargetTable:
        return DeltaTargetTable(self, name)

    # Java objects that never change. Each call to the JVM costs about as much as a small file.

    @cached_property
    def nothing(self) -> Any:
        """Scala's ``None``, for optional arguments of Delta's methods."""
        return java_class(self.spark, "scala.Option").empty()

    @cached_property
    def no_actions(self) -> Any:
        """Scala's empty list, to which the actions of a commit are appended."""
        return getattr(java_class(self.spark, "scala.collection.immutable.Nil$"), "MODULE$")

    @cached_property
    def append_mode(self) -> Any:
        """Spark's output mode ``append``, an argument of Delta's operation ``StreamingUpdate``."""
        return java_class(self.spark, "org.apache.spark.sql.streaming.OutputMode").Append()


class DeltaTargetTable(LoggedTargetTable):
    """One Delta table. See `TargetTable`."""

    _target: DeltaTarget

    def __init__(self, target: DeltaTarget, name: str) -> None:
        super().__init__(target, name)
        self._in_catalog = target.place.in_catalog
        self._location = None if self._in_catalog else self._address
        self._exists = False
        self._is_new = False
        self._known: _Version | None = None
        """The newest version seen so far."""

    def exists(self) -> bool:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if not self._exists and self._is_there():
                if _FACTS not in self._properties():
                    raise ConfigurationError(
                        f"{self._address} is a Delta table that sfpubsub did not create: choose "
                        f"another target"
                    )
                self._exists = True
        return self._exists

    def step(self) -> int:
        """See `TargetTable`."""
        if not self.exists():
            return 0
        with self._errors("cannot be read"):
            snapshot = self._snapshot()
            return self._version(int(snapshot.version()), lambda: snapshot).step

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self._properties()[_FACTS]))

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return list(self._snapshot().schema().fieldNames())

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`."""
        there = self.exists()
        # Hold the lock of the settings, because these commits would otherwise use the number that
        # another thread may have set for its table.
        with self._errors("cannot be created"), self._target.settings({}):
            if not there:
                self._create(columns, facts or {}, merged=merged)
                return
            schema = spark_schema(columns)
            if self._lacks(columns):
                writer = frame_of_rows(self._spark, [], schema).write.format("delta")
                self._save(writer.mode("append").option("mergeSchema", "true"))
            if facts is not None and dict(facts) != self.facts():
                self._spark.sql(
                    f"ALTER TABLE {self._in_sql} SET TBLPROPERTIES "
                    f"({sql_text(_FACTS)} = {sql_text(json.dumps(dict(facts)))})"
                )

    def append(self, files: Sequence[bytes], step: int) -> bool:
        """See `TargetTable`.

        One commit contains the step and the files. Delta rejects it if a concurrent commit has this
        package's application id. A crash before the commit leaves files that no reader sees, and
        that VACUUM removes.
        """
        with self._errors("was not written"), active_session(self._target.spark):
            transaction = self._log().startTransaction()
            found = self._version(int(transaction.readVersion()), transaction.snapshot)
            if found.step >= step:
                return False
            # As `txnVersion` does, make a concurrent commit with our application id a conflict.
            transaction.readTxn().addOne(APPLICATION)
            self._check_names(found)
            number = {"appId": APPLICATION, "version": step, "lastUpdated": _now()}
            actions = [{"txn": number}, *({"add": self._put(content)} for content in files)]
            version = transaction.commit(self._parsed(actions), self._operation(step))
            self._known = replace(found, number=int(version), step=step)
        return True

    def merge(
        self,
        source: DataFrame,
        on: Sequence[str],
        step: int,
        *,
        replaced: Sequence[str] | None = None,
    ) -> None:
        """See `TargetTable`."""
        condition = " AND ".join(f"{quoted('t', name)} = {quoted('s', name)}" for name in on)
        values, new = self._java("java.util.HashMap")(), self._java("java.util.HashMap")()
        for name in source.columns:
            values[quoted(name)] = quoted("s", name)
        for name in replaced or source.columns:
            new[quoted(name)] = quoted("s", name)
        with self._errors("was not changed"), self._numbered(step):
            merging = self._table().alias("t").merge(source._jdf.alias("s"), condition)
            merging = merging.whenMatched().updateExpr(new)
            merging.whenNotMatched().insertExpr(values).execute()
        if self.step() < step:  # see `delete`
            self.append([], step)
        self._check(step)

    def insert(self, source: DataFrame, step: int) -> None:
        """See `TargetTable`."""
        with self._errors("was not written"), self._numbered(step):
            self._save(source.write.format("delta").mode("append"))
        if self.step() < step:  # there were no rows
            self.append([], step)
        self._check(step)

    def delete(self, condition: str, step: int) -> None:
        """See `TargetTable`."""
        with self._errors("was not changed"), self._numbered(step):
            self._table().delete(condition)
        if self.step() < step:  # no row matched, so Delta made no commit
            self.append([], step)

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if self._in_catalog:
                return self._spark.read.table(self._address)
            return self._spark.read.format("delta").load(self._address)

    def _create(self, columns: pa.Schema, facts: Mapping[str, str], *, merged: bool) -> None:
        schema = spark_schema(columns)
        properties = {
            _FACTS: json.dumps(dict(facts)),
            "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
            **({"delta.enableDeletionVectors": "true"} if merged else {}),
        }
        if self._in_catalog:  # Delta's own builder takes no name with a catalog
            empty = frame_of_rows(self._spark, [], schema).writeTo(self._address).using("delta")
            for key, value in properties.items():
                empty = empty.tableProperty(key, value)
            empty.create()
        else:
            made = self._java(_TABLE).createIfNotExists(self._java_session)
            # In Hadoop's form; otherwise Delta treats it as a different location. With the location
            # alone, Delta would put it into a name without quoting it.
            path = str(self._java(_PATH)(self._address).toString())
            made = made.tableName(quoted("delta", path)).location(path)
            for key, value in properties.items():
                made = made.property(key, value)
            made.addColumns(self._java_session.parseDataType(schema.json())).execute()
        self._exists = self._is_new = True

    def _save(self, writer: DataFrameWriter) -> None:
        if self._in_catalog:
            writer.saveAsTable(self._address)
        else:
            writer.save(self._address)

    def _lacks(self, columns: pa.Schema) -> bool:
        """Return whether the table lacks any of *columns*, or any fields of their structs."""
        there = json.loads(self._snapshot().schema().json())
        return _lacking(there, json.loads(spark_schema(columns).json()))

    def _put(self, content: bytes) -> dict[str, Any]:
        """Add a file to the table's directory, and return its entry for the log."""
        name = f"part-{uuid.uuid4()}.snappy.parquet"
        place = self._target.place
        if place.local is not None:
            path = Path(place.local, self.name, name)
            path.write_bytes(content)
            sync(path)
        else:
            log = self._log()
            path = self._java(_PATH)(log.dataPath(), name)
            stream = path.getFileSystem(log.newDeltaHadoopConf()).create(path, False)
            try:
                stream.write(content)
            finally:
                stream.close()
        return {
            "path": name,
            "partitionValues": {},
            "size": len(content),
            "modificationTime": _now(),
            "dataChange": True,
            "stats": json.dumps(_statistics(content)),
        }

    def _parsed(self, actions: Sequence[Mapping[str, Any]]) -> Any:
        """Convert actions to Delta's objects, by way of JSON.

        Delta's log stores actions as JSON, and the format of the log is stable across versions of
        Delta.
        """
        action = self._java("org.apache.spark.sql.delta.actions.Action")
        parsed = self._target.no_actions
        for record in actions:
            parsed = parsed.appended(action.fromJson(json.dumps(record)))
        return parsed

    def _version(self, number: int, snapshot: Callable[[], Any]) -> _Version:
        """Return the step and the column mapping of the table's version *number*.

        They are cached. *snapshot* returns the version's snapshot, and is called only if the
        version is not in the cache.
        """
        if self._known is None or self._known.number != number:
            there = snapshot()
            mapping = str(there.metadata().columnMappingMode().name())
            self._known = _Version(number, self._step_of(there), mapping)
        return self._known

    def _step_of(self, snapshot: Any) -> int:
        """Return the step of this package's newest commit in *snapshot*; 0 before the first."""
        if self._is_new and snapshot.version() == 0:
            return 0  # a table that was just created has no steps
        return transaction_number(self._spark, snapshot, APPLICATION)

    def _operation(self, step: int) -> Any:
        """Return the operation for the table's history: Delta's ``StreamingUpdate``, with the step.

        With the operation ``ManualUpdate``, Delta would recompute the table's state after each
        commit, with three Spark jobs, instead of adding the commit to the known state.
        """
        update = self._java("org.apache.spark.sql.delta.DeltaOperations$StreamingUpdate")
        return update(self._target.append_mode, APPLICATION, step, self._target.nothing)

    def _check_names(self, found: _Version) -> None:
        if found.mapping not in _UNMAPPED:
            raise WriteError(
                f"{self._address} uses column mapping ({found.mapping}), so rows cannot be added "
                f"to it: set its table property delta.columnMapping.mode to none, and start again"
            )

    @contextmanager
    def _numbered(self, step: int) -> Iterator[None]:
        with self._target.settings({APPLICATION_SETTING: APPLICATION, NUMBER_SETTING: str(step)}):
            yield

    def _table(self) -> Any:
        # By path, because `forName` takes no name with a catalog.
        path = self._log().dataPath().toString() if self._in_catalog else self._address
        return self._java(_TABLE).forPath(self._java_session, path)

    @property
    def _in_sql(self) -> str:
        return self._address if self._in_catalog else quoted("delta", self._address)

    def _is_there(self) -> bool:
        if self._in_catalog:
            return bool(self._spark.catalog.tableExists(self._address))
        return bool(self._java(_TABLE).isDeltaTable(self._java_session, self._address))

    def _properties(self) -> dict[str, str]:
        found = self._snapshot().metadata().configuration()
        return dict(self._java(_CONVERTERS).asJava(found))

    def _log(self) -> Any:
        if self._location is None:
            row = self._spark.sql(f"DESCRIBE DETAIL {self._address}").collect()[0]
            self._location = str(row["location"])
        logs = self._java("org.apache.spark.sql.delta.DeltaLog")
        return logs.forTable(self._java_session, self._location)

    def _snapshot(self) -> Any:
        return self._log().update(False, self._target.nothing, self._target.nothing)


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


def _statistics(content: bytes) -> dict[str, Any]:
    """Return a Parquet file's statistics for Delta's log.

    They are the number of rows, the bounds of the `_BOUNDED` columns, and the number of nulls in
    each top-level column.

    A reader that looks for a value also checks whether a file has values other than null. Without
    the number of nulls, it would read every file, regardless of the bounds.
    """
    metadata = pq.read_metadata(io.BytesIO(content))
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            name, found = column.path_in_schema, column.statistics
            if "." in name:  # a part of a struct or list, whose nulls are counted differently
                continue
            if found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if name in _BOUNDED and found.has_min_max:
                least[name] = min(least.get(name, found.min), found.min)
                most[name] = max(most.get(name, found.max), found.max)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _bound(value) for name, value in least.items()},
        "maxValues": {name: _bound(value) for name, value in most.items()},
        "nullCount": {name: count for name, count in nulls.items() if name not in unknown},
        "tightBounds": True,
    }


def _bound(value: Any) -> Any:
    """Return a minimum or maximum in Delta's form: times as text, truncated to milliseconds.

    Delta's readers allow for the truncation.
    """
    if hasattr(value, "isoformat"):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _now() -> int:
    return time.time_ns() // 1_000_000
