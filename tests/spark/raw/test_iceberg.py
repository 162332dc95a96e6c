"""Raw tables in Iceberg: maintenance and rollbacks by other programs, and concurrent writers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats.iceberg import IcebergStore
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of
from tests.spark.sample_events import NOW, TOPIC, batch_of, replay_id

pytestmark = pytest.mark.skipif(
    TABLE_FORMAT != "iceberg",
    reason="iceberg has no jars for this PySpark: scripts/test_iceberg.sh runs it with 4.1",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def open_writer(spark: SparkSession, table: Path):
    opened: list[EventWriter] = []

    def open_one(place: Path | str = table) -> EventWriter:
        if opened:
            opened[-1].close()
        opened.append(EventWriter(spark, place, format="iceberg", topic=TOPIC, clock=lambda: NOW))
        return opened[-1]

    yield open_one
    opened[-1].close()


def events(count: int) -> list[str]:
    return [f"event-{n}" for n in range(count)]


def loaded(spark: SparkSession, table: Path):
    tables = spark._jvm.org.apache.iceberg.hadoop.HadoopTables
    return tables(spark._jsparkSession.sessionState().newHadoopConf()).load(f"file://{table}")


def compact(spark: SparkSession, table: Path) -> None:
    actions = spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
    rewrite = actions.rewriteDataFiles(loaded(spark, table)).option("rewrite-all", "true")
    assert rewrite.execute().rewrittenDataFilesCount() > 1


def test_compaction_and_expiry_do_not_lose_the_position(spark, open_writer, table):
    """Writers resume even if expiry leaves only a compacted snapshot, which does not contain the
    writer's state.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    writer.write(batch_of(range(4)))
    compact(spark, table)
    assert writer.write(batch_of(range(5))).first_seq == 4
    compact(spark, table)
    loaded(spark, table).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    found = loaded(spark, table)
    assert found.operations().current().snapshots().size() == 1
    assert found.currentSnapshot().summary().get("sfpubsub.state") is None
    writer = open_writer()
    assert writer.position == replay_id(4)
    result = writer.write(batch_of(range(6)))
    assert (result.rows, result.duplicates, result.first_seq) == (1, 5, 5)
    assert ids_of(table, "iceberg") == events(6)


def test_a_compaction_during_a_write_is_not_undone(spark, open_writer, table, monkeypatch):
    """If the table is compacted while a write is staged but not published, the write is staged
    again on top of the compaction.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    writer.write(batch_of(range(4)))
    publish = IcebergStore._publish
    compacted: list[bool] = []

    def publish_late(self, *arguments):
        if not compacted:
            compacted.append(True)
            compact(spark, table)
        return publish(self, *arguments)

    monkeypatch.setattr(IcebergStore, "_publish", publish_late)
    assert writer.write(batch_of(range(6))).rows == 2
    assert ids_of(table, "iceberg") == events(6)
    snapshots = spark.read.format("iceberg").load(f"{table}#snapshots").collect()
    found = {row["snapshot_id"]: row for row in snapshots}
    tip = loaded(spark, table).currentSnapshot().snapshotId()
    assert found[found[tip]["parent_id"]]["operation"] == "replace"


def test_a_rolled_back_table_resumes_from_its_snapshot(spark, open_writer, table):
    """After a rollback, a writer resumes at the position stored in the older snapshot, and events
    that were rolled back can be written again.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    snapshot = loaded(spark, table).currentSnapshot().snapshotId()
    writer.write(batch_of(range(2, 5)))
    loaded(spark, table).manageSnapshots().rollbackTo(snapshot).commit()
    writer = open_writer()
    assert writer.position == replay_id(1)
    result = writer.write(batch_of(range(6)))
    assert (result.rows, result.duplicates) == (4, 2)
    assert result.first_seq == 5, "the numbers of removed rows are not reused"
    assert ids_of(table, "iceberg") == events(6)


def test_a_rollback_while_a_writer_is_open_is_noticed(spark, open_writer, table):
    """The next write fails, and the one after it resumes from the rows."""
    writer = open_writer()
    writer.write(batch_of(range(2)))
    snapshot = loaded(spark, table).currentSnapshot().snapshotId()
    writer.write(batch_of(range(2, 5)))
    loaded(spark, table).manageSnapshots().rollbackTo(snapshot).commit()
    with pytest.raises(WriteError, match="restored to an earlier version"):
        writer.write(batch_of([5]))
    result = writer.write(batch_of(range(7)))
    assert (result.rows, result.duplicates, result.first_seq) == (5, 2, 5)
    assert ids_of(table, "iceberg") == events(7)


def test_a_writer_replaced_between_staging_and_publishing_fails(spark, tmp_path, monkeypatch):
    """The older writer fails, and the rows that it has already staged do not become
    part of the table.
    """
    url = f"viewfs://lake/tables/{tmp_path.name}"
    options = {"format": "iceberg", "topic": TOPIC, "clock": lambda: NOW}
    older = EventWriter(spark, url, **options)
    older.write(batch_of(range(2)))
    publish = IcebergStore._publish
    newer: list[EventWriter] = []

    def publish_late(self, *arguments):
        if not newer:
            newer.append(None)
            newer[0] = EventWriter(spark, url, **options)
            newer[0].write(batch_of(range(1, 3)))
        return publish(self, *arguments)

    monkeypatch.setattr(IcebergStore, "_publish", publish_late)
    with pytest.raises(WriteError, match="taken over by another writer"):
        older.write(batch_of([2, 3]))
    assert newer[0].write(batch_of(range(4))).rows == 1
    rows = spark.read.format("iceberg").load(url).orderBy("ingest_seq").collect()
    assert [row["event_id"] for row in rows] == events(4)


def test_a_catalog_table_is_written_and_resumed(spark, open_writer):
    """A writer can resume a table by its catalog name, like a table in a directory."""
    writer = open_writer("shop.sales.orders")
    writer.write(batch_of(range(3)))
    writer = open_writer("shop.sales.orders")
    assert writer.position == replay_id(2)
    assert writer.write(batch_of(range(5))).rows == 2
    rows = spark.table("shop.sales.orders").orderBy("ingest_seq").collect()
    assert [row["event_id"] for row in rows] == events(5)


def test_a_table_can_be_written_from_a_new_thread(spark, table):
    """A table can be written from a new thread, in which no Spark session is active."""
    with ThreadPoolExecutor(1) as pool:

        def write() -> int:
            with EventWriter(
                spark, table, format="iceberg", topic=TOPIC, clock=lambda: NOW
            ) as writer:
                return writer.write(batch_of(range(3))).rows

        assert pool.submit(write).result() == 3
    assert ids_of(table, "iceberg") == events(3)


def test_replay_ids_have_no_min_and_max_statistics(spark, open_writer, table):
    """Replay ids are not ordered, so the table's metadata has no bounds for them."""
    open_writer().write(batch_of(range(5)))
    files = spark.read.format("iceberg").load(f"{table}#files").collect()
    fields = {field.name(): field.fieldId() for field in loaded(spark, table).schema().columns()}
    (file,) = files
    assert fields["ingest_seq"] in file["lower_bounds"]
    assert fields["replay_id"] not in file["lower_bounds"]


def test_the_streaming_source_requires_a_newer_pyspark():
    """The source needs a newer PySpark than Iceberg supports; the error names both versions."""
    with pytest.raises(ConfigurationError, match=r"needs PySpark 4\.2 or newer, but this is 4\.1"):
        from sfpubsub.spark import PubSubDataSource  # noqa: F401
