"""The sessions of our own, in which tables are written."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.spark.runtime.session import own_session


def test_few_rows_that_are_persisted_are_in_few_partitions(spark: SparkSession):
    """Spark shuffles into 200 partitions where nobody tells it otherwise. What a step persists and
    merges has as many tasks and files as its size needs.
    """

    def same(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows

    own = own_session(spark, {"spark.sql.shuffle.partitions": "50"})
    rows = own.range(100)
    rows = rows.unionAll(rows).repartition("id").mapInArrow(same, rows.schema).persist()
    try:
        assert rows.count() == 200
        assert rows.rdd.getNumPartitions() <= 4
    finally:
        rows.unpersist()
