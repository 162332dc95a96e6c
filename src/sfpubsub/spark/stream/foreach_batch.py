"""Write the batches of a streaming query to a raw table, each event exactly once.

Used with ``writeStream.foreachBatch``, which by itself guarantees only at-least-once delivery:
Spark repeats a batch whose completion it did not record. Each transaction contains the name of its
batch, built from the query's id and the batch's number, so a repeated batch is recognised. Recent
events are also recognised by their dedupe keys (argument *window*), regardless of their batch. So a
query with a new checkpoint does not write them again either.

Errors raised here are not chained to their causes, which are logged instead. Spark receives the
traceback as text, including the causes, and matches a regular expression against that text when a
query is being stopped. With the stack trace of a Java exception, the match recurses so deeply that
Spark's stream thread dies.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.errors import ConfigurationError, LocalProtocolError, SfPubSubError, WriteError
from sfpubsub.spark.ingest.key_window import DEFAULT_WINDOW
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line, is_connect
from sfpubsub.spark.stream.partition import GAP_EVENT
from sfpubsub.types import Gap, ReplayId

# Local property of the thread that runs a batch: the id of its query. The id is stored in the
# checkpoint, so it stays the same across restarts.
_QUERY_ID = "sql.streaming.queryId"

# Local property with the job group that Spark cancels when it stops the query.
_JOB_GROUP = "spark.jobGroup.id"

# JVM exceptions of an interrupted call. Spark interrupts calls when it stops the query.
_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)

_log = logging.getLogger("sfpubsub.spark")


class ForeachBatchWriter:
    """Writes the batches of a query that reads the source ``sfpubsub``. A context manager.

    ::

        with ForeachBatchWriter(spark, "/data/orders", topic=TOPIC) as writer:
            query = events.writeStream.foreachBatch(writer).option("checkpointLocation", …).start()
            query.awaitTermination()

    Creating a writer takes over the table, as with `EventWriter`; `close` or the end of the process
    releases it. Thread-safe; calls are serialised.

    Args:
        spark: A classic session, because with Spark Connect the server handles the batches.
        path: The table's directory, URL or name in a catalog; see `EventWriter`.
        topic: The topic that the query reads, or several.
        format: ``parquet``, ``delta`` or ``iceberg``.
        window: Seconds for which dedupe keys are kept.
        staging: With parquet: directory for staging and sidecars; see `EventWriter`.
        org_id: Id of the org that the events come from; see `EventWriter`.

    Raises:
        ConfigurationError: The destination is not valid, belongs to other sources or was not
            created by sfpubsub, or is in use by another writer; or the session uses Spark Connect.
        WriteError: The table cannot be read.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str | os.PathLike[str],
        *,
        topic: str | Iterable[str],
        format: str = "parquet",  # noqa: A002  # named as in Spark
        window: float = DEFAULT_WINDOW,
        staging: str | os.PathLike[str] | None = None,
        org_id: str | None = None,
    ) -> None:
        if is_connect(spark):
            raise ConfigurationError(
                "ForeachBatchWriter needs a classic session: with Spark Connect, the server's "
                "process would run it; use an ingest instead, or run the query on the cluster"
            )
        self._lock = threading.Lock()
        with ExitStack() as unless_done:
            self._writer = EventWriter(
                spark,
                path,
                format=format,
                topic=topic,
                window=window,
                staging=staging,
                org_id=org_id,
            )
            unless_done.callback(self._writer.close)
            self._beside = Sidecars(spark, self._writer.destination)
            self._beside.open()
            unless_done.pop_all()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the rows of a batch in one durable transaction.

        1. Collect the rows, in order.
        2. Store gaps durably in their sidecar. They are stored first, because they precede the
           rows.
        3. Drop duplicates, and write the other rows with the batch's name.

        Args:
            batch: Rows with the columns of the source.
            batch_id: Number of the batch in the query.

        Raises:
            LocalProtocolError: The rows do not have the columns and types of the source, this was
                not called by a streaming query, or the writer was closed.
            WriteError: It is unknown whether the batch is in the table. The query fails, and
                repeats the batch when it is restarted.
        """
        context = batch.sparkSession.sparkContext
        query_id = context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise LocalProtocolError(
                "this call was not made by a streaming query: pass this object to "
                "writeStream.foreachBatch(…)"
            )
        name = f"{query_id}/{batch_id}"
        group = context.getLocalProperty(_JOB_GROUP)  # read now: later the JVM may have exited
        try:
            self._write(batch, name)
        except (SfPubSubError, *SPARK_ERRORS, pa.ArrowException) as error:
            # Without the causes, which `_short_error` has logged.
            raise _short_error(error, name, group) from None

    def _write(self, batch: DataFrame, name: str) -> None:
        rows = to_arrow(batch)
        with self._lock:
            if "event_name" in rows.column_names:
                is_gap = pc.fill_null(pc.equal(rows["event_name"], GAP_EVENT), False)
                self._beside.keep_gaps([_gap_of(row) for row in rows.filter(is_gap).to_pylist()])
                rows = rows.filter(pc.invert(is_gap))
            self._writer.write_rows(rows, name=name)

    def close(self) -> None:
        """Release the table for other writers. Can be called repeatedly."""
        with self._lock:
            self._beside.close()
            self._writer.close()

    def __enter__(self) -> ForeachBatchWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _short_error(error: Exception, name: str, group: str | None) -> SfPubSubError:
    """Log the complete error, and return a short one for Spark."""
    if _is_interruption(error, group):
        _log.info("batch %s was interrupted", name, exc_info=error)
        # From the words in parentheses, Spark recognises that it has requested the stop itself.
        # Otherwise it would report that the query failed.
        return WriteError(
            f"batch {name} was interrupted and will be written by the next run "
            f"(org.apache.spark.SparkException: job group {group} was cancelled)"
        )
    _log.error("writing batch %s failed", name, exc_info=error)
    if isinstance(error, SfPubSubError):
        return error
    return WriteError(f"writing batch {name} failed: {first_line(error)}")


def _is_interruption(error: Exception, group: str | None) -> bool:
    return any(
        any(name in text for name in _INTERRUPTIONS)
        or (group is not None and group in text and "cancelled" in text)
        for text in _texts(error)
    )


def _texts(error: BaseException | None) -> Iterator[str]:
    """Yield the messages of an error and its causes, with the JVM's stack traces."""
    while error is not None:
        try:
            yield str(error)
        except SPARK_ERRORS:
            yield ""  # the trace was in a JVM that has exited
        error = error.__cause__ or error.__context__


def _gap_of(row: dict[str, Any]) -> Gap:
    said = json.loads(row["payload_json"])
    return Gap(
        reason=said["reason"],
        subscription=row["subscription"],
        after=ReplayId.from_hex(said["after"]) if said["after"] else None,
        before=ReplayId.from_hex(said["before"]) if said["before"] else None,
        error_code=said["error_code"],
        rpc_id=said["rpc_id"],
    )
