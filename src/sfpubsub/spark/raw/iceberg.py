"""The raw table in Iceberg format: a directory or URL of its own, or a table of a catalog.

Iceberg's appends never conflict: one that finds the table changed is made again on top of the
change, and so would an old writer's be. So a transaction of ours is two steps. First a snapshot is
*staged*: it is in the table's metadata, with its rows and its `State`, and no branch leads to it.
Then it is *published* by exchanging the table's metadata: the one in which our newest state is the
one that we know, for one in which the main branch ends in the staged snapshot. If anything has
changed meanwhile, the exchange fails; what has changed decides whether to try again.

The state is a property of the snapshot, and one of the table as well: compaction puts snapshots on
top of ours, and after that ours may be expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.frames import with_comments
from sfpubsub.spark.raw.layout import NEWEST
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from sfpubsub.spark.raw.paths import is_object_store
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.runtime.java_classes import java_class
from sfpubsub.spark.runtime.runtimes import check_session
from sfpubsub.spark.runtime.session import active_session

MAIN = "main"

# Of the snapshot and of the table.
STATE = "sfpubsub.state"
# Of the table: the snapshot whose state it is.
_STATE_OF = "sfpubsub.snapshot"

# A staged snapshot's mark in the format, and the setting with which Spark makes one.
WAP_ID = "wap.id"
WAP_SETTING = "spark.wap.id"

# Tries to publish. Each fails only if something else was committed in the same tenths of a second.
TRIES = 5

# Of a table: lets a snapshot be staged.
_STAGING = "write.wap.enabled"

# Of a table whose snapshots are staged, if it is made by us.
STAGING_PROPERTIES = {
    "format-version": "2",
    _STAGING: "true",
    # Two metadata files a batch: keep the last ones only.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

_PROPERTIES = {
    **STAGING_PROPERTIES,
    # A minimum and a maximum would be an order, and replay ids have none; others are never of use.
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
    ) -> None:
        check_session(spark, "iceberg")
        super().__init__(spark, place, sources, properties)
        if place.in_catalog:
            check_catalog(self._spark, place)
        self._jvm: Any = self._spark._jvm
        self._address = place.url
        self._newest: str | None = None
        """The attempt of the state on top of which the next transaction is made."""

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
        told = self._read(metadata.properties()) or newest  # a rollback leaves properties alone
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
        """Take a table that somebody has made for us, and left empty.

        Raises:
            ConfigurationError: Its columns are others, or it has rows.
        """
        state = self._adopted(self._rows())
        changes = self._table().updateProperties()
        changes.set(_STAGING, "true").set(STATE, state.to_json()).commit()

    def _newest_state(self, metadata: Any) -> State:
        state = self._state_of_branch(metadata) or self._read(metadata.properties())
        if state is None:
            raise ConfigurationError(
                f"{self.place} is an iceberg table of somebody else's: name another destination"
            )
        return state

    def _state_of_branch(self, metadata: Any) -> State | None:
        for snapshot in ancestors(metadata):
            state = self._read(snapshot.summary())
            if state is not None:
                return state
        return None

    def _is_rolled_back(self, metadata: Any) -> bool:
        """Whether the table's property is newer than what the branch, which has no state, holds."""
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
        raise Conflict("the table is being changed by others all the time")

    def _stage(self, frame: DataFrame, state: State, operations: Any, *, empty: bool) -> int:
        """Make a snapshot that no branch leads to, and return its id."""
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
        raise Conflict("the staged snapshot is gone")

    def _append(self, frame: DataFrame, state: State) -> None:
        options = {
            f"snapshot-property.{STATE}": state.to_json(),
            "distribution-mode": "none",  # the frame has one partition, and rows of one day
        }
        # Columns of somebody else's, which we leave empty; a frame must have all of them.
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
        """Exchange the table's metadata for one whose main branch ends in the staged snapshot.

        Returns:
            False if it must be staged again: somebody else's snapshot came in between.

        Raises:
            Conflict: A transaction of ours, or of another writer, came in between.
        """

        def is_ours(base: Any) -> bool:
            if self._newest_state(base).attempt != self._newest:
                raise Conflict("another writer's transaction came in between")
            return True

        properties = {STATE: state.to_json(), _STATE_OF: str(staged)}
        return published(self._spark, operations, staged, properties, is_ours)

    def _replace(self, frame: DataFrame, state: State) -> None:
        if not self.place.in_catalog:
            raise ConfigurationError(
                f"{self.place} is an iceberg table that is only a path, and cannot be replaced in "
                f"one step: it keeps its layout; a new table has the newest layout"
            )
        replacement = frame.writeTo(self._address).using("iceberg")
        # The snapshot whose state it was is no part of the table any more.
        properties = {**_PROPERTIES, _STAGING: "true", STATE: state.to_json(), _STATE_OF: "0"}
        for key, text in properties.items():
            replacement = replacement.tableProperty(key, text)
        replacement.partitionedBy(f.col(state.layout.partition)).replace()
        self._newest = state.attempt

    def _create(self, frame: DataFrame) -> Any:
        """Make a table without rows that is ours from its first moment."""
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
            creation.partitionedBy(f.col(NEWEST.partition)).create()
        else:
            iceberg = self._jvm.org.apache.iceberg
            columns = with_comments(frame).schema.json()
            schema = iceberg.spark.SparkSchemaUtil.convert(
                self._jvm.org.apache.spark.sql.types.DataType.fromJson(columns)
            )
            spec = iceberg.PartitionSpec.builderFor(schema).identity(NEWEST.partition).build()
            order = iceberg.SortOrder.unsorted()
            self._tables().create(schema, spec, order, properties, self._address)
        operations = self._operations()
        self._newest = self._newest_state(operations.current()).attempt
        return operations

    def _operations(self) -> Any:
        """Return what reads and exchanges the table's metadata, as it is now; None without one."""
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
    """Yield snapshots, the newest first, as far back as they are kept.

    Args:
        metadata: The table's.
        newest: The snapshot to begin with; that of the main branch by default.
    """
    snapshot = newest or metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def check_catalog(spark: SparkSession, place: Destination) -> None:
    """Make sure that the catalog can exchange a table's metadata in one step.

    Raises:
        ConfigurationError: It cannot: it has nothing but the renames of an object store.
    """
    catalog = f"spark.sql.catalog.{place.address.split('.')[0]}"
    kind = str(spark.conf.get(f"{catalog}.type", ""))
    made_by = str(spark.conf.get(f"{catalog}.catalog-impl", ""))
    warehouse = str(spark.conf.get(f"{catalog}.warehouse", ""))
    if (kind == "hadoop" or made_by.endswith("HadoopCatalog")) and is_object_store(warehouse):
        raise ConfigurationError(
            f"the catalog of {place} is of type hadoop on {warehouse.split(':')[0]}, which has no "
            f"rename that replaces nothing, so that commits would be lost: use one of type jdbc or "
            f"rest"
        )


def published(
    spark: SparkSession,
    operations: Any,
    staged: int,
    properties: Mapping[str, str],
    is_ours: Callable[[Any], bool],
) -> bool:
    """Exchange a table's metadata for one whose main branch ends in a staged snapshot.

    Args:
        spark: The session.
        operations: The table's.
        staged: Id of the snapshot.
        properties: What the table is given with it.
        is_ours: Whether the table, by its metadata, is still as the snapshot expects it.

    Returns:
        False if it was not done: the table is not as expected, or somebody else's snapshot came in
        between, or others change it all the time.
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
    """Return the id of the main branch's newest snapshot."""
    snapshot = metadata.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def is_conflict(error: Py4JJavaError) -> bool:
    """Whether metadata was not exchanged because it had changed."""
    name = str(error.java_exception.getClass().getName())
    return name == "org.apache.iceberg.exceptions.CommitFailedException"
