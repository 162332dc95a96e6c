"""The raw table in Iceberg format, at a path or URL or in a catalog.

Each of our transactions is an append whose note (formats/iceberg.py) is the `State`. It is
published only if the newest state in the table is the one that the writer last read or wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.iceberg import COPIED, IDENTITY, Busy, History, Iceberg, in_directory
from sfpubsub.spark.raw.frames import with_comments
from sfpubsub.spark.raw.layout import PARTITION
from sfpubsub.spark.raw.logged import LoggedTable
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.paths import is_object_store

# Name of the snapshot property and of the table property that contain the state.
STATE = "sfpubsub.state"

# Store no minimum and maximum. They imply an order, which replay ids do not have, and would be
# useless for the other columns.
_PROPERTIES = {
    f"write.metadata.metrics.column.{column}": "none"
    for column in ("replay_id", "dedupe_key", "payload", "payload_json")
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
        self._table = iceberg_at(self._spark, place)
        self._newest: str | None = None
        """Attempt id of the state on which the next transaction builds."""

    def _load(self) -> State | None:
        if not self._table.exists():
            return None
        history, properties = self._table.history(), self._table.properties()
        copied = self._read(properties.get(STATE))
        newest = self._newest_of(history) or copied
        if newest is None:
            newest = self._adopted(self._rows())  # a table that the user created in advance
            self._table.set({STATE: newest.to_json(), IDENTITY: uuid.uuid4().hex})
        self._newest = newest.attempt
        told = copied or newest  # a rollback does not change properties
        has_lost_all = self._is_rolled_back(history, properties.get(COPIED))
        self._is_restored = has_lost_all or told.number > newest.number
        if has_lost_all or self._is_outdated(newest, history):
            return self._from_rows(newest)
        return replace(
            newest,
            next_seq=max(newest.next_seq, told.next_seq),
            number=max(newest.number, told.number),
        )

    def _newest_of(self, history: History) -> State | None:
        """Return the newest state of the main branch that has not expired."""
        return next(filter(None, (self._read(found.note) for found in history.main())), None)

    def _is_rolled_back(self, history: History, copied: str | None) -> bool:
        """Return whether the table was rolled back to a snapshot before sfpubsub's first one.

        In that case, the main branch has no state of sfpubsub, but the snapshot of the copied state
        still exists, and not just because of a branch of our own.
        """
        return (
            copied is not None
            and int(copied) in history.snapshots
            and int(copied) not in (found.id for found in history.left)
            and self._newest_of(history) is None
        )

    def _is_outdated(self, copied: State, history: History) -> bool:
        """Return whether the table has newer rows than the copied state tells.

        That is possible only if a writer was killed before it copied the state of its last
        transaction, and the transaction's snapshot has expired.
        """
        if self._newest_of(history) is not None:
            return False
        ((newest,),) = self._rows().agg(f.max("ingest_seq")).collect()
        return newest is not None and newest >= copied.next_seq

    def _read(self, text: str | None) -> State | None:
        return State.from_json(text, str(self.place))

    def _write(self, frame: DataFrame, state: State, *, empty: bool) -> None:
        if not self._table.exists():
            self._create(frame)
        # The DataFrame must contain every column of the table. Leave those added by others empty.
        others = [
            f.lit(None).cast(field.dataType).alias(field.name)
            for field in self._rows().schema
            if field.name not in frame.columns
        ]
        try:
            # Not `withColumns`, to which Spark Connect must be given at least one column.
            if self._table.append(frame.select("*", *others), state.to_json(), self._is_next):
                self._newest = state.attempt
                return
        except Busy as error:
            raise Conflict(str(error)) from error
        raise Conflict(
            "another writer committed in the meantime: use only one writer for each table"
        )

    def _is_next(self, history: History) -> bool:
        newest = self._newest_of(history) or self._read(self._table.properties().get(STATE))
        return newest is not None and newest.attempt == self._newest

    def _create(self, frame: DataFrame) -> None:
        """Create an empty table with its first `State`."""
        state = State.first(self._sources, self._writer)
        ours = {STATE: state.to_json(), IDENTITY: uuid.uuid4().hex}
        properties = {**_PROPERTIES, **self._properties, **ours}
        self._table.create(with_comments(frame).limit(0), properties, PARTITION)
        self._newest = state.attempt

    def _rows(self) -> DataFrame:
        return self._table.read()


def iceberg_at(spark: SparkSession, place: Destination) -> Iceberg:
    """Return the table at a place. A path-based one needs a session of its own."""
    if place.in_catalog:
        return Iceberg(spark, place.address.split("."), STATE)
    return Iceberg(spark, in_directory(spark, place.url), STATE)


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
