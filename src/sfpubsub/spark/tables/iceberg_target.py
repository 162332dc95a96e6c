"""Derived tables in Iceberg format: at a path or URL, or in a catalog.

Iceberg does not reject an append because of a concurrent one, so a change is made in two stages, as
in a raw table. First a snapshot is *staged* outside all branches. Then it is *published* by
swapping the table's metadata, unless the table already has this or a higher step number (steps.py).
The number is stored as a property of both the snapshot and the table, because the snapshot may
expire after compaction has added newer ones.

Rows arrive as complete Parquet files. They are stored with the table's files through its `FileIO`,
and appended with the metrics that Iceberg reads from them. Their columns are matched by name
(``schema.name-mapping.default``). Spark executes merges and deletes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.iceberg import (
    STAGING_PROPERTIES,
    TRIES,
    WAP_ID,
    WAP_SETTING,
    ancestors,
    published,
)
from sfpubsub.spark.runtime.runtimes import check_session
from sfpubsub.spark.runtime.session import frame_of_rows
from sfpubsub.spark.runtime.sql import quoted
from sfpubsub.spark.tables.logged_target import LoggedTarget, LoggedTargetTable
from sfpubsub.spark.tables.target import DISTINCT, UNORDERED, Place, TargetTable

# Properties: the step of a snapshot or table, and the facts, which mark a table as created by this
# package.
_STEP = "sfpubsub.step"
_FACTS = "sfpubsub.facts"

_NAMES = "schema.name-mapping.default"

# Setting that adds a property to the session's snapshots.
_SNAPSHOT_SETTING = "spark.sql.iceberg.snapshot-property."

# Name of the session's catalog for the directory that contains a path-based target.
_CATALOG = "sfpubsub_target"

# For changes, mark rows as deleted and write new ones, instead of rewriting whole files.
_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("delete", "update", "merge")}


class IcebergTarget(LoggedTarget):
    """A target for tables in Iceberg format. See `Target`."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        check_session(spark, "iceberg")
        super().__init__(spark, place, {} if place.in_catalog else _catalog_of(place))

    def _open(self, name: str) -> TargetTable:
        return IcebergTargetTable(self, name)


