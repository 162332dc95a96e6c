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

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.destination import Destination, Source
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.runtime.runtimes import check_session

_MAIN = "main"

# Of the snapshot and of the table.
_STATE = "sfpubsub.state"
# Of the table: the snapshot whose state it is.
_STATE_OF = "sfpubsub.snapshot"

# A staged snapshot's mark in the format, and the setting with which Spark makes one.
_WAP_ID = "wap.id"
_WAP_SETTING = "spark.wap.id"

# Tries to publish. Each fails only if something else was committed in the same tenths of a second.
_TRIES = 5

_PROPERTIES = {
    "format-version": "2",
    # Lets a snapshot be staged.
    "write.wap.enabled": "true",
    # Two metadata files a batch: keep the last ones only.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # A minimum and a maximum would be an order, and replay ids have none; others are never of use.
    "write.metadata.metrics.column.replay_id": "none",
    "write.metadata.metrics.column.dedupe_key": "none",
    "write.metadata.metrics.column.payload": "none",
    "write.metadata.metrics.column.payload_json": "none",
}


class IcebergTable(LoggedTable):
    """A raw table in Iceberg format. See `LoggedTable`."""

    def __init__(
        self, spark: SparkSession, place: Destination, sources: tuple[Source, ...]
    ) -> None:
        check_session(spark, "iceberg")
        super().__init__(spark, place, sources)
        self._jvm: Any = self._spark._jvm
        self._address = place.url
        self._newest: str | None = None
        """The attempt of the state on top of which the next transaction is made."""

    def _load(self) -> State | None:
        operations = self._operations()
        if operations is None:
            return None
        metadata = operations.current()
        newest = self._newest_state(metadata)
        self._newest = newest.attempt
        if self._is_rolled_back(metadata):
            return self._from_rows(newest)
        return newest

    def _newest_state(self, metadata: Any) -> State:
        state = self._state_of_branch(metadata) or self._read(metadata.properties())
        if state is None:
            raise ConfigurationError(
                f"{self.place} is an iceberg table of somebody else's: name another destination"
            )
        return state

    def _state_of_branch(self, metadata: Any) -> State | None:
        for snapshot in _ancestors(metadata):
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
        return State.from_json(properties.get(_STATE), str(self.place))

    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        operations = self._operations()
        if operations is None:
            operations = self._create(frame)
        for _ in range(_TRIES):
            staged = self._stage(frame, state, operations, empty=empty)
            if self._publish(staged, state, operations):
                self._newest = state.attempt
                return
        raise Conflict("the table is being changed by others all the time")

    def _stage(self, frame: DataFrame, state: State, operations: Any, *, empty: bool) -> int:
        """Make a snapshot that no branch leads to, and return its id."""
        if empty:
            append = self._table().newFastAppend()
            append.set(_STATE, state.to_json()).set(_WAP_ID, state.attempt).stageOnly().commit()
        else:
            self._spark.conf.set(_WAP_SETTING, state.attempt)
            try:
                self._append(frame, state)
            finally:
                self._spark.conf.unset(_WAP_SETTING)
        snapshots = operations.refresh().snapshots()
        for index in reversed(range(len(snapshots))):
            if snapshots[index].summary().get(_WAP_ID) == state.attempt:
                return int(snapshots[index].snapshotId())
        raise Conflict("the staged snapshot is gone")

    def _append(self, frame: DataFrame, state: State) -> None:
        options = {
            f"snapshot-property.{_STATE}": state.to_json(),
            "distribution-mode": "none",  # the frame has one partition, and rows of one hour
        }
        writer = frame.write.format("iceberg").mode("append").options(**options)
        with self._active_session():
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
        for _ in range(_TRIES):
            base = operations.refresh()
            if self._newest_state(base).attempt != self._newest:
                raise Conflict("another writer's transaction came in between")
            snapshot = base.snapshot(staged)
            if snapshot is None or snapshot.parentId() != _tip(base):
                return False
            changed = (
                self._jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
                .setBranchSnapshot(staged, _MAIN)
                .setProperties({_STATE: state.to_json(), _STATE_OF: str(staged)})
                .build()
            )
            try:
                operations.commit(base, changed)
            except Py4JJavaError as error:
                if not _is_conflict(error):
                    raise
                continue
            return True
        return False

    def _create(self, frame: DataFrame) -> Any:
        """Make a table without rows that is ours from its first moment."""
        properties = {
            **_PROPERTIES,
            _STATE: State.first(self._sources, self._writer).to_json(),
        }
        if self.place.in_catalog:
            creation = frame.limit(0).writeTo(self._address).using("iceberg")
            for key, text in properties.items():
                creation = creation.tableProperty(key, text)
            creation.partitionedBy(f.col("ingest_hour")).create()
        else:
            iceberg = self._jvm.org.apache.iceberg
            schema = iceberg.spark.SparkSchemaUtil.convert(frame._jdf.schema())
            spec = iceberg.PartitionSpec.builderFor(schema).identity("ingest_hour").build()
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
        with self._active_session():
            return self._spark.read.format("iceberg").load(self._address)


def _ancestors(metadata: Any) -> Iterator[Any]:
    """Yield the snapshots of the main branch, the newest first, as far back as they are kept."""
    snapshot = metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def _tip(metadata: Any) -> int | None:
    snapshot = metadata.currentSnapshot()
    return None if snapshot is None else int(snapshot.snapshotId())


def _is_conflict(error: Py4JJavaError) -> bool:
    name = str(error.java_exception.getClass().getName())
    return name == "org.apache.iceberg.exceptions.CommitFailedException"
