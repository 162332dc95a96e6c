"""Tests of passing rows to Spark: the size of the tasks, and the caller's active session."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sfpubsub.spark.formats import frames
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.raw.table import rows_among
from sfpubsub.spark.runtime.session import own_session


def test_a_large_batch_is_split_into_several_tasks_on_a_cluster(spark: SparkSession, monkeypatch):
    """A large batch is split into several tasks, because Spark rejects tasks of 128 MiB.

    The largest batch of a stream exceeds that limit.
    """
    ours = spark.newSession()
    ours.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")  # as if it were large
    monkeypatch.setattr(frames, "_is_local", lambda _session: False)
    monkeypatch.setattr(frames, "_TASK_BYTES", 1000)
    rows = pa.table({"payload": [bytes(100)] * 95})
    with frames.frame_of(ours, rows) as frame:
        counts = frame.groupBy(f.spark_partition_id()).count().collect()
    assert sum(row["count"] for row in counts) == 95
    assert max(row["count"] for row in counts) == 10
    assert ours.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "10000"


def test_the_session_of_the_caller_stays_active(spark: SparkSession):
    """A query in the package's own session does not replace the thread's active session.

    The caller may have registered views in that session.
    """
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    rows = own_session(spark).createDataFrame(SCHEMA.empty_table())
    sessions.setActiveSession(spark._jsparkSession)
    assert rows_among(own_session(spark), rows, [b"key"]) == {}
    assert sessions.getActiveSession().get().equals(spark._jsparkSession)