class IcebergTargetTable(LoggedTargetTable):
    """One Iceberg table. See `TargetTable`."""

    def exists(self) -> bool:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            table = self._table()
            if table is not None and table.properties().get(_FACTS) is None:
                raise ConfigurationError(
                    f"{self._address} is an Iceberg table that sfpubsub did not create: choose "
                    f"another target"
                )
            return table is not None

    def step(self) -> int:
        """See `TargetTable`."""
        if not self.exists():
            return 0
        with self._errors("cannot be read"):
            return _step_of(self._operations().current())

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self._table().properties()[_FACTS]))

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return [str(field.name()) for field in self._table().schema().columns()]

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`."""
        there = self.exists()
        # Hold the lock of the settings, because these commits would otherwise use the number that
        # another thread may have set for its table.
        with self._errors("cannot be created"), self._target.settings({}):
            java = self._java_session.parseDataType(spark_schema(columns).json())
            wanted = self._iceberg("spark.SparkSchemaUtil").convert(java)
            if not there:
                self._create(wanted, columns, facts or {}, merged=merged)
                return
            table = self._table()
            widened = table.updateSchema().unionByNameWith(wanted)
            if not widened.apply().sameSchema(table.schema()):
                widened.commit()
            text = json.dumps(dict(facts or {}))
            if facts is not None and table.properties().get(_FACTS) != text:
                table.updateProperties().set(_FACTS, text).commit()

    def append(self, files: Sequence[bytes], step: int) -> bool:
        """See `TargetTable`.

        A crash before the snapshot is published leaves files that no reader sees, and that
        ``remove_orphan_files`` and ``expire_snapshots`` remove.
        """
        with self._errors("was not written"):
            put = [self._put(content) for content in files]

            def stage(attempt: str) -> None:
                append = self._table().newAppend()
                for file in put:
                    append.appendFile(file)
                append.set(_STEP, str(step)).set(WAP_ID, attempt).stageOnly().commit()

            return self._change(stage, step)

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
        new = ", ".join(
            f"{quoted('t', name)} = {quoted('s', name)}" for name in replaced or source.columns
        )
        columns = ", ".join(map(quoted, source.columns))
        values = ", ".join(quoted("s", name) for name in source.columns)
        with self._errors("was not changed"), self._named(source) as name:
            statement = (
                f"MERGE INTO {self._in_sql} t USING {name} s ON {condition} "  # noqa: S608
                f"WHEN MATCHED THEN UPDATE SET {new} "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
            )
            self._change(lambda attempt: self._run(statement, attempt, step), step)

    def insert(self, source: DataFrame, step: int) -> None:
        """See `TargetTable`."""
        columns = ", ".join(map(quoted, source.columns))
        with self._errors("was not written"), self._named(source) as name:
            statement = (
                f"INSERT INTO {self._in_sql} ({columns}) "  # noqa: S608
                f"SELECT {columns} FROM {name}"
            )
            self._change(lambda attempt: self._run(statement, attempt, step), step)

    def delete(self, condition: str, step: int) -> None:
        """See `TargetTable`."""
        statement = f"DELETE FROM {self._in_sql} WHERE {condition}"  # noqa: S608  # the engine's own
        with self._errors("was not changed"):
            self._change(lambda attempt: self._run(statement, attempt, step), step)

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if self._target.place.in_catalog:
                self._spark.catalog.refreshTable(self._address)
            return self._spark.table(self._in_sql)

    @contextmanager
    def _named(self, rows: DataFrame) -> Iterator[str]:
        """Register a DataFrame as a temporary view, and yield the name of the view."""
        name = f"rows_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)

    def _run(self, statement: str, attempt: str, step: int) -> None:
        marked = {WAP_SETTING: attempt, f"{_SNAPSHOT_SETTING}{_STEP}": str(step)}
        with self._target.settings(marked):
            self._spark.sql(statement)

    def _change(self, stage: Callable[[str], None], step: int) -> bool:
        """Stage a snapshot and publish it; return False if the table already has the step.

        Args:
            stage: Creates the staged snapshot, marked with the given attempt id.
            step: Number of the step.

        Raises:
            WriteError: Other writers keep changing the table.
        """
        for _ in range(TRIES):
            operations = self._operations()
            if _step_of(operations.current()) >= step:
                return False
            attempt = uuid.uuid4().hex
            stage(attempt)
            staged = _staged(operations.refresh(), attempt)
            if staged is None:  # a change without effect: record only the step
                empty = self._table().newAppend().set(_STEP, str(step))
                empty.set(WAP_ID, attempt).stageOnly().commit()
                staged = _staged(operations.refresh(), attempt)
            if staged is not None and self._publish(staged, step, operations):
                return True
        raise WriteError(
            f"{self._address} was not changed, because other writers keep changing it: stop them"
        )

    def _publish(self, staged: int, step: int, operations: Any) -> bool:
        """Publish the snapshot *staged*; return False if the table has changed in the meantime.

        If it has, the snapshot does not become part of any branch, and the change must be staged
        again.
        """
        return published(
            self._spark,
            operations,
            staged,
            {_STEP: str(step)},
            lambda base: _step_of(base) < step,
        )

    def _create(
        self, schema: Any, columns: pa.Schema, facts: Mapping[str, str], *, merged: bool
    ) -> None:
        properties = {
            **STAGING_PROPERTIES,
            **(_MERGED if merged else {}),
            _FACTS: json.dumps(dict(facts)),
            "write.distribution-mode": "none",
        }
        for name in {*UNORDERED, *DISTINCT} & {*columns.names} - {"ingest_seq"}:
            properties[f"write.metadata.metrics.column.{name}"] = "none"
        if self._target.place.in_catalog:
            empty = frame_of_rows(self._spark, [], spark_schema(columns))
            creation = empty.writeTo(self._address).using("iceberg")
            for key, value in properties.items():
                creation = creation.tableProperty(key, value)
            creation.create()
        else:
            spec = self._iceberg("PartitionSpec").unpartitioned()
            order = self._iceberg("SortOrder").unsorted()
            self._tables().create(schema, spec, order, properties, self._address)
        self._map_names(self._table())

    def _put(self, content: bytes) -> Any:
        """Store a file among the table's files, and return its ``DataFile``."""
        table = self._table()
        path = table.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
        stream = table.io().newOutputFile(path).create()
        try:
            stream.write(content)
        finally:
            stream.close()
        file = table.io().newInputFile(path)
        names = self._iceberg("mapping.NameMappingParser").fromJson(self._name_mapping(table))
        wanted = self._iceberg("MetricsConfig").forTable(table)
        metrics = self._iceberg("parquet.ParquetUtil").fileMetrics(file, wanted, names)
        return (
            self._iceberg("DataFiles")
            .builder(table.spec())
            .withInputFile(file)
            .withFormat("PARQUET")
            .withMetrics(metrics)
            .build()
        )

    def _name_mapping(self, table: Any) -> str:
        """Return the table's mapping of names, without which its files cannot be read.

        If another program has removed it, it is created again.
        """
        found = table.properties().get(_NAMES)
        return self._map_names(table) if found is None else str(found)

    def _map_names(self, table: Any) -> str:
        # Derived from the table's field ids; Iceberg updates the mapping as columns are added.
        names = self._iceberg("mapping.MappingUtil").create(table.schema())
        text = str(self._iceberg("mapping.NameMappingParser").toJson(names))
        table.updateProperties().set(_NAMES, text).commit()
        return text

    @property
    def _in_sql(self) -> str:
        place = self._target.place
        if place.in_catalog:
            return self._address
        return quoted(_CATALOG, place.address.rpartition("/")[2], self.name)

    def _operations(self) -> Any:
        operations = self._table().operations()
        operations.refresh()
        return operations

    def _table(self) -> Any:
        """Return Iceberg's table object with the current metadata; None if there is no table."""
        if not self._target.place.in_catalog:
            tables = self._tables()
            return tables.load(self._address) if tables.exists(self._address) else None
        if not self._spark.catalog.tableExists(self._address):
            return None
        spark = self._iceberg("spark.Spark3Util")
        return spark.loadIcebergTable(self._java_session, self._address)

    def _tables(self) -> Any:
        configuration = self._java_session.sessionState().newHadoopConf()
        return self._iceberg("hadoop.HadoopTables")(configuration)

    def _iceberg(self, name: str) -> Any:
        """Return the Java class *name* of the package ``org.apache.iceberg``."""
        return self._java(f"org.apache.iceberg.{name}")


def _catalog_of(place: Place) -> dict[str, str]:
    """Return session settings for a catalog through which SQL can access path-based tables."""
    return {
        f"spark.sql.catalog.{_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{_CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{_CATALOG}.warehouse": place.url.rpartition("/")[0],
        f"spark.sql.catalog.{_CATALOG}.cache-enabled": "false",
    }


def _step_of(metadata: Any) -> int:
    """Return the number of the newest step that a snapshot of the main branch records.

    If no snapshot records one, return the number in the table's properties, or 0 if there is none.
    """
    for snapshot in ancestors(metadata):
        found = snapshot.summary().get(_STEP)
        if found is not None:
            return int(found)
    return int(metadata.properties().get(_STEP) or 0)


def _staged(metadata: Any, attempt: str) -> int | None:
    snapshots = metadata.snapshots()
    for index in reversed(range(len(snapshots))):
        if snapshots[index].summary().get(WAP_ID) == attempt:
            return int(snapshots[index].snapshotId())
    return None
