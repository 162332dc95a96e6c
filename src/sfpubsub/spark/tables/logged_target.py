"""The common part of Delta and Iceberg targets: locking, listing tables, and the session.

On a local path, a lease (raw/lease.py) excludes other processes, as for a raw table. At a URL or in
a catalog, there is no lease: a process detects another writer when a table is not at the step
(steps.py) that the process expects.
"""

from __future__ import annotations

import os
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.durable import make_directory
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats import FormatError
from sfpubsub.spark.raw.flushing import Flusher
from sfpubsub.spark.raw.lease import Lease
from sfpubsub.spark.raw.listing import paths_of_files
from sfpubsub.spark.runtime.checks import check_file_system
from sfpubsub.spark.runtime.session import (
    SPARK_ERRORS,
    driver_at,
    first_line,
    own_session,
)
from sfpubsub.spark.tables.target import Place, Target, TargetTable

# Settings for the Parquet files that Spark writes: store times as `target.parquet_of` does, and
# omit the minimum and maximum of the same columns.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "parquet.column.statistics.enabled#replay_id": "false",
    "parquet.column.statistics.enabled#dedupe_key": "false",
}


# Pattern of files that every table of a format has, and that Spark lists.
_LOGS = {"delta": "_delta_log/*.json", "iceberg": "metadata/version-hint.text"}


class LoggedTarget(Target):
    """A target for Delta or Iceberg tables. See `Target`.

    Args:
        spark: Any Spark session; the target uses a new session of the same driver.
        place: Location of the tables; a missing local directory is created.
        settings: Session settings that the format needs.

    Raises:
        ConfigurationError: Another process is writing there, the directory cannot be created, or
            Spark does not support the file system.
    """

    def __init__(self, spark: SparkSession, place: Place, settings: Mapping[str, str]) -> None:
        if place.local is None and not place.in_catalog:
            check_file_system(spark, place.address)
        super().__init__(own_session(spark, {**_SETTINGS, **settings}), place)
        self._tables: dict[str, TargetTable] = {}
        self._lock = RLock()
        """Guards the opened tables, and the session's settings while they are changed."""
        self._lease: Lease | None = None
        self._flusher: Flusher | None = None
        if place.local is not None:
            self._flusher = Flusher(place.format, place.local)
            try:
                make_directory(place.local)
            except OSError as error:
                raise ConfigurationError(
                    f"{place} cannot be created ({error.strerror}): choose another directory"
                ) from error
            self._lease = Lease.acquire(place.local, driver_at(spark, place.local).pid)

    def table(self, name: str) -> TargetTable:
        """See `Target`."""
        with self._lock:
            if name not in self._tables:
                self._tables[name] = self._open(name)
            return self._tables[name]

    def names(self) -> list[str]:
        """See `Target`."""
        try:
            return sorted(name for name in self._listed() if self._is_ours(name))
        except SPARK_ERRORS as error:
            raise WriteError(f"{self.place} cannot be listed: {first_line(error)}") from error

    def finish(self, step: int) -> None:
        """See `Target`. Flush local files; elsewhere, each transaction is already durable."""
        if self._flusher is None:
            return
        try:
            self._flusher.flush(self._directories())
        except OSError as error:
            raise WriteError(
                f"step {step} of {self.place} was not flushed to the disk ({error}): fix the "
                f"problem and restart to complete the step"
            ) from error

    def close(self) -> None:
        """See `Target`."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    @contextmanager
    def settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        """Set session settings within the block, and unset them afterwards. Thread-safe.

        Other threads that change settings wait.
        """
        with self._lock:
            try:
                for name, value in settings.items():
                    self.spark.conf.set(name, value)
                yield
            finally:
                for name in settings:
                    self.spark.conf.unset(name)

    @abstractmethod
    def _open(self, name: str) -> TargetTable:
        """Return a new object for the table *name*, which need not exist."""

    def _is_ours(self, name: str) -> bool:
        try:
            return self.table(name).exists()
        except ConfigurationError:
            return False

    def _directories(self) -> list[Path]:
        """Return the directories in a local target, which may be tables."""
        local = self.place.local
        return [] if local is None else [Path(each) for each in os.scandir(local) if each.is_dir()]

    def _listed(self) -> list[str]:
        if self.place.in_catalog:
            rows = self.spark.sql(f"SHOW TABLES IN {self.place.in_sql}").collect()
            return [str(row["tableName"]) for row in rows]
        if self.place.local is not None:
            return [entry.name for entry in self._directories()]
        url = self.place.address
        found = paths_of_files(self.spark, f"{url}/*/{_LOGS[self.place.format]}")
        return list({path.removeprefix(url).lstrip("/").partition("/")[0] for path in found})


class LoggedTargetTable(TargetTable):
    """One Delta or Iceberg table. See `TargetTable`."""

    def __init__(self, target: LoggedTarget, name: str) -> None:
        super().__init__(name)
        self._target = target
        self._spark = target.spark
        self._address = target.place.of(name)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FormatError, *SPARK_ERRORS, pa.ArrowException) as error:
            raise WriteError(f"{self._address} {what}: {first_line(error)}") from error

    @contextmanager
    def _named(self, rows: DataFrame) -> Iterator[str]:
        """Register a DataFrame as a temporary view, and yield the name of the view."""
        name = f"rows_{uuid.uuid4().hex}"
        rows.createOrReplaceTempView(name)
        try:
            yield name
        finally:
            self._spark.catalog.dropTempView(name)
