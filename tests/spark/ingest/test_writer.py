"""Tests of the writer and its Parquet table: every event is stored once, whatever is delivered and
whatever fails.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec
from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import ConfigurationError, LocalProtocolError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.raw import parquet
from sfpubsub.spark.raw.layout import day_of
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.rows import arrow_table, row_of
from sfpubsub.spark.raw.schema import COMMENTS, SCHEMA
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.spark.sample_events import CODEC, MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

HOUR = 3600.0


class Clock:
    """A clock whose time the tests set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def open_writer(spark: SparkSession, table: Path, clock: Clock):
    """Return a function that closes the previous writer and opens a new one, as a restarted process
    would.
    """
    opened: list[EventWriter] = []

    def open_one(**options) -> EventWriter:
        if opened:
            opened[-1].close()
        options.setdefault("topic", None if "subscription" in options else TOPIC)
        opened.append(EventWriter(spark, table, clock=clock, **options))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].close()


def rows_of(table: Path) -> list[dict]:
    """Return the rows that a plain directory reader sees, in order of arrival."""
    found = ds.dataset(table, format="parquet", schema=SCHEMA).to_table()
    return sorted(found.to_pylist(), key=lambda row: row["ingest_seq"])


def staging_of(table: Path) -> Path:
    """Return the table's directory for files that have not been published yet."""
    return table.parent / f".{table.name}.sfpubsub" / "_staging"


def ids_of(table: Path) -> list[str]:
    return [row["event_id"] for row in rows_of(table)]


def test_row_contains_every_received_value(open_writer, table):
    """A row contains every received value, in the columns and types of the raw table."""
    result = open_writer(subscription=MANAGED).write(
        batch_of(range(2), topic=None, received_at=NOW + 1.5)
    )
    assert result.rows == 2
    assert ds.dataset(table, format="parquet").schema.equals(SCHEMA)
    row = rows_of(table)[1]
    event = next(iter(batch_of([1])))
    assert row["event_id"] == "event-1"
    assert row["dedupe_key"] == event.dedupe_key
    assert ReplayId(row["replay_id"]) == replay_id(1)
    assert (row["topic"], row["subscription"]) == (TOPIC, MANAGED)
    assert (row["schema_id"], row["event_name"]) == ("schema-1", "Order_Event__e")
    assert row["event_time"].timestamp() == NOW
    assert row["received_at"].timestamp() == NOW + 1.5
    assert row["ingest_seq"] == 1
    assert row["payload"] == event.payload
    assert json.loads(row["payload_json"])["Number__c"] == 1.0


def test_directory_readers_see_each_event_once(spark, open_writer, table, clock):
    """Spark and PyArrow find each event once in a table directory that has partitions for two days.

    Files left in the staging directory are ignored.
    """
    writer = open_writer()
    writer.write(batch_of(range(3)))
    clock.now += HOUR
    writer.write(batch_of(range(3, 5)))
    writer.move(replay_id(99))
    left = staging_of(table) / "b0.dead"
    left.mkdir(parents=True)
    pq.write_table(pa.table({"event_id": ["half"]}), left / "part-0.parquet")
    by_spark = [
        row.event_id for row in spark.read.parquet(str(table)).orderBy("ingest_seq").collect()
    ]
    assert by_spark == ids_of(table) == [f"event-{n}" for n in range(5)]
    partitioned = pq.read_table(table)
    assert sorted(set(partitioned["ingest_date"].to_pylist())) == ["2026-11-20", "2026-11-21"]
    assert str(partitioned.schema.field("batch").type).startswith("dictionary<values=string")


