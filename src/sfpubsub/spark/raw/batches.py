"""List and read the batches of a raw table, one by one and in order.

A batch's id contains the ``ingest_seq`` of its first row, padded with zeros, so ids sort in the
order of writing in every format. A published batch never changes. Invariant: a batch is listed only
when it is complete, and never before an earlier batch.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.store import Sessions, TableStore
from sfpubsub.spark.raw.destination import check_raw_table
from sfpubsub.spark.raw.layout import PARTITION, PREFIX, STORED
from sfpubsub.spark.raw.logged import raw_store
from sfpubsub.spark.raw.ownership import BATCH_PREFIX, table_id
from sfpubsub.spark.raw.schema import BATCH_COLUMN
from sfpubsub.spark.runtime.checks import check_file_system
from sfpubsub.spark.runtime.paths import EXACT_PATHS, file_url
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line


@dataclass(frozen=True, order=True)
class RawBatch:
    """One published batch. Batches sort in the order of writing."""

    id: str
    date: str
    """The day of writing (UTC), such as ``2026-11-20``."""


class RawBatches:
    """The batches of one raw table. Not thread-safe.

    Args:
        spark: Session used for reading.
        table: Location of the table.

    Raises:
        ConfigurationError: *table* is not a raw table, or Spark does not support its file system.
    """

    def __init__(self, spark: SparkSession, table: Destination) -> None:
        self._spark = spark
        self._table = table
        self._paths: dict[str, str] = {}
        """For Parquet: URL of the directory of each listed batch, by batch id."""
        self._end: tuple[str, str] | None = None
        """The version listed last and the id of its last batch, to avoid repeated queries."""
        self._store = None
        """The table as its format has it; None for a Parquet table, which has no versions. Only
        the table's log tells of a RESTORE or rollback, its rows do not.
        """
        if table.format != "parquet":
            self._store = raw_store(Sessions(spark, table), table)
        check_raw_table(table)
        if table.local is None and not table.in_catalog:
            check_file_system(spark, table.address)

    def identity(self) -> str | None:
        """Return the table's identity, which stays the same if the table is moved.

        For Delta and Iceberg, it is the id that the format assigned to the table; for Parquet, see
        `sfpubsub.spark.raw.ownership.table_id`.

        Raises:
            WriteError: The table cannot be read.
        """
        with self._errors("identity"):
            if self._store is not None:
                return self._store.identity()
        return table_id(self._table.local) if self._table.local is not None else None

    def version(self) -> str | None:
        """Return the table's current version, which other methods accept as an argument.

        Returns:
            The version, or None for a Parquet table, which has no versions.

        Raises:
            WriteError: The table cannot be read.
        """
        with self._errors("version"):
            return None if self._store is None else self._store.version()

    def is_restored_since(self, version: str | None) -> bool:
        """Return whether the table was restored to an earlier version after *version*.

        False for a Parquet table, which has no versions, and if *version* is None.

        Raises:
            WriteError: The table cannot be read.
        """
        with self._errors("versions"):
            if self._store is None or version is None:
                return False
            return self._store.is_restored_since(version)

    def after(self, last: RawBatch | None, version: str | None = None) -> list[RawBatch]:
        """Return the batches after *last* in the order of writing; all batches if *last* is None.

        Args:
            last: A batch, which may have been removed from the table.
            version: Version of the table; the newest by default.

        Raises:
            WriteError: The table cannot be read.
        """
        begin = "" if last is None else last.id
        if version is not None and self._end is not None:
            known, end = self._end
            if version == known and begin >= end:
                return []
        with self._errors("batches"):
            if self._store is None:
                found = self._listed(last)
            else:
                found = self._queried(self._store, last, version)
        after = sorted(batch for batch in found if batch.id > begin)
        if version is not None:
            self._end = version, after[-1].id if after else begin
        return after

    def named(self, ids: Collection[str], version: str | None = None) -> list[RawBatch]:
        """Return the table's batches that have the given ids, in the order of writing.

        Args:
            ids: Ids of the batches.
            version: Version of the table; the newest by default.

        Raises:
            WriteError: The table cannot be read.
        """
        with self._errors("batches"):
            if self._store is None:
                found = self._listed(None)
            else:
                frame = self._store.read(self._spark, version)
                found = _batches(frame.where(frame[BATCH_COLUMN].isin(*ids)))
        return sorted(batch for batch in found if batch.id in ids)

    def rows(self, batches: Sequence[RawBatch], version: str | None = None) -> DataFrame:
        """Return the rows of some batches, with exactly the columns `layout.STORED`.

        Rows that were removed from the table are missing.

        Args:
            batches: At least one batch.
            version: Version of the table; the newest by default.
        """
        if self._store is None:
            return self._files_of(batches).select(*STORED.names)
        frame = self._store.read(self._spark, version)
        dates, ids = {batch.date for batch in batches}, [batch.id for batch in batches]
        # Spark reads only the partitions of these days.
        days = frame[PARTITION].between(
            *(f.lit(day).cast("date") for day in (min(dates), max(dates)))
        )
        return frame.where(frame[BATCH_COLUMN].isin(*ids) & days).select(*STORED.names)

    def _files_of(self, batches: Sequence[RawBatch]) -> DataFrame:
        if any(batch.id not in self._paths for batch in batches):
            self._list_once(min(batches))
        paths = [self._paths[batch.id] for batch in batches if batch.id in self._paths]
        if not paths:  # the rows were removed, which the caller finds out by counting them
            return self._spark.createDataFrame([], spark_schema(STORED))
        reader = self._spark.read.options(**EXACT_PATHS)
        reader = reader.option("basePath", self._table.url)
        return reader.schema(spark_schema(STORED)).parquet(*paths)

    def _listed(self, last: RawBatch | None) -> list[RawBatch]:
        # A slow listing can miss a batch that is published while it runs, and still contain a later
        # one. So list again, and keep everything up to the newest batch of the first listing.
        newest = max(self._list_once(last), default=None)
        if newest is None:
            return []
        return [batch for batch in self._list_once(last) if batch <= newest]

    def _list_once(self, last: RawBatch | None) -> list[RawBatch]:
        root = self._table.address
        found = []
        for directory in os.listdir(root):
            if not directory.startswith(PREFIX):
                continue
            date = directory.removeprefix(PREFIX)
            if last is not None and date < last.date:
                continue  # an earlier partition has only earlier batches
            for name in os.listdir(os.path.join(root, directory)):
                if name.startswith(BATCH_PREFIX):
                    batch = RawBatch(name.removeprefix(BATCH_PREFIX), date)
                    self._paths[batch.id] = file_url(f"{root}/{directory}/{name}")
                    found.append(batch)
        return found

    def _queried(
        self, store: TableStore, last: RawBatch | None, version: str | None
    ) -> list[RawBatch]:
        frame = store.read(self._spark, version)
        if last is not None:
            frame = frame.where(frame[PARTITION] >= f.lit(last.date).cast("date"))
            frame = frame.where(frame[BATCH_COLUMN] > last.id)
        return _batches(frame)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except SPARK_ERRORS as error:
            raise WriteError(
                f"the {what} of {self._table} cannot be read: {first_line(error)}"
            ) from error


def _batches(frame: DataFrame) -> list[RawBatch]:
    """Return the distinct batches that the rows in *frame* belong to, in no particular order."""
    day = frame[PARTITION].cast("string")
    found = frame.select(BATCH_COLUMN, day.alias("date")).distinct().collect()
    return [RawBatch(row[BATCH_COLUMN], row["date"]) for row in found]
