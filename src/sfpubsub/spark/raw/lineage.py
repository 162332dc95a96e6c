"""The versions of a raw table, and whether it was restored to an earlier one.

Tables that are derived from a raw table cannot follow a Delta RESTORE or an Iceberg rollback. It
can be detected only in the table's log, not in its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import takewhile

from pyspark.sql import DataFrame, SparkSession

from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.delta import delta_table
from sfpubsub.spark.raw.iceberg import IDENTITY, iceberg_at
from sfpubsub.spark.runtime.paths import EXACT_PATHS
from sfpubsub.spark.runtime.session import own_session


class Lineage(ABC):
    """Gives access to the versions of one raw table. Not thread-safe."""

    @abstractmethod
    def identity(self) -> str:
        """Return the id that the format assigned to the table. Moving the table keeps the id."""

    @abstractmethod
    def version(self) -> str:
        """Return the current version: a Delta version number or an Iceberg snapshot id."""

    @abstractmethod
    def is_restored_since(self, version: str) -> bool:
        """Return whether the table was restored to any earlier version after *version*.

        A restore in a part of the log that has been deleted is not noticed.
        """

    @abstractmethod
    def at(self, version: str) -> DataFrame:
        """Return the table's rows as of *version*, which must not have expired."""


class DeltaLineage(Lineage):
    """The versions of a Delta table."""

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self._store = delta_table(spark, place)

    def identity(self) -> str:
        """See `Lineage`."""
        return self._store.identity()

    def version(self) -> str:
        """See `Lineage`."""
        return str(self._store.version())

    def is_restored_since(self, version: str) -> bool:
        """See `Lineage`."""
        # The log is kept for 30 days (delta.logRetentionDuration); older commits are deleted.
        newer = takewhile(lambda each: each.version > int(version), self._store.commits())
        return any(each.operation == "RESTORE" for each in newer)

    def at(self, version: str) -> DataFrame:
        """See `Lineage`."""
        return self._store.read(version)


class IcebergLineage(Lineage):
    """The snapshots of an Iceberg table."""

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self._spark = spark
        self._place = place
        self._table = iceberg_at(spark if place.in_catalog else own_session(spark), place)

    def identity(self) -> str:
        """See `Lineage`."""
        ours = self._table.properties().get(IDENTITY)
        if ours is not None:
            return ours
        # A table of an earlier version has only Iceberg's own id, which is in its metadata.
        reader = self._spark.read.options(**EXACT_PATHS, multiLine="true")
        metadata = reader.schema("`table-uuid` STRING").json(self._table.metadata_file())
        return str(metadata.collect()[0][0])

    def version(self) -> str:
        """See `Lineage`. A table without snapshots has the version ``0``."""
        return str(self._table.history().tip or 0)

    def is_restored_since(self, version: str) -> bool:
        """See `Lineage`."""
        history = self._table.history()
        if int(version) in (snapshot.id for snapshot in history.main()):
            return False
        # If the version has expired, it is unknown whether the table was rolled back.
        return int(version) in history.snapshots

    def at(self, version: str) -> DataFrame:
        """See `Lineage`."""
        reader = self._spark.read.format("iceberg").option("versionAsOf", version)
        return (
            reader.table(self._place.in_sql)
            if self._place.in_catalog
            else reader.load(self._place.url)
        )


def lineage_of(spark: SparkSession, place: Destination) -> Lineage | None:
    """Return the `Lineage` of a raw table; None for a Parquet table, which has no versions."""
    if place.format == "delta":
        return DeltaLineage(spark, place)
    if place.format == "iceberg":
        return IcebergLineage(spark, place)
    return None