def test_table_path_may_contain_any_character(spark, tmp_path, clock):
    """Spaces, percent signs, wildcards and non-ASCII letters in a path are taken literally."""
    odd = tmp_path / "an odd%20 #na{m}e [é]?*"
    with EventWriter(spark, odd, topic=TOPIC, clock=clock) as writer:
        writer.write(batch_of(range(2)))
    files = list(odd.glob("ingest_date=*/batch=*/part-*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [2]


def test_event_is_written_once_however_often_it_is_delivered(open_writer, table):
    """Repeated events within a batch, across batches and across restarts are counted as
    duplicates.
    """
    writer = open_writer()
    first = writer.write([batch_of([raw_event(0), raw_event(1), raw_event(0)]), batch_of([1, 2])])
    assert (first.rows, first.duplicates) == (3, 2)
    second = writer.write(batch_of([raw_event(n) for n in (2, 3)]))
    assert (second.rows, second.duplicates) == (1, 1)
    third = open_writer().write(batch_of(range(6)))
    assert (third.rows, third.duplicates) == (2, 4)
    assert ids_of(table) == [f"event-{n}" for n in range(6)]


def test_row_numbers_continue_after_a_restart(open_writer, table):
    """`ingest_seq` continues after a restart without gaps or repeats.

    It follows the order of arrival, not the order of the replay ids.
    """
    open_writer().write(batch_of([5, 3, 4]))
    open_writer().write(batch_of([1, 2]))
    assert [row["ingest_seq"] for row in rows_of(table)] == [0, 1, 2, 3, 4]
    assert ids_of(table) == [f"event-{n}" for n in (5, 3, 4, 1, 2)]


def test_undecodable_event_is_stored_without_json(open_writer, table, caplog):
    """Without a quarantine, the row of an undecodable event has its payload but no JSON, and the
    event is counted and logged.
    """
    broken = raw_event(1, payload=b"\xff\xff")
    result = open_writer().write(batch_of([raw_event(0), broken]))
    assert (result.rows, result.undecodable) == (2, 1)
    row = rows_of(table)[1]
    assert row["payload"] == b"\xff\xff"
    assert row["payload_json"] is None
    assert row["event_time"] is None
    assert f"event event-1 at position {replay_id(1).hex()} cannot be decoded" in caplog.text
    assert "is kept without JSON" in caplog.text


def test_event_time_that_spark_cannot_represent_is_null(open_writer, table):
    """An event whose time is after the year 9999 is stored without a time."""
    open_writer().write(batch_of([raw_event(0, at=300_000_000_000.0), raw_event(1, at=-62.0)]))
    times = [row["event_time"] for row in rows_of(table)]
    assert times[0] is None
    assert times[1].year == 1969


def test_an_old_event_is_looked_up_in_the_table(open_writer, table, clock):
    """An event whose key has left the window is looked up in the table and written if missing."""
    writer = open_writer()
    writer.write(batch_of(range(2)))
    clock.now += 100 * HOUR
    old = [raw_event(1), raw_event(7), raw_event(8, at=clock.now)]
    result = writer.write(batch_of(old))
    assert (result.rows, result.duplicates) == (2, 1)
    result = open_writer().write(batch_of([*old, raw_event(0)]))
    assert (result.rows, result.duplicates) == (0, 4)
    assert ids_of(table) == ["event-0", "event-1", "event-7", "event-8"]


def test_events_beyond_window_keys_are_looked_up_in_the_table(open_writer, table, clock):
    """Once there are more than `window_keys` keys, older events are looked up in the table.

    They are found across several days, and also after a restart.
    """
    writer = open_writer(window_keys=3)
    for number in range(4):
        clock.now += 8 * HOUR
        # As left by a write that was killed.
        (table / f"ingest_date={day_of(clock.now)}").mkdir(exist_ok=True)
        assert writer.write(batch_of([raw_event(number, at=clock.now)])).rows == 1
    again = [raw_event(n, at=NOW + (n + 1) * 8 * HOUR) for n in (0, 3, 4, 1, 4)]
    result = writer.write(batch_of(again))
    assert (result.rows, result.duplicates) == (1, 4)
    assert open_writer(window_keys=3).write(batch_of(again)).duplicates == 5
    assert ids_of(table) == [f"event-{n}" for n in range(5)]


def test_event_with_an_unset_time_is_written_once(open_writer, clock):
    """An event with an unset date, sent as the year 1, is stored once even if it is redelivered."""
    writer = open_writer()
    unset = [raw_event(n, at=at) for n, at in enumerate([-62_135_596_800.0, -62_035_596_800.0])]
    assert writer.write(batch_of(unset[:1])).rows == 1
    assert writer.write(batch_of(unset[1:])).rows == 1
    clock.now += 100 * HOUR
    assert writer.write(batch_of(unset[1:])).duplicates == 1
    assert writer.write(batch_of(unset)).duplicates == 2


@pytest.mark.parametrize("age", [72.5, 73.0, 73.2, 73.5, 74.0, 74.9])
def test_duplicates_near_the_window_edge_are_detected(open_writer, table, clock, age):
    """A duplicate from near the edge of the dedupe window is detected, whether its key is still in
    the window or only in the table.
    """
    clock.now = NOW + 0.7 * HOUR
    writer = open_writer()
    writer.write(batch_of([raw_event(0, at=NOW - HOUR)]))
    clock.now += age * HOUR
    writer.write(batch_of([raw_event(1, at=clock.now)]))
    assert writer.write(batch_of([raw_event(0, at=NOW - HOUR)])).duplicates == 1


def test_write_in_another_thread_keeps_the_lease(open_writer, spark, table, clock, monkeypatch):
    """While another thread writes, a second write raises an error.

    No other writer can be opened until the write ends, even if this writer is closed.
    """
    writer = open_writer()
    begun, release = threading.Event(), threading.Event()
    stage = parquet.ParquetTable._stage

    def wait(self, rows, staged):
        begun.set()
        assert release.wait(60.0)
        stage(self, rows, staged)

    monkeypatch.setattr(parquet.ParquetTable, "_stage", wait)
    thread = threading.Thread(target=writer.write, args=(batch_of(range(2)),))
    thread.start()
    assert begun.wait(60.0)
    with pytest.raises(LocalProtocolError, match="writing in another thread"):
        writer.write(batch_of(range(2)))
    with pytest.raises(LocalProtocolError, match="writing in another thread"):
        writer.move(ReplayId(b"12345678"))
    writer.close()
    with pytest.raises(ConfigurationError, match=r"lease|writer|process"):
        EventWriter(spark, table, topic=TOPIC, clock=clock)
    release.set()
    thread.join(60.0)
    assert ids_of(table) == ["event-0", "event-1"]
    monkeypatch.undo()
    writer._lease.release()  # as at the end of the process


def test_write_that_fails_before_the_rename_writes_nothing(open_writer, table, monkeypatch):
    """If a write fails before its files are renamed into the table, nothing is published, and a
    second attempt stores each event once.
    """
    writer = open_writer()
    with monkeypatch.context() as broken:
        broken.setattr(parquet.os, "rename", _disk_full)
        with pytest.raises(WriteError, match=r"nothing was acked.*No space left"):
            writer.write(batch_of(range(3)))
    assert not list(table.glob("ingest_date=*/batch=*"))
    assert writer.position is None
    result = writer.write(batch_of(range(3)))
    assert (result.rows, result.first_seq) == (3, 0)
    assert ids_of(table) == [f"event-{n}" for n in range(3)]
    assert not list(staging_of(table).iterdir()), "files of the failed attempt are left"


def test_write_that_fails_after_the_rename_is_not_repeated(open_writer, table, monkeypatch):
    """If a write fails after its files were renamed into the table, the next write finds its events
    there and counts them as duplicates.
    """
    writer = open_writer()
    writer.write(batch_of([9]))

    rename = os.rename

    def rename_then_fail(source, target):
        rename(source, target)
        _disk_full()

    with monkeypatch.context() as broken:
        broken.setattr(parquet.os, "rename", rename_then_fail)
        with pytest.raises(WriteError):
            writer.write(batch_of(range(3)))
    result = writer.write(batch_of(range(4)))
    assert (result.rows, result.duplicates, result.first_seq) == (1, 3, 4)
    assert ids_of(table) == ["event-9", "event-0", "event-1", "event-2", "event-3"]


def test_write_with_missing_rows_is_rejected(open_writer, table, monkeypatch):
    """The rows that Spark has written are counted before they are published, and a missing row
    raises an error.
    """
    writer = open_writer()
    stage = parquet.ParquetTable._stage

    def stage_one_less(self, rows, staged):
        stage(self, rows.slice(1), staged)

    monkeypatch.setattr(parquet.ParquetTable, "_stage", stage_one_less)
    with pytest.raises(WriteError, match="wrote 2 of 3 events"):
        writer.write(batch_of(range(3)))
    assert not list(table.glob("ingest_date=*"))


def test_spark_write_without_a_success_file_is_rejected(open_writer, table, monkeypatch):
    """A write without Spark's `_SUCCESS` file is incomplete and raises an error, even if all rows
    are there.
    """
    writer = open_writer()
    stage = parquet.ParquetTable._stage

    def stage_unfinished(self, rows, staged):
        stage(self, rows, staged)
        (staged / "_SUCCESS").unlink()

    monkeypatch.setattr(parquet.ParquetTable, "_stage", stage_unfinished)
    with pytest.raises(WriteError, match="wrote 3 of 3"):
        writer.write(batch_of(range(3)))


def test_files_are_flushed_before_the_rename_and_directories_after(open_writer, clock, monkeypatch):
    """A batch's file and directory are flushed before the rename, and the parents after it.

    Thus the batch survives a power failure.
    """
    steps: list[str] = []
    writer = open_writer()
    writer.write(batch_of([9]))  # and the schema
    clock.now += 24 * HOUR

    def record(name, function):
        def call(path, *more):
            if name == "rename":
                steps.append("rename")
            elif Path(path).name.startswith("part-"):
                steps.append("file")
            elif Path(path).is_dir():
                steps.append(Path(path).name.split("=")[0].split(".")[0])
            return function(path, *more)

        return call

    monkeypatch.setattr(parquet.os, "rename", record("rename", os.rename))
    sync = parquet.sync
    for module in ("spark.raw.parquet", "durable"):
        monkeypatch.setattr(f"sfpubsub.{module}.sync", record("sync", sync))
    writer.write(batch_of(range(3)))
    batch = "b" + "0" * 18 + "1"
    assert steps == ["file", batch, "orders", "rename", "ingest_date", "_staging"]


def test_opening_flushes_the_newest_batch(open_writer, table, monkeypatch):
    """A new writer flushes the directories of the newest batch.

    The previous writer may have been killed between the rename and the flush.
    """
    open_writer().write(batch_of(range(2)))
    synced: list[str] = []
    monkeypatch.setattr(parquet, "sync", lambda path: synced.append(path.name))
    open_writer()
    assert synced == ["ingest_date=2026-11-20", "orders"]


def test_opening_removes_the_files_of_a_killed_write(open_writer, table):
    """A new writer deletes the unpublished files of a killed write.

    Its row numbers continue after the rows that were published.
    """
    open_writer().write(batch_of(range(2)))
    left = staging_of(table) / "b1.dead"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"PAR1 and then the power went")
    (table / "ingest_date=2026-11-21").mkdir()
    result = open_writer().write(batch_of(range(3)))
    assert not left.exists()
    assert (result.rows, result.first_seq) == (1, 2)


def test_a_clock_that_is_set_back_does_not_reorder_batches(open_writer, table, clock):
    """If the clock is set back, new batches go to the newest partition, after the existing ones.

    No event is written twice.
    """
    open_writer().write(batch_of(range(2)))
    clock.now -= 30 * HOUR
    open_writer().write(batch_of(range(1, 4)))
    clock.now -= 30 * HOUR
    result = open_writer().write(batch_of(range(5)))
    assert (result.rows, result.first_seq) == (1, 4)
    assert [path.name for path in table.glob("ingest_date=*")] == ["ingest_date=2026-11-20"]


def test_files_contain_no_replay_id_statistics(open_writer, table):
    """The files contain no minimum or maximum of replay ids, because replay ids have no order.

    Other columns have these statistics.
    """
    open_writer().write(batch_of(range(5)))
    (file,) = table.glob("ingest_date=*/batch=*/part-*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    statistics = columns["replay_id"].statistics
    assert statistics is None or not statistics.has_min_max
    assert columns["ingest_seq"].statistics.max == 4


def test_the_position_of_a_topic_is_published_with_its_rows(open_writer, table):
    """A batch contains the position of the last received event, even if that event is a duplicate.

    A new writer resumes from this position.
    """
    writer = open_writer()
    assert writer.position is None
    result = writer.write([batch_of(range(3)), batch_of([3, 1])])
    assert result.position == writer.position == replay_id(1)
    assert open_writer().position == replay_id(1)
    (file,) = table.glob("ingest_date=*/batch=*/_position")
    assert list(json.loads(file.read_text())["positions"]) == [TOPIC]


def test_batch_of_duplicates_stores_its_position_without_a_file(open_writer, table):
    """A batch of only duplicates stores its position without a data file.

    Thus these events are not requested again.
    """
    writer = open_writer()
    writer.write(batch_of([0, 1, 2]))
    result = writer.write(batch_of([1, 0]))
    assert (result.rows, result.batch_id) == (0, None)
    assert open_writer().position == replay_id(0)
    assert len(list(table.glob("ingest_date=*/batch=*"))) == 1


def test_the_last_stored_position_is_used(open_writer, table):
    """A new writer resumes from the position that was stored last.

    It does not matter whether that position was stored with a batch or separately.
    """
    writer = open_writer()
    writer.move(replay_id(50))
    assert open_writer().position == replay_id(50)
    writer = open_writer()
    writer.write(batch_of([0]))
    assert open_writer().position == replay_id(0)
    writer = open_writer()
    writer.move(replay_id(51))
    assert open_writer().position == replay_id(51)
    open_writer().write(batch_of([1]))
    assert open_writer().position == replay_id(1)


def test_write_rows_keeps_the_position(open_writer, table):
    """Rows that a stream or a redrive appends are deduplicated and leave the position unchanged.

    A write whose name was already used is skipped, even after a restart.
    """
    writer = open_writer()
    writer.write(batch_of(range(3)))
    rows = ds.dataset(table, format="parquet", schema=SCHEMA).to_table()
    changed = rows.set_column(
        1, "dedupe_key", pa.array([b"k" * 16, *rows["dedupe_key"].to_pylist()[1:]])
    )
    result = writer.write_rows(changed, name="query-1/7")
    assert (result.rows, result.duplicates, result.first_seq) == (1, 2, 3)
    assert writer.write_rows(changed, name="query-1/7").repeated
    writer = open_writer()
    assert writer.position == replay_id(2)
    assert writer.write_rows(changed, name="query-1/7").repeated
    assert writer.write_rows(changed.drop_columns("ingest_seq")).duplicates == 3
    assert [row["ingest_seq"] for row in rows_of(table)] == [0, 1, 2, 3]


def test_only_the_latest_write_names_are_remembered(open_writer, monkeypatch):
    """A writer remembers only the latest `REMEMBERED_NAMES` write names.

    A newly opened writer remembers the same names.
    """
    monkeypatch.setattr(parquet, "REMEMBERED_NAMES", 2)
    writer = open_writer()
    for n in range(3):
        rows = arrow_table([row_of(event, NOW) for event in batch_of(range(n, n + 1))], 0)
        writer.write_rows(rows, name=f"query/{n}")
    assert list(writer._table.names) == ["query/1", "query/2"]
    assert list(open_writer()._table.names) == ["query/1", "query/2"]


def test_table_that_begins_with_write_rows_has_no_position(open_writer):
    """If a table's first write is `write_rows`, it has no position until one is stored."""
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(2))], 0)
    open_writer().write_rows(rows, name="x")
    assert open_writer().position is None
    open_writer().move(replay_id(5))
    assert open_writer().position == replay_id(5)


