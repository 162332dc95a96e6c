"""The raw table in Iceberg format, at a path or URL or in a catalog.

Iceberg's appends never conflict: if the table has changed, an append is retried on top of the
change, even for a superseded writer. So each of our transactions has two steps. First a snapshot is
*staged*: it is in the table's metadata, with its rows and its `State`, but on no branch. Then it is
*published* by swapping the table's metadata for a version whose main branch ends in the staged
snapshot. The writer does this only if the newest state in the current metadata is the one that it
last read or wrote. If the metadata has changed in the meantime, the swap fails. It is then retried,
unless the newest state has changed. If the main branch has a new snapshot, the rows are staged
again before the retry.

The state is a property of both the snapshot and the table. The snapshot's property is not enough:
compaction adds newer snapshots, and after that, ours may expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.frames import with_comments
from sfpubsub.spark.raw.layout import PARTITION
from sfpubsub.spark.raw.logged import LoggedTable
from sfpubsub.spark.raw.paths import is_object_store
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.runtimes import check_session
from sfpubsub.spark.runtime.session import active_session

MAIN = "main"

# Name of the snapshot property and of the table property that contain the state.
STATE = "sfpubsub.state"
# Table property: the snapshot that the state belongs to.
_STATE_OF = "sfpubsub.snapshot"

# Property that marks a staged snapshot, and the Spark setting that creates one.
WAP_ID = "wap.id"
WAP_SETTING = "spark.wap.id"

# Attempts to publish. An attempt fails only if something else was committed within the same few
# tenths of a second.
TRIES = 5

# Table property that enables staging.
_STAGING = "write.wap.enabled"

# Properties of tables that we create with staging.
STAGING_PROPERTIES = {
    "format-version": "2",
    _STAGING: "true",
    # Each batch creates two metadata files: keep only the latest 100.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

_PROPERTIES = {
    **STAGING_PROPERTIES,
    # Store no minimum and maximum. They imply an order, which replay ids do not have, and would be
    # useless for the other columns.
    "write.metadata.metrics.column.replay_id": "none",
    "write.metadata.metrics.column.dedupe_key": "none",
    "write.metadata.metrics.column.payload": "none",
    "write.metadata.metrics.column.payload_json": "none",
}


class IcebergTable(LoggedTable):
    """A raw table in Iceberg format. See `LoggedTable`."""

    def __init__(
        self,
        spark: SparkSession,
        place: Destination,
        sources: tuple[Source, ...],
        properties: Mapping[str, str] | None = None,
        org_id: str | None = None,
    ) -> None:
        check_session(spark, "iceberg")
        super().__init__(spark, place, sources, properties, org_id)
        if place.in_catalog:
            check_catalog(self._spark, place)
        self._jvm: Any = self._spark._jvm
        self._address = place.in_sql if place.in_catalog else place.url
        self._newest: str | None = None
        """Attempt id of the state on which the next transaction builds."""

    def _load(self) -> State | None:
        operations = self._operations()
        if operations is None:
            return None
        metadata = operations.current()
        if self._is_ownerless(metadata):
            self._adopt()
            metadata = operations.refresh()
        newest = self._newest_state(metadata)
        self._newest = newest.attempt
        told = self._read(metadata.properties()) or newest  # a rollback does not change properties
        has_lost_all = self._is_rolled_back(metadata)
        self._is_restored = has_lost_all or told.number > newest.number
        if has_lost_all:
            return self._from_rows(newest)
        return replace(
            newest,
            next_seq=max(newest.next_seq, told.next_seq),
            number=max(newest.number, told.number),
        )

    def _is_ownerless(self, metadata: Any) -> bool:
        return self._state_of_branch(metadata) is None and self._read(metadata.properties()) is None

    def _adopt(self) -> None:
        """Adopt an empty table that the user created in advance.

        Raises:
            ConfigurationError: A column of a raw table is missing or has the wrong type, or the
                table already has rows.
        """
        state = self._adopted(self._rows())
        changes = self._table().updateProperties()
        changes.set(_STAGING, "true").set(STATE, state.to_json()).commit()

    def _newest_state(self, metadata: Any) -> State:
        state = self._state_of_branch(metadata) or self._read(metadata.properties())
        if state is None:
            raise ConfigurationError(
                f"{self.place} is an iceberg table that was not created by sfpubsub: choose "
                f"another destination"
            )
        return state

    def _state_of_branch(self, metadata: Any) -> State | None:
        for snapshot in ancestors(metadata):
            state = self._read(snapshot.summary())
            if state is not None:
                return state
        return None

    def _is_rolled_back(self, metadata: Any) -> bool:
        """Return whether the table was rolled back to a snapshot before sfpubsub's first one.

        In that case, the main branch has no state of sfpubsub, but the snapshot that the table
        property `_STATE_OF` names still exists.
        """
        told = metadata.properties().get(_STATE_OF)
        return (
            told is not None
            and self._state_of_branch(metadata) is None
            and metadata.snapshot(int(told)) is not None
        )

    def _read(self, properties: Any) -> State | None:
        return State.from_json(properties.get(STATE), str(self.place))

    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        operations = self._operations()
        if operations is None:
            operations = self._create(frame)
        for _ in range(TRIES):
            staged = self._stage(frame, state, operations, empty=empty)
            if self._publish(staged, state, operations):
                self._newest = state.attempt
                return
        raise Conflict(
            "other programs keep committing to the table, so the snapshot was not published: stop "
            "them"
        )

    def _stage(self, frame: DataFrame, state: State, operations: Any, *, empty: bool) -> int:
        """Create a snapshot that is on no branch, and return its id."""
        if empty:
            append = self._table().newFastAppend()
            append.set(STATE, state.to_json()).set(WAP_ID, state.attempt).stageOnly().commit()
        else:
            self._spark.conf.set(WAP_SETTING, state.attempt)
            try:
                self._append(frame, state)
            finally:
                self._spark.conf.unset(WAP_SETTING)
        snapshots = operations.refresh().snapshots()
        for index in reversed(range(len(snapshots))):
            if snapshots[index].summary().get(WAP_ID) == state.attempt:
                return int(snapshots[index].snapshotId())
        raise Conflict(
            "the snapshot staged by this write no longer exists: check whether another program "
            "expires snapshots of the table"
        )

    def _append(self, frame: DataFrame, state: State) -> None:
        options = {
            f"snapshot-property.{STATE}": state.to_json(),
            "distribution-mode": "none",  # the DataFrame has one partition, and rows of one day
        }
        # The DataFrame must contain every column of the table. Leave those added by others empty.
        columns = self._rows().schema
        others = {
            field.name: f.lit(None).cast(field.dataType)
            for field in columns
            if field.name not in frame.columns
        }
        if others:
            frame = frame.withColumns(others)
        writer = frame.write.format("iceberg").mode("append").options(**options)
        with active_session(self._spark):
            if self.place.in_catalog:
                writer.saveAsTable(self._address)
            else:
                writer.save(self._address)

    def _publish(self, staged: int, state: State, operations: Any) -> bool:
        """Publish the staged snapshot by swapping the table's metadata.

        Returns:
            True if published; False if the rows must be staged again, because another program, such
            as a compaction job, changed the table in the meantime.

        Raises:
            Conflict: sfpubsub committed another transaction to the table in the meantime.
        """

        def is_ours(base: Any) -> bool:
            if self._newest_state(base).attempt != self._newest:
                raise Conflict(
                    "another writer committed in the meantime: use only one writer for each table"
                )
            return True

        properties = {STATE: state.to_json(), _STATE_OF: str(staged)}
        return published(self._spark, operations, staged, properties, is_ours)

    def _create(self, frame: DataFrame) -> Any:
        """Create an empty table with its first `State`; return its Iceberg `TableOperations`."""
        properties = {
            **_PROPERTIES,
            **self._properties,
            _STAGING: "true",
            STATE: State.first(self._sources, self._writer).to_json(),
        }
        if self.place.in_catalog:
            creation = with_comments(frame).limit(0).writeTo(self._address).using("iceberg")
            for key, text in properties.items():
                creation = creation.tableProperty(key, text)
            creation.partitionedBy(f.col(PARTITION)).create()
        else:
            iceberg = self._jvm.org.apache.iceberg
            columns = with_comments(frame).schema.json()
            schema = iceberg.spark.SparkSchemaUtil.convert(
                self._jvm.org.apache.spark.sql.types.DataType.fromJson(columns)
            )
            spec = iceberg.PartitionSpec.builderFor(schema).identity(PARTITION).build()
            order = iceberg.SortOrder.unsorted()
            self._tables().create(schema, spec, order, properties, self._address)
        operations = self._operations()
        self._newest = self._newest_state(operations.current()).attempt
        return operations

    def _operations(self) -> Any:
        """Return Iceberg's operations on the table's metadata; None if there is no table."""
        table = self._table()
        if table is None:
            return None
        operations = table.operations()
        operations.refresh()
        return operations

    def _table(self) -> Any:
        if not self.place.in_catalog:
            tables = self._tables()
            return tables.load(self._address) if tables.exists(self._address) else None
        if not self._spark.catalog.tableExists(self._address):
            return None
        spark = self._jvm.org.apache.iceberg.spark
        return spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self._address)

    def _tables(self) -> Any:
        configuration = self._spark._jsparkSession.sessionState().newHadoopConf()
        return self._jvm.org.apache.iceberg.hadoop.HadoopTables(configuration)

    def _rows(self) -> DataFrame:
        if self.place.in_catalog:
            self._spark.catalog.refreshTable(self._address)
            return self._spark.table(self._address)
        with active_session(self._spark):
            return self._spark.read.format("iceberg").load(self._address)


def ancestors(metadata: Any, newest: Any = None) -> Iterator[Any]:
    """Yield a snapshot and its retained ancestors, newest first.

    Args:
        metadata: Metadata of the table.
        newest: Snapshot to start from; by default the tip of the main branch.
    """
    snapshot = newest or metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def check_catalog(spark: SparkSession, place: Destination) -> None:
    """Check that the catalog can swap a table's metadata atomically.

    Raises:
        ConfigurationError: The catalog relies on renames in an object store, which are not atomic.
    """
    catalog = f"spark.sql.catalog.{place.address.split('.')[0]}"
    kind = str(spark.conf.get(f"{catalog}.type", ""))
    made_by = str(spark.conf.get(f"{catalog}.catalog-impl", ""))
    warehouse = str(spark.conf.get(f"{catalog}.warehouse", ""))
    if (kind == "hadoop" or made_by.endswith("HadoopCatalog")) and is_object_store(warehouse):
        raise ConfigurationError(
            f"the catalog of {place} is of type hadoop, which relies on atomic renames that never "
            f"overwrite a file. {warehouse.split(':')[0]} does not support them, so commits could "
            f"be lost: use a catalog of type jdbc or rest"
        )


def published(
    spark: SparkSession,
    operations: Any,
    staged: int,
    properties: Mapping[str, str],
    is_ours: Callable[[Any], bool],
) -> bool:
    """Publish a staged snapshot, by swapping in metadata whose main branch ends in it.

    Args:
        spark: The session.
        operations: Iceberg's operations on the table's metadata.
        staged: Id of the snapshot.
        properties: Table properties to set at the same time.
        is_ours: Returns whether the snapshot may be published on top of the given table metadata.

    Returns:
        True if published; False if *is_ours* returned False, the main branch no longer ends in the
        parent of the staged snapshot, the staged snapshot has expired, or the metadata changed
        during each of `TRIES` attempts.
    """
    for _ in range(TRIES):
        base = operations.refresh()
        if not is_ours(base):
            return False
        snapshot = base.snapshot(staged)
        if snapshot is None or snapshot.parentId() != tip(base):
            return False
        changed = (
            java_class(spark, "org.apache.iceberg.TableMetadata")
            .buildFrom(base)
            .setBranchSnapshot(staged, MAIN)
            .setProperties(dict(properties))
            .build()
        )
        try:
            operations.commit(base, changed)
        except Py4JJavaError as error:
            if not is_conflict(error):
                raise
            continue
        return True
    return False


def tip(metadata: Any) -> int | None:
    """Return the id of the main branch's newest snapshot; None if there are no snapshots."""
    snapshot = metadata.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def is_conflict(error: Py4JJavaError) -> bool:
    """Return whether *error* means that a metadata swap failed because the metadata had changed."""
    name = str(error.java_exception.getClass().getName())
    return name == "org.apache.iceberg.exceptions.CommitFailedException"
