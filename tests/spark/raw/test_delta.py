"""Raw tables in Delta: maintenance and restores by others, and conflicts between writers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark import EventWriter, read_sidecar
from sfpubsub.spark.formats.delta import DeltaStore
from sfpubsub.spark.ingest.screening import Part
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.state import APPLICATION
from tests.spark.conftest import TABLE_FORMAT, jobs_begun
from tests.spark.readers import ids_of
from tests.spark.sample_events import MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

OTHER = "/event/Other__e"

pytestmark = pytest.mark.skipif(
    TABLE_FORMAT != "delta",
    reason="this PySpark is set up for Iceberg; Delta runs with PySpark 4.2",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def open_writer(spark: SparkSession, table: Path):
    opened: list[EventWriter] = []

    def open_one(**options) -> EventWriter:
        if opened:
            opened[-1].close()
        options.setdefault("topic", None if "subscription" in options else TOPIC)
        opened.append(EventWriter(spark, table, format="delta", clock=lambda: NOW, **options))
        return opened[-1]

    yield open_one
    opened[-1].close()


def part(source: str, numbers) -> Part:
    rows = EventRows()
    rows.extend(batch_of([raw_event(n) for n in numbers], topic=_topic(source)), NOW)
    return Part(source, rows)


def _topic(source: str) -> str | None:
    return source if source.startswith("/") else None


def events(count: int) -> list[str]:
    return [f"event-{n}" for n in range(count)]


def test_writers_resume_after_compaction(spark, open_writer, table):
    """After OPTIMIZE, both an open writer and a new one resume without storing an event twice."""
    writer = open_writer()
    writer.write(batch_of(range(2)))
    writer.write(batch_of(range(4)))
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert writer.write(batch_of(range(5))).first_seq == 4
    spark.sql(f"OPTIMIZE delta.`{table}`")
    writer = open_writer()
    assert writer.position == replay_id(4)
    result = writer.write(batch_of(range(6)))
    assert (result.rows, result.duplicates, result.first_seq) == (1, 5, 5)
    assert ids_of(table, "delta") == events(6)


def test_state_is_read_from_the_rows_if_the_log_has_lost_our_commits(spark, open_writer, table):
    """If the log no longer contains our commits, position and row numbers are read from the rows.

    Delta expires commits after 30 days.
    """
    open_writer().write(batch_of(range(3)))
    for _ in range(2):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('note' = 'x')")
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.forTable(spark._jsparkSession, str(table)).checkpoint()
    newest = max(path.name for path in table.glob("_delta_log/*.json"))
    for path in table.glob("_delta_log/*.json"):
        if path.name != newest:
            path.unlink()
    log.clearCache()
    writer = open_writer()
    assert writer.position == replay_id(2)
    result = writer.write(batch_of(range(5)))
    assert (result.rows, result.duplicates, result.first_seq) == (2, 3, 3)
    assert ids_of(table, "delta") == events(5)


def test_a_restored_table_resumes_from_its_rows(spark, open_writer, table):
    """After RESTORE, the position is that of the newest remaining row.

    Removed events can be written again, and the table still belongs to its topic.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    version = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["version"]
    writer.write(batch_of(range(2, 5)))
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    writer.close()
    with pytest.raises(ConfigurationError, match=f"belongs to topic {TOPIC}"):
        EventWriter(spark, table, format="delta", topic="/event/Other__e")
    writer = open_writer()
    assert writer.position == replay_id(1)
    result = writer.write(batch_of(range(6)))
    assert (result.rows, result.duplicates) == (4, 2)
    assert result.first_seq == 5, "the numbers of removed rows are not reused"
    assert ids_of(table, "delta") == events(6)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_restore_while_a_writer_is_open_is_noticed(spark, lake, tmp_path, is_local):
    """The next write fails, and the one after it resumes from the rows: no event is lost, and none
    is stored twice.
    """
    table = lake / tmp_path.name
    place = table if is_local else f"viewfs://lake/tables/{tmp_path.name}"
    with EventWriter(spark, place, format="delta", topic=TOPIC, clock=lambda: NOW) as writer:
        writer.write(batch_of(range(2)))
        version = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["version"]
        writer.write(batch_of(range(2, 5)))
        spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
        with pytest.raises(WriteError, match="restored to an earlier version"):
            writer.write(batch_of([5]))
        result = writer.write(batch_of(range(7)))
        assert (result.rows, result.duplicates, result.first_seq) == (5, 2, 5)
    assert ids_of(table, "delta") == events(7)


def test_a_restore_records_one_gap_for_a_managed_subscription(spark, open_writer, table):
    """The service does not redeliver the removed events, so a gap is recorded.

    Opening the table again records no second gap.
    """
    writer = open_writer(subscription=MANAGED)
    writer.write(batch_of(range(2), topic=None))
    version = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["version"]
    writer.write(batch_of(range(2, 5), topic=None))
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    for _ in range(2):
        open_writer(subscription=MANAGED)
        (gap,) = read_sidecar(spark, table, "gaps").collect()
        assert (gap["reason"], gap["subscription"]) == ("restored", MANAGED)
        assert gap["after"] == replay_id(1).hex()


