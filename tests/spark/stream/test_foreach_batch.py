"""Streaming queries write each event to a raw table once, even if batches are repeated."""

from __future__ import annotations

import json
import re
import threading
import traceback
from contextlib import nullcontext
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

import sfpubsub.spark
from sfpubsub.emulator.faults import Fault
from sfpubsub.errors import LocalProtocolError
from sfpubsub.spark import ForeachBatchWriter, PubSubDataSource
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.stream import options
from tests.conftest import until
from tests.pages import blocks, page
from tests.spark.source_world import TOPIC, orders, settings_file


class Streams:
    """Runs streaming queries against an emulator and a raw table in one Spark session."""

    def __init__(self, spark, emulator, directory: Path) -> None:
        self.spark = spark
        self.emulator = emulator
        self.directory = directory
        self.table = directory / "table"
        self.settings = settings_file(emulator, directory / "settings.toml")
        spark.dataSource.register(PubSubDataSource)

    def events(self, **more: str):
        given = {
            "topic": TOPIC,
            "startingOffsets": "earliest",
            "idleTimeout": "0.5",
            "configFile": str(self.settings),
            **more,
        }
        return self.spark.readStream.format("sfpubsub").options(**given).load()

    def run(self, checkpoint: str, **more: str):
        """Write all available events to the table with an availableNow query.

        Spark gives its Python processes a fixed 10 s to connect, which can be too short on a busy
        machine. The query is then retried, as no batch has started yet.
        """
        for _ in range(5):
            try:
                return self._run(checkpoint, **more)
            except StreamingQueryException as error:
                if "Python worker failed to connect back" not in str(error):
                    raise
        raise AssertionError("Spark's Python processes did not start")

    def _run(self, checkpoint: str, **more: str):
        with ForeachBatchWriter(self.spark, self.table, topic=TOPIC) as writer:
            query = (
                self.events(**more)
                .writeStream.foreachBatch(writer)
                .option("checkpointLocation", str(self.directory / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                assert query.awaitTermination(300), "the query did not end"
            finally:
                query.stop()
            return query

    def start(self, take):
        """Start a query that passes batches to *take* until it is stopped."""
        query = self.events().writeStream.foreachBatch(take)
        return query.option("checkpointLocation", str(self.directory / "one")).start()

    def ids(self) -> list[str]:
        """Return the table's event ids, read with PyArrow; check that rows are numbered from 0."""
        data = ds.dataset(self.table, schema=SCHEMA, format="parquet")
        rows = data.to_table(columns=["event_id", "ingest_seq"])
        rows = rows.sort_by("ingest_seq")
        assert rows["ingest_seq"].to_pylist() == list(range(len(rows)))
        return rows["event_id"].to_pylist()


class ErrorRecorder:
    """Passes batches to a writer, and records the traceback of any error before re-raising it."""

    def __init__(self, writer: ForeachBatchWriter) -> None:
        self._writer = writer
        self.text = ""

    def __call__(self, batch, number: int) -> None:
        try:
            self._writer(batch, number)
        except Exception:
            self.text = traceback.format_exc()
            raise

    def check_short(self, said: str) -> None:
        assert said in self.text
        assert "py4j" not in self.text.lower()
        # Fits on one screen, with one line for each of our functions on the stack.
        assert len(self.text) < 3_000


@pytest.fixture
def streams(spark, run_emulator, tmp_path) -> Streams:
    return Streams(spark, run_emulator(), tmp_path)


def test_each_event_is_stored_once_even_if_batches_are_repeated(streams: Streams):
    """A batch that Spark repeats is stored once, as are events read again by a new checkpoint."""
    published = streams.emulator.publish(TOPIC, orders(50))
    schemas = streams.table.parent / ".table.sfpubsub" / "_schemas"
    query = streams.run("one", maxOffsetsPerTrigger="20")
    batches = [progress["batchId"] for progress in query.recentProgress if progress.numInputRows]
    assert batches == [0, 1, 2]
    assert streams.ids() == [event.event_id for event in published]
    names = [path.read_text() for path in sorted(streams.table.glob("ingest_date=*/batch=*/_name"))]
    assert names == [f"{query.id}/{number}" for number in batches]
    (schema,) = schemas.glob("*.json")  # so typed tables can be created from the rows
    assert "Order_Event__e" in schema.read_text()

    # As after a kill between the table's commit and Spark's.
    (streams.directory / "one" / "commits" / "2").unlink()
    (streams.directory / "one" / "commits" / ".2.crc").unlink()
    directories = sorted(streams.table.glob("ingest_date=*/batch=*"))
    published += streams.emulator.publish(TOPIC, orders(5, 50))
    streams.run("one", maxOffsetsPerTrigger="20")
    assert streams.ids() == [event.event_id for event in published]
    assert len(sorted(streams.table.glob("ingest_date=*/batch=*"))) == len(directories) + 1

    published += streams.emulator.publish(TOPIC, orders(5, 55))
    streams.run("two", maxOffsetsPerTrigger="40")
    assert streams.ids() == [event.event_id for event in published]
    by_spark = streams.spark.read.parquet(str(streams.table)).orderBy("ingest_seq").collect()
    assert [row.event_id for row in by_spark] == streams.ids()


def test_a_gap_is_recorded_beside_the_table_not_as_a_row(streams: Streams):
    """After data loss, the table has one row per event, and a sidecar file records the gap."""
    published = streams.emulator.publish(TOPIC, orders(10))
    streams.run("one")
    later = streams.emulator.publish(TOPIC, orders(5, 10))
    gone = published[-1].replay_id.hex()
    streams.emulator.faults.add(Fault(kind="age_out", replay_id=gone))
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        streams.run("one")
    streams.run("one", failOnDataLoss="false")
    assert streams.ids() == [event.event_id for event in published + later]
    (gap,) = (streams.table.parent / ".table.sfpubsub" / "_gaps").glob("*.json")
    assert json.loads(gap.read_text())["after"] == gone


def test_a_restarted_query_resumes_from_its_checkpoint(streams: Streams):
    """A query with the default trigger is stopped and restarted, and writes each event exactly
    once.
    """
    published = []
    for part in range(2):
        published += streams.emulator.publish(TOPIC, orders(10, 10 * part))
        with ForeachBatchWriter(streams.spark, streams.table, topic=TOPIC) as writer:
            query = streams.start(writer)
            try:
                until(
                    lambda: streams.table.exists() and len(streams.ids()) >= len(published),  # noqa: B023
                    "the rows",
                    patience=300,
                )
                published += streams.emulator.publish(TOPIC, orders(3, 100 + part))
                until(lambda: len(streams.ids()) >= len(published), "more rows", patience=300)  # noqa: B023
            finally:
                query.stop()
    assert streams.ids() == [event.event_id for event in published]


@pytest.mark.parametrize("moment", ["before Spark is called", "while Spark works"])
def test_a_query_that_is_stopped_during_a_write_ends_cleanly(
    streams: Streams, monkeypatch, caplog, moment: str
):
    """The query reports no error, and the next one writes the batch.

    The error passed to Spark must not contain a Java stack trace: it once caused a
    StackOverflowError in Spark's stream thread.
    """
    caplog.set_level("INFO", "sfpubsub.spark")
    published = streams.emulator.publish(TOPIC, orders(10))
    begun, interrupted = threading.Event(), threading.Event()
    stage = ParquetTable._stage

    def wait(self, rows, staged):
        if moment == "while Spark works":
            work = "java_method('java.lang.Thread', 'sleep', bigint(60000)) AS slept"
            begun.set()
            self._spark.range(1).selectExpr(work).collect()
        begun.set()
        assert interrupted.wait(60.0)
        stage(self, rows, staged)

    monkeypatch.setattr(ParquetTable, "_stage", wait)
    with ForeachBatchWriter(streams.spark, streams.table, topic=TOPIC) as writer:
        query = streams.start(told := ErrorRecorder(writer))
        thread = query._jsq.streamingQuery().queryExecutionThread()
        try:
            assert begun.wait(60.0)
            if moment == "while Spark works":
                tracker = streams.spark.sparkContext.statusTracker()
                until(lambda: tracker.getJobIdsForGroup(str(query.runId)), "a job", patience=60)
        finally:
            stopper = threading.Thread(target=query.stop)  # `stop` returns when the query has ended
            stopper.start()
            if moment == "before Spark is called":
                until(thread.isInterrupted, "the interruption", patience=60)
            interrupted.set()
            stopper.join(60.0)
        assert not stopper.is_alive()
        assert not thread.isAlive()
        assert query.exception() is None
        assert query.status["message"] == "Stopped", "the stream thread died"
        told.check_short("was interrupted and will be written by the next run")
    assert "java.lang.InterruptedException" in caplog.text or "cancelled" in caplog.text
    monkeypatch.undo()
    streams.run("one")
    assert streams.ids() == [event.event_id for event in published]


def test_a_failed_write_is_reported_briefly_and_logged_in_full(
    streams: Streams, monkeypatch, caplog
):
    """If a write fails, the error passed to Spark has no Java stack trace, but the log has one.

    The next query writes the batch.
    """
    published = streams.emulator.publish(TOPIC, orders(3))

    def fail(self, rows, staged):
        self._spark.sql("SELECT raise_error('no such luck')").collect()

    with monkeypatch.context() as broken:
        broken.setattr(ParquetTable, "_stage", fail)
        with ForeachBatchWriter(streams.spark, streams.table, topic=TOPIC) as writer:
            query = streams.start(told := ErrorRecorder(writer))
            with pytest.raises(StreamingQueryException, match="no such luck"):
                query.awaitTermination(60)
    told.check_short("no such luck")
    assert "the direct cause of the following" in caplog.text
    assert "pyspark.errors" in caplog.text
    streams.run("one")
    assert streams.ids() == [event.event_id for event in published]


def test_a_rejected_query_fails_with_the_services_reason(streams: Streams):
    """The error that Spark raises contains the reason that the service gave."""
    streams.emulator.faults.add(Fault(kind="expire_token"))
    with pytest.raises(StreamingQueryException, match="no longer accepts the access token"):
        streams.run("one")


def test_a_wrong_option_is_rejected_before_the_query_starts(streams: Streams):
    """The error for a misspelled option suggests the correct name.

    The error for an option that looks like a credential does not contain its value.
    """
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        streams.events(startingOffset="latest")
    with pytest.raises(AnalysisException, match="looks like a credential") as caught:
        streams.events(accessToken="planted-4711")
    assert "planted-4711" not in str(caught.value)


def test_the_writer_rejects_frames_outside_streaming_queries(streams: Streams):
    """Passing a frame to the writer outside a streaming query raises an error.

    Such a frame has no batch name, so a repeated write could not be detected.
    """
    streams.emulator.publish(TOPIC, orders(1))
    with (
        ForeachBatchWriter(streams.spark, streams.table, topic=TOPIC) as writer,
        pytest.raises(LocalProtocolError, match="foreachBatch"),
    ):
        writer(streams.spark.range(1), 0)


def test_the_query_in_the_documentation_runs(streams: Streams, monkeypatch):
    """The example on the page streaming-source writes all events, with only its paths and idle
    timeout changed.
    """
    (code,) = blocks(page("streaming-source"), "python")
    for path, own in {
        "/etc/sfpubsub.toml": streams.settings,
        "/data/orders_checkpoint": streams.directory / "checkpoint",
        "/data/orders": streams.table,
    }.items():
        assert path in code
        code = code.replace(path, str(own))
    code = code.replace(".load()", '.option("idleTimeout", 0.5).load()')
    published = streams.emulator.publish(TOPIC, orders(3))
    monkeypatch.setattr(sfpubsub.spark, "spark_session", lambda: nullcontext(streams.spark), False)
    exec(compile(code, "page", "exec"), {})
    assert streams.ids() == [event.event_id for event in published]


def test_the_documentation_lists_all_options_and_defaults():
    """The table of options lists each option in order and no other, with the actual defaults."""
    text = page("streaming-source").read_text()
    table = text.split("## Options")[1].split("## ")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert tuple(named) == options.NAMES
    assert f"| {options.DEFAULT_MAX_EVENTS:,} |" in table
    assert f"| {options.DEFAULT_IDLE_TIMEOUT:.0f} |" in table