def test_rows_with_wrong_columns_are_rejected(open_writer, table):
    """Unknown, missing or wrongly typed columns raise an error that says what is wrong, and nothing
    is written.
    """
    writer = open_writer()
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(2))], 0)
    short = pa.array([b"short"] * 2)
    for wrong, said in (
        (rows.append_column("colour", pa.array(["red", "blue"])), "colour"),
        (rows.drop_columns("payload"), "payload"),
        (rows.set_column(1, "dedupe_key", short), "16 bytes"),
        (rows.set_column(8, "received_at", pa.array(["now", "then"])), "types"),
    ):
        with pytest.raises(LocalProtocolError, match=said):
            writer.write_rows(wrong)
    assert not list(table.glob("ingest_date=*"))


def test_managed_table_stores_no_position(open_writer, table):
    """The table of a managed subscription stores no position, and setting one raises an error.

    The service stores the position, and a copy in the table could contradict it.
    """
    writer = open_writer(subscription=MANAGED)
    assert writer.write(batch_of([0], topic=None)).position is None
    assert not list(table.rglob("_position"))
    with pytest.raises(LocalProtocolError, match="is stored by the service"):
        writer.move(replay_id(0))


def test_opening_rejects_a_damaged_newest_batch(open_writer, table):
    """A damaged file in the newest batch raises an error when a writer is opened.

    Guessing the batch's last row could assign the same row number twice.
    """
    open_writer().write(batch_of([0]))
    (file,) = table.glob("ingest_date=*/batch=*/part-*.parquet")
    file.write_bytes(b"")
    with pytest.raises(WriteError, match="newest batch"):
        open_writer()
    os.unlink(file)
    (position,) = table.glob("ingest_date=*/batch=*/_position")
    position.write_text("{")
    with pytest.raises(WriteError, match="newest batch"):
        open_writer()


