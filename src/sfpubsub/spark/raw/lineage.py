"""The versions of a raw table, and whether it was restored to an earlier one.

Tables that are derived from a raw table cannot follow a Delta RESTORE or an Iceberg rollback. It
can be detected only in the table's log, not in its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.iceberg import IDENTITY, iceberg_at
from sfpubsub.spark.raw.paths import EXACT_PATHS
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
        self._spark = spark
        self._place = place
        self._url: str | None = None if place.in_catalog else place.url

    def identity(self) -> str:
        """See `Lineage`."""
        return str(self._snapshot().metadata().id())

    def version(self) -> str:
        """See `Lineage`."""
        return str(self._snapshot().version())

    def is_restored_since(self, version: str) -> bool:
        """See `Lineage`."""
        newer = int(self.version()) - int(version)
        if newer <= 0:
            return False
        # The log is kept for 30 days (delta.logRetentionDuration); older commits are deleted.
        return bool(self._history(newer).where(f.col("operation") == "RESTORE").head(1))

    def at(self, version: str) -> DataFrame:
        """See `Lineage`."""
        reader = self._spark.read.format("delta").option("versionAsOf", version)
        if self._place.in_catalog:
            return reader.table(self._place.in_sql)
        return reader.load(self._place.url)

    def _log(self) -> Any:
        jvm: Any = self._spark._jvm
        if self._url is None:
            found = self._spark.sql(f"DESCRIBE DETAIL {self._place.in_sql}").collect()[0]
            self._url = str(found["location"])
        logs = jvm.org.apache.spark.sql.delta.DeltaLog
        return logs.forTable(self._spark._jsparkSession, self._url)

    def _snapshot(self) -> Any:
        jvm: Any = self._spark._jvm
        log, none = self._log(), jvm.scala.Option.empty()
        log.update(False, none, none)
        return log.unsafeVolatileSnapshot()

    def _history(self, count: int) -> DataFrame:
        """Return the newest *count* commits."""
        jvm: Any = self._spark._jvm
        java = jvm.io.delta.tables.DeltaTable
        session = self._spark._jsparkSession
        # By path, because `forName` takes no name with a catalog.
        path = str(self._log().dataPath())
        return DataFrame(java.forPath(session, path).history(count), self._spark)


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
