"""Detect which batches a raw table has lost through a Delta RESTORE or an Iceberg rollback.

Readers track batch ids, not rows. To them, a written batch belongs to the table even after its rows
are deleted. Only restoring an earlier version of the table removes batches; restoring a later
version brings them back. A restore can be detected only in the table's log, not in its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.iceberg import STATE, ancestors
from sfpubsub.spark.raw.state import State


@dataclass(frozen=True)
class Commit:
    """The commit that created one version of a Delta table."""

    version: int
    batch: str | None = None
    """Id of the batch that the commit added; None if it added no batch."""
    restored: int | None = None
    """The version that the commit restored; None if it is not a restore."""


@dataclass(frozen=True)
class Moves:
    """How a table's batches differ from those of an earlier version."""

    vanished: frozenset[str] = frozenset()
    """Ids of batches that were in the earlier version and are no longer in the table."""
    added: frozenset[str] = frozenset()
    """Ids of batches in the table that were not in the earlier version: new or restored ones."""
    went_back: bool = False
    """Whether the table was restored to an older version since the earlier version."""


def moves(commits: Sequence[Commit], since: int) -> Moves:
    """Return the batches that were added or removed since version *since*.

    Args:
        commits: Consecutive commits up to the current version. The first one must not be later than
            *since* or any version that was restored.
        since: The earlier version.
    """
    batches: dict[int, frozenset[str]] = {}
    live: frozenset[str] = frozenset()
    went_back = False
    for commit in sorted(commits, key=lambda commit: commit.version):
        if commit.restored is not None:
            live = batches.get(commit.restored, frozenset())
            went_back = went_back or commit.version > since
        elif commit.batch is not None:
            live |= {commit.batch}
        batches[commit.version] = live
    then = batches.get(since, frozenset())
    return Moves(then - live, live - then, went_back)


class Lineage(ABC):
    """Gives access to the versions of one raw table. Not thread-safe."""

    @abstractmethod
    def identity(self) -> str:
        """Return the id that the format assigned to the table. Moving the table keeps the id."""

    @abstractmethod
    def version(self) -> str:
        """Return the current version: a Delta version number or an Iceberg snapshot id."""

    @abstractmethod
    def since(self, version: str) -> Moves:
        """Return the batches that were added or removed since an earlier version.

        Changes in parts of the log that have been deleted are not included.
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

    def since(self, version: str) -> Moves:
        """See `Lineage`."""
        now, then = int(self.version()), int(version)
        if now <= then:
            return Moves()
        first = then
        while True:
            commits = self._commits(now - first + 1)
            back = [commit.restored for commit in commits if commit.restored is not None]
            earliest = min([then, *back])
            # The log is kept for 30 days (delta.logRetentionDuration); older commits are deleted.
            if earliest >= first or len(commits) < now - first + 1:
                return moves(commits, then)
            first = earliest

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

    def _commits(self, count: int) -> list[Commit]:
        jvm: Any = self._spark._jvm
        java = jvm.io.delta.tables.DeltaTable
        session = self._spark._jsparkSession
        if self._place.in_catalog:
            table = java.forName(session, self._place.in_sql)
        else:
            table = java.forPath(session, self._place.url)
        history = DataFrame(table.history(count), self._spark)
        found = history.select("version", "operation", "operationParameters", "userMetadata")
        return [
            self._commit(
                row["version"], row["operation"], row["operationParameters"], row["userMetadata"]
            )
            for row in found.collect()
        ]

    def _commit(
        self, version: int, operation: str, parameters: dict[str, str], metadata: str | None
    ) -> Commit:
        if operation == "RESTORE":
            return Commit(version, restored=self._restored(version, parameters or {}))
        state = State.from_json(metadata, str(self._place))
        return Commit(version, batch=None if state is None else state.batch)

    def _restored(self, version: int, parameters: dict[str, str]) -> int:
        """Return the version that a RESTORE restored, resolving a timestamp if necessary."""
        text = parameters.get("version")
        if text not in (None, "null"):
            return int(str(text))
        jvm: Any = self._spark._jvm
        log = self._log()
        time = jvm.java.sql.Timestamp.valueOf(parameters["timestamp"])
        none = jvm.scala.Option.empty()
        return int(log.history().getActiveCommitAtTime(time, none, True, False, True).version())


class IcebergLineage(Lineage):
    """The snapshots of an Iceberg table."""

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self._spark = spark
        self._place = place

    def identity(self) -> str:
        """See `Lineage`."""
        return str(self._metadata().uuid())

    def version(self) -> str:
        """See `Lineage`. A table without snapshots has the version ``0``."""
        snapshot = self._metadata().currentSnapshot()
        return "0" if snapshot is None else str(snapshot.snapshotId())

    def since(self, version: str) -> Moves:
        """See `Lineage`."""
        metadata = self._metadata()
        now: list[str] = []
        for snapshot in ancestors(metadata):
            if str(snapshot.snapshotId()) == version:
                return Moves(added=frozenset(now))
            now += self._batch(snapshot)
        old = metadata.snapshot(int(version))
        # The version has expired, so it is unknown whether the table was rolled back.
        if old is None:
            return Moves(added=frozenset(now))
        then = frozenset(
            batch for snapshot in ancestors(metadata, old) for batch in self._batch(snapshot)
        )
        return Moves(then - {*now}, frozenset(now) - then, went_back=True)

    def at(self, version: str) -> DataFrame:
        """See `Lineage`."""
        reader = self._spark.read.format("iceberg").option("versionAsOf", version)
        return (
            reader.table(self._place.in_sql)
            if self._place.in_catalog
            else reader.load(self._place.url)
        )

    def _batch(self, snapshot: Any) -> list[str]:
        state = State.from_json(snapshot.summary().get(STATE), str(self._place))
        return [] if state is None or state.batch is None else [state.batch]

    def _metadata(self) -> Any:
        jvm: Any = self._spark._jvm
        session = self._spark._jsparkSession
        if self._place.in_catalog:
            spark = jvm.org.apache.iceberg.spark
            table = spark.Spark3Util.loadIcebergTable(session, self._place.address)
        else:
            configuration = session.sessionState().newHadoopConf()
            table = jvm.org.apache.iceberg.hadoop.HadoopTables(configuration).load(self._place.url)
        operations = table.operations()
        operations.refresh()
        return operations.current()


def lineage_of(spark: SparkSession, place: Destination) -> Lineage | None:
    """Return the `Lineage` of a raw table; None for a Parquet table, which has no versions."""
    if place.format == "delta":
        return DeltaLineage(spark, place)
    if place.format == "iceberg":
        return IcebergLineage(spark, place)
    return None
