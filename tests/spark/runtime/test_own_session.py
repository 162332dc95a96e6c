"""Tests of the separate Spark sessions in which the package writes tables."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from sfpubsub.spark.runtime.session import own_session
from sfpubsub.spark.runtime.sql import READING, quoted, sql_text


def test_persisting_few_rows_creates_few_partitions(spark: SparkSession):
    """In a separate session, the number of partitions depends on the size of the data.

    By default, Spark would shuffle 200 rows into 200 partitions, with as many tasks and files.
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


def test_quoted_names_and_texts_mean_what_they_say(spark: SparkSession):
    """They do so even if the cluster's settings let Spark read its SQL differently."""
    everywhere = spark.sparkContext._jsc.sc().conf()
    name, text = "a.*", "it's a \\\\ or a \\n"
    for setting in READING:
        everywhere.set(setting, "true")
    try:
        own = own_session(spark)
    finally:
        for setting in READING:
            everywhere.remove(setting)
    rows = own.range(1).selectExpr(f"{sql_text(text)} AS {quoted(name)}", f"2 AS {quoted('a.b')}")
    assert [tuple(row) for row in rows.selectExpr(quoted(name)).collect()] == [(text,)]