def test_opening_rejects_a_foreign_partition(open_writer, table):
    """A partition directory that no writer created raises an error.

    Readers would take its files for rows of the table.
    """
    open_writer()
    (table / "ingest_date=yesterday").mkdir()
    with pytest.raises(WriteError, match="ingest_date=yesterday"):
        open_writer()


def test_second_writer_is_rejected(spark, open_writer, table, clock):
    """A second writer raises an error with the process id of the first.

    Two writers could both store the same event.
    """
    open_writer()
    with pytest.raises(ConfigurationError, match=f"another process .pid {os.getpid()}"):
        EventWriter(spark, table, topic=TOPIC, clock=clock)


def test_closed_writer_rejects_all_writes(open_writer, table):
    """A closed writer raises an error if it is asked to write or to store a position.

    It no longer holds the lease, and its state may be outdated.
    """
    closed = open_writer()
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(2))], 0)
    open_writer().write(batch_of(range(1)))
    for write in (
        lambda: closed.write(batch_of(range(2))),
        lambda: closed.write_rows(rows),
        lambda: closed.move(replay_id(1)),
    ):
        with pytest.raises(LocalProtocolError, match="was closed"):
            write()
    assert ids_of(table) == ["event-0"]


def test_rejected_destination_is_left_unchanged(spark, open_writer, table, clock, tmp_path):
    """A table of another source, or a directory with other files, is rejected.

    Nothing is added to the directory.
    """
    open_writer().write(batch_of([0]))
    with pytest.raises(ConfigurationError, match=rf"belongs to topic {TOPIC}.*{MANAGED}"):
        EventWriter(spark, table, subscription=MANAGED, clock=clock)
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_text("")
    with pytest.raises(ConfigurationError, match=r"nor an sfpubsub table .*cat\.jpg"):
        EventWriter(spark, foreign, topic=TOPIC, clock=clock)
    assert [path.name for path in foreign.iterdir()] == ["cat.jpg"]