def test_a_restored_table_resumes_each_of_its_sources_separately(spark, open_writer, table):
    """After RESTORE, each topic resumes from its own newest row.

    A gap is recorded for each managed subscription. This applies even to sources that the next job
    does not read.
    """
    sources = {"subscription": [MANAGED, "Second"], "topic": [TOPIC, OTHER]}
    writer = open_writer(**sources)
    batches = {MANAGED: (0, 1), TOPIC: (10, 11), OTHER: (20, 21)}
    writer.write_parts([part(name, [first]) for name, (first, _) in batches.items()])
    version = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["version"]
    writer.write_parts([part(name, [second]) for name, (_, second) in batches.items()])
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
    writer = open_writer(topic=TOPIC)
    assert writer.positions == {TOPIC: replay_id(10), OTHER: replay_id(20)}
    gaps = read_sidecar(spark, table, "gaps").collect()
    assert {(gap["reason"], gap["subscription"], gap["after"]) for gap in gaps} == {
        ("restored", MANAGED, replay_id(0).hex()),
        ("restored", "Second", None),
    }
    writer = open_writer(**sources)
    results = writer.write_parts([part(name, both) for name, both in batches.items()])
    assert [(found.rows, found.duplicates) for found in results] == [(1, 1)] * 3


def test_a_commit_that_delta_skips_raises_an_error(open_writer, table, monkeypatch):
    """The writer detects a commit that Delta silently skipped, and can then write the batch.

    Delta skips a transaction number that the table already has.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    known = writer._table._state
    writer._table._state = type(known)(**{**vars(known), "number": known.number - 1})
    with pytest.raises(WriteError, match=r"nothing was acked.*already has transaction"):
        writer.write(batch_of([2]))
    assert writer.write(batch_of([2])).rows == 1
    assert ids_of(table, "delta") == events(3)


def test_a_write_to_a_local_disk_runs_no_spark_job(spark, open_writer, table):
    """After the first write, delta-rs writes to a local disk, where Spark would run four jobs.

    The log still contains the transaction number that keeps two writers apart.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    for count in (4, 6):
        before = jobs_begun(spark)
        writer.write(batch_of(range(count)))
        assert jobs_begun(spark) == before
    assert ids_of(table, "delta") == events(6)
    newest = max(table.glob("_delta_log/*.json")).read_text()
    assert f'"txn":{{"appId":"{APPLICATION}","version":{writer._table._state.number}' in newest


def test_a_commit_by_another_writer_in_between_is_detected(spark, lake, tmp_path, monkeypatch):
    """A write fails if another writer commits after the write has been prepared."""
    url = f"viewfs://lake/tables/{tmp_path.name}"
    older = EventWriter(spark, url, format="delta", topic=TOPIC, clock=lambda: NOW)
    older.write(batch_of([0]))
    newer: list[EventWriter] = []
    save = DeltaStore._save

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        newer.append(EventWriter(spark, url, format="delta", topic=TOPIC, clock=lambda: NOW))
        save(*arguments, **options)

    monkeypatch.setattr(DeltaStore, "_save", overtaken)
    with pytest.raises(WriteError, match="taken over by another writer"):
        older.write(batch_of([1]))
    assert newer[0].write(batch_of(range(2))).rows == 1
    assert ids_of(lake / tmp_path.name, "delta") == events(2)


def test_replay_ids_have_no_min_and_max_statistics(open_writer, table):
    """Neither the log nor the files contain bounds of replay ids, which are not ordered."""
    import pyarrow.parquet as pq

    open_writer().write(batch_of(range(5)))
    (file,) = table.glob("ingest_date=*/*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    statistics = columns["replay_id"].statistics
    assert statistics is None or not statistics.has_min_max
    assert columns["ingest_seq"].statistics.max == 4
    log = "".join(path.read_text() for path in table.glob("_delta_log/*.json"))
    assert '\\"ingest_seq\\":4' in log
    for bound in ("minValues", "maxValues"):
        assert not re.search(rf'\\"{bound}\\":{{[^}}]*replay_id', log)


def test_a_table_opens_in_a_thread_without_an_active_session(open_writer, table, spark):
    """A thread that has not used Spark has no active session; opening a table needs none."""
    open_writer().write(batch_of(range(2)))
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    sessions.clearActiveSession()
    assert open_writer().position == replay_id(1)
    for _ in range(2):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('note' = 'x')")
    newest = max(path.name for path in table.glob("_delta_log/*.json"))
    log.forTable(spark._jsparkSession, str(table)).checkpoint()
    for path in table.glob("_delta_log/*.json"):
        if path.name != newest:
            path.unlink()
    log.clearCache()
    sessions.clearActiveSession()
    assert open_writer().position == replay_id(1)
