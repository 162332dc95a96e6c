"""The batches of a raw table, for those who read it one by one in order.

A batch's id is its first ``ingest_seq``, padded, so ids sort in the order of writing in every
format, and a batch that was published never changes. Invariant: a batch is listed whole or not yet,
and never before one that came before it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import WriteError
from sfpubsub.spark.raw.destination import BATCH_PREFIX, HOUR_PREFIX, Destination, check_raw_table
from sfpubsub.spark.raw.frames import spark_schema
from sfpubsub.spark.raw.paths import EXACT_PATHS
from sfpubsub.spark.raw.schema import ADDED_COLUMNS, SCHEMA
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line

_COLUMNS = spark_schema(pa.schema([*SCHEMA, *((name, pa.string()) for name in ADDED_COLUMNS)]))


@dataclass(frozen=True, order=True)
class RawBatch:
    """One published batch. Sorts in the order of writing."""

    id: str
    hour: str
    """Its ``ingest_hour``."""


class RawBatches:
    """The batches of one raw table. Not thread-safe.

    Args:
        spark: The session that reads.
        table: Where the table is.

    Raises:
        ConfigurationError: There is no raw table.
    """

    def __init__(self, spark: SparkSession, table: Destination) -> None:
        self._spark = spark
        self._table = table
        check_raw_table(table)

    def after(self, last: RawBatch | None) -> list[RawBatch]:
        """Return the batches after *last* in order; all of them after None.

        Raises:
            WriteError: The table cannot be read.
        """
        try:
            found = self._listed(last) if self._table.format == "parquet" else self._queried(last)
        except SPARK_ERRORS as error:
            raise WriteError(
                f"the batches of {self._table} cannot be read: {first_line(error)}"
            ) from error
        return sorted(batch for batch in found if last is None or batch.id > last.id)

    def rows(self, batches: Sequence[RawBatch]) -> DataFrame:
        """Return the rows of some batches, with the columns ``ingest_hour`` and ``batch``."""
        if self._table.format == "parquet":
            paths = [
                f"{self._table.url}/{HOUR_PREFIX}{batch.hour}/{BATCH_PREFIX}{batch.id}"
                for batch in batches
            ]
            reader = self._spark.read.options(**EXACT_PATHS)
            reader = reader.option("basePath", self._table.url)
            return reader.schema(_COLUMNS).parquet(*paths)
        frame = self._frame()
        hours, ids = {batch.hour for batch in batches}, [batch.id for batch in batches]
        return frame.where(frame.ingest_hour.isin(*hours) & frame.batch.isin(*ids))

    def _listed(self, last: RawBatch | None) -> list[RawBatch]:
        # A look that takes its time can miss a batch that is published meanwhile and yet see a
        # later one. What a second look finds up to the first one's newest is all there is.
        newest = max(self._list_once(last), default=None)
        if newest is None:
            return []
        return [batch for batch in self._list_once(last) if batch <= newest]

    def _list_once(self, last: RawBatch | None) -> list[RawBatch]:
        root = self._table.address
        hours = [name for name in os.listdir(root) if name.startswith(HOUR_PREFIX)]
        found = []
        for name in hours:
            hour = name.removeprefix(HOUR_PREFIX)
            if last is not None and hour < last.hour:
                continue  # hours do not go back
            found += [
                RawBatch(batch.removeprefix(BATCH_PREFIX), hour)
                for batch in os.listdir(os.path.join(root, name))
                if batch.startswith(BATCH_PREFIX)
            ]
        return found

    def _queried(self, last: RawBatch | None) -> list[RawBatch]:
        frame = self._frame().select(*ADDED_COLUMNS)
        if last is not None:
            frame = frame.where((frame.ingest_hour >= last.hour) & (frame.batch > last.id))
        return [RawBatch(row["batch"], row["ingest_hour"]) for row in frame.distinct().collect()]

    def _frame(self) -> DataFrame:
        if self._table.in_catalog:
            return self._spark.read.table(self._table.address)
        return self._spark.read.format(self._table.format).load(self._table.url)