def _disk_full(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


CHANGE_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "AccountChangeEvent",
        "fields": [
            {
                "name": "ChangeEventHeader",
                "type": {
                    "type": "record",
                    "name": "ChangeEventHeader",
                    "fields": [
                        {"name": "entityName", "type": "string"},
                        {"name": "recordIds", "type": {"type": "array", "items": "string"}},
                        {"name": "changeType", "type": "string"},
                        {"name": "changeOrigin", "type": "string"},
                        {"name": "transactionKey", "type": "string"},
                        {"name": "sequenceNumber", "type": "int"},
                        {"name": "commitTimestamp", "type": "long"},
                        {"name": "commitNumber", "type": "long"},
                        {"name": "commitUser", "type": "string"},
                    ],
                },
            },
            {"name": "Name", "type": ["null", "string"], "default": None},
        ],
    }
)


def test_event_metadata_is_stored_in_columns(spark, open_writer, table):
    """Change event headers, publishers' headers and org ids are stored in separate columns."""
    codec = Codec("change", CHANGE_SCHEMA)
    header = {
        "entityName": "Account",
        "recordIds": ["001A", "001B"],
        "changeType": "UPDATE",
        "changeOrigin": "com/salesforce/api/rest/65.0",
        "transactionKey": "key",
        "sequenceNumber": 1,
        "commitTimestamp": round(NOW * 1000),
        "commitNumber": 2**40,
        "commitUser": "005",
    }
    payload = codec.encode({"ChangeEventHeader": header, "Name": "x"})
    changed = RawEvent("", "change", payload, replay_id(7), (("trace", b"\x01"), ("trace", b"2")))
    batch = EventBatch(
        subscription=TOPIC,
        topic=TOPIC,
        events=(changed, raw_event(1)),
        codecs={"change": codec, "schema-1": CODEC},
        first_seq=0,
        received_at=NOW,
        ack=lambda first, last: None,
    )
    open_writer(org_id="00D000000000001EAA").write(batch)
    change, other = spark.read.parquet(str(table)).orderBy("ingest_seq").collect()
    assert change["change_header"].asDict() == {
        "entity_name": "Account",
        "record_ids": ["001A", "001B"],
        "change_type": "UPDATE",
        "change_origin": "com/salesforce/api/rest/65.0",
        "transaction_key": "key",
        "sequence_number": 1,
        "commit_timestamp": change["event_time"],
        "commit_number": 2**40,
        "commit_user": "005",
    }
    assert change["headers"] == {"trace": bytearray(b"2")}
    assert (other["change_header"], other["headers"]) == (None, None)
    assert change["org_id"] == other["org_id"] == "00D000000000001EAA"


def test_every_column_has_a_comment(spark, open_writer, table):
    """The files contain each column's comment, which Spark returns as metadata."""
    open_writer().write(batch_of(range(2)))
    columns = {field.name: field.metadata for field in spark.read.parquet(str(table)).schema}
    assert {name: columns[name].get("comment") for name in SCHEMA.names} == {
        name: COMMENTS[name] for name in SCHEMA.names
    }


def test_schemas_are_stored_before_the_rows_that_need_them(open_writer, table, monkeypatch):
    """A batch's schema is stored before its rows, because no typed table can be made without it."""
    held = FileSchemaStore(table.parent / ".orders.sfpubsub" / "_schemas")
    seen: list[str | None] = []

    def die(self, *arguments):
        seen.append(held.get("schema-1"))
        raise WriteError("killed")

    writer = open_writer()
    with monkeypatch.context() as patch:
        patch.setattr(ParquetTable, "append", die)
        with pytest.raises(WriteError, match="killed"):
            writer.write(batch_of(range(2)))
    assert seen == [CODEC.schema_json]


def test_rows_without_their_schema_are_written_with_a_warning(open_writer, table, caplog):
    """Rows whose schema is not stored are written, with one warning per schema.

    No warning is logged if the schema is passed in or already stored.
    """
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(3))], 0)
    writer = open_writer()
    assert writer.write_rows(rows.slice(0, 1)).rows == writer.write_rows(rows.slice(1, 1)).rows == 1
    assert caplog.text.count("rows with schema schema-1 are written") == 1
    caplog.clear()
    assert writer.write_rows(rows, schemas={"schema-1": CODEC.schema_json}).rows == 1
    assert open_writer().write_rows(rows).duplicates == 3
    assert "schema-1" not in caplog.text
    assert FileSchemaStore(table.parent / ".orders.sfpubsub" / "_schemas").get("schema-1")
