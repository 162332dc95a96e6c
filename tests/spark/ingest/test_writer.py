"""The writer and its Parquet table: every event once, whatever was delivered, whatever failed."""

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
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.layout import NEWEST
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.spark.raw.rows import arrow_table, row_of
from sfpubsub.spark.raw.schema import COMMENTS, SCHEMA
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.spark.old_tables import as_layout_2
from tests.spark.sample_events import CODEC, MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

HOUR = 3600.0


class Clock:
    """A clock that tests set."""

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
    """Opens a writer as a new process would: the one before it is closed."""
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
    """What a plain directory reader sees, in order of arrival."""
    found = ds.dataset(table, format="parquet", schema=SCHEMA).to_table()
    return sorted(found.to_pylist(), key=lambda row: row["ingest_seq"])


def staging_of(table: Path) -> Path:
    return table.parent / f".{table.name}.sfpubsub" / "_staging"


def ids_of(table: Path) -> list[str]:
    return [row["event_id"] for row in rows_of(table)]


def test_a_row_says_everything_that_was_received(open_writer, table):
    """All columns of the raw table, with their types, as a plain reader sees them."""
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
    """Spark and pyarrow read the directory, without what lies in staging, across hours."""
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


def test_a_path_may_hold_any_character(spark, tmp_path, clock):
    """Spaces, percent signs, hashes, braces and letters beyond ASCII are just names."""
    odd = tmp_path / "an odd%20 #na{m}e [é]?*"
    with EventWriter(spark, odd, topic=TOPIC, clock=clock) as writer:
        writer.write(batch_of(range(2)))
    files = list(odd.glob("ingest_date=*/batch=*/part-*.parquet"))
    assert [pq.read_metadata(file).num_rows for file in files] == [2]


def test_an_event_is_written_once_however_often_it_comes(open_writer, table):
    """Within a batch, across batches, and across restarts."""
    writer = open_writer()
    first = writer.write([batch_of([raw_event(0), raw_event(1), raw_event(0)]), batch_of([1, 2])])
    assert (first.rows, first.duplicates) == (3, 2)
    second = writer.write(batch_of([raw_event(n) for n in (2, 3)]))
    assert (second.rows, second.duplicates) == (1, 1)
    third = open_writer().write(batch_of(range(6)))
    assert (third.rows, third.duplicates) == (2, 4)
    assert ids_of(table) == [f"event-{n}" for n in range(6)]


def test_the_order_of_arrival_continues_after_a_restart(open_writer, table):
    """`ingest_seq` has no hole and no repeat, and follows arrival, not the bytes of positions."""
    open_writer().write(batch_of([5, 3, 4]))
    open_writer().write(batch_of([1, 2]))
    assert [row["ingest_seq"] for row in rows_of(table)] == [0, 1, 2, 3, 4]
    assert ids_of(table) == [f"event-{n}" for n in (5, 3, 4, 1, 2)]


def test_an_event_that_cannot_be_decoded_is_kept(open_writer, table, caplog):
    """Its payload is in the table, without JSON; it is counted and logged with its position."""
    broken = raw_event(1, payload=b"\xff\xff")
    result = open_writer().write(batch_of([raw_event(0), broken]))
    assert (result.rows, result.undecodable) == (2, 1)
    row = rows_of(table)[1]
    assert row["payload"] == b"\xff\xff"
    assert row["payload_json"] is None
    assert row["event_time"] is None
    assert f"event event-1 at position {replay_id(1).hex()} cannot be decoded" in caplog.text
    assert "is kept without JSON" in caplog.text


def test_a_time_that_spark_cannot_hold_is_null(open_writer, table):
    """The event is kept; years outside 1 to 9999 are no TIMESTAMP."""
    open_writer().write(batch_of([raw_event(0, at=300_000_000_000.0), raw_event(1, at=-62.0)]))
    times = [row["event_time"] for row in rows_of(table)]
    assert times[0] is None
    assert times[1].year == 1969


def test_an_old_event_is_looked_up_in_the_table(open_writer, table, clock):
    """Its key has left the window, so the table decides: known is dropped, unknown is written."""
    writer = open_writer()
    writer.write(batch_of(range(2)))
    clock.now += 100 * HOUR
    old = [raw_event(1), raw_event(7), raw_event(8, at=clock.now)]
    result = writer.write(batch_of(old))
    assert (result.rows, result.duplicates) == (2, 1)
    result = open_writer().write(batch_of([*old, raw_event(0)]))
    assert (result.rows, result.duplicates) == (0, 4)
    assert ids_of(table) == ["event-0", "event-1", "event-7", "event-8"]


def test_beyond_the_configured_keys_older_events_are_looked_up_in_the_table(
    open_writer, table, clock
):
    """With more keys than may be held, over days, on a day of no batch, and after a restart."""
    writer = open_writer(window_keys=3)
    for number in range(4):
        clock.now += 8 * HOUR
        # As of a write that died there.
        (table / f"ingest_date={NEWEST.text_of(clock.now)}").mkdir(exist_ok=True)
        assert writer.write(batch_of([raw_event(number, at=clock.now)])).rows == 1
    again = [raw_event(n, at=NOW + (n + 1) * 8 * HOUR) for n in (0, 3, 4, 1, 4)]
    result = writer.write(batch_of(again))
    assert (result.rows, result.duplicates) == (1, 4)
    assert open_writer(window_keys=3).write(batch_of(again)).duplicates == 5
    assert ids_of(table) == [f"event-{n}" for n in range(5)]


def test_an_unset_time_is_old_and_nothing_worse(open_writer, clock):
    """Year 1 is what a publisher's empty date says: such an event is written, and once."""
    writer = open_writer()
    unset = [raw_event(n, at=at) for n, at in enumerate([-62_135_596_800.0, -62_035_596_800.0])]
    assert writer.write(batch_of(unset[:1])).rows == 1
    assert writer.write(batch_of(unset[1:])).rows == 1
    clock.now += 100 * HOUR
    assert writer.write(batch_of(unset[1:])).duplicates == 1
    assert writer.write(batch_of(unset)).duplicates == 2


@pytest.mark.parametrize("age", [72.5, 73.0, 73.2, 73.5, 74.0, 74.9])
def test_no_age_falls_between_window_and_table(open_writer, table, clock, age):
    """Around the window's edge an old event is found in one or the other, in a living process."""
    clock.now = NOW + 0.7 * HOUR
    writer = open_writer()
    writer.write(batch_of([raw_event(0, at=NOW - HOUR)]))
    clock.now += age * HOUR
    writer.write(batch_of([raw_event(1, at=clock.now)]))
    assert writer.write(batch_of([raw_event(0, at=NOW - HOUR)])).duplicates == 1


def test_a_write_in_another_thread_is_waited_for_by_nobody_and_keeps_the_lease(
    open_writer, spark, table, clock, monkeypatch
):
    """Neither a second write nor a new writer comes in between, even if this one is closed."""
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
    writer._lease.release()  # as the end of the process would


def test_a_failure_before_the_rename_writes_nothing(open_writer, table, monkeypatch):
    """The error names the table; a second try succeeds, and one copy is there."""
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
    assert not list(staging_of(table).iterdir()), "the failed attempt's files are gone"


def test_a_failure_after_the_rename_is_not_written_again(open_writer, table, monkeypatch):
    """Whether the batch is there is asked of the table: all of it is a duplicate then."""
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


def test_a_write_with_rows_missing_is_refused(open_writer, table, monkeypatch):
    """Spark's word is checked: the rows are counted before anything is published."""
    writer = open_writer()
    stage = parquet.ParquetTable._stage

    def stage_one_less(self, rows, staged):
        stage(self, rows.slice(1), staged)

    monkeypatch.setattr(parquet.ParquetTable, "_stage", stage_one_less)
    with pytest.raises(WriteError, match="wrote 2 of 3 events"):
        writer.write(batch_of(range(3)))
    assert not list(table.glob("ingest_date=*"))


def test_an_incomplete_spark_write_is_refused(open_writer, table, monkeypatch):
    """Without `_SUCCESS` the write did not go to its end."""
    writer = open_writer()
    stage = parquet.ParquetTable._stage

    def stage_unfinished(self, rows, staged):
        stage(self, rows, staged)
        (staged / "_SUCCESS").unlink()

    monkeypatch.setattr(parquet.ParquetTable, "_stage", stage_unfinished)
    with pytest.raises(WriteError, match="wrote 3 of 3"):
        writer.write(batch_of(range(3)))


def test_files_are_flushed_before_the_rename_and_directories_after(open_writer, clock, monkeypatch):
    """The order that makes a batch survive the loss of power."""
    steps: list[str] = []
    writer = open_writer()
    writer.write(batch_of([9]))  # and its schema
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


def test_a_start_makes_the_newest_batch_durable(open_writer, table, monkeypatch):
    """Its writer may have died between rename and flush, and from now on acks rely on it."""
    open_writer().write(batch_of(range(2)))
    synced: list[str] = []
    monkeypatch.setattr(parquet, "sync", lambda path: synced.append(path.name))
    open_writer()
    assert synced == ["ingest_date=2026-11-20", "orders"]


def test_a_start_removes_what_a_dead_write_left(open_writer, table):
    """Files of a write that never came to its end disappear at the next start."""
    open_writer().write(batch_of(range(2)))
    left = staging_of(table) / "b1.dead"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"PAR1 and then the power went")
    (table / "ingest_date=2026-11-21").mkdir()
    result = open_writer().write(batch_of(range(3)))
    assert not left.exists()
    assert (result.rows, result.first_seq) == (1, 2)


def test_a_clock_that_is_set_back_does_not_reorder_batches(open_writer, table, clock):
    """The newest batch stays the last name in the last hour, and nothing is written twice."""
    open_writer().write(batch_of(range(2)))
    clock.now -= 30 * HOUR
    open_writer().write(batch_of(range(1, 4)))
    clock.now -= 30 * HOUR
    result = open_writer().write(batch_of(range(5)))
    assert (result.rows, result.first_seq) == (1, 4)
    assert [path.name for path in table.glob("ingest_date=*")] == ["ingest_date=2026-11-20"]


def test_a_position_has_no_minimum_and_no_maximum(open_writer, table):
    """Replay ids have no order, so the files state none; other columns have their statistics."""
    open_writer().write(batch_of(range(5)))
    (file,) = table.glob("ingest_date=*/batch=*/part-*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    statistics = columns["replay_id"].statistics
    assert statistics is None or not statistics.has_min_max
    assert columns["ingest_seq"].statistics.max == 4


def test_the_position_of_a_topic_is_published_with_its_rows(open_writer, table):
    """After a restart the table says where to resume: after the last event received."""
    writer = open_writer()
    assert writer.position is None
    result = writer.write([batch_of(range(3)), batch_of([3, 1])])
    assert result.position == writer.position == replay_id(1)
    assert open_writer().position == replay_id(1)
    (file,) = table.glob("ingest_date=*/batch=*/_position")
    assert list(json.loads(file.read_text())["positions"]) == [TOPIC]


def test_duplicates_alone_move_the_position_and_write_no_file(open_writer, table):
    """A redelivered tail is done: it is not asked for again."""
    writer = open_writer()
    writer.write(batch_of([0, 1, 2]))
    result = writer.write(batch_of([1, 0]))
    assert (result.rows, result.batch_id) == (0, None)
    assert open_writer().position == replay_id(0)
    assert len(list(table.glob("ingest_date=*/batch=*"))) == 1


def test_the_newer_of_two_positions_wins(open_writer, table):
    """One set between two batches is newer than the first and older than the second."""
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


def test_rows_of_another_table_keep_the_position(open_writer, table):
    """What a stream or a redrive appends is new by its key; named, it is written once."""
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


def test_the_names_of_a_long_run_do_not_pile_up(open_writer, monkeypatch):
    """A living writer remembers the last ones, the same as one that begins now."""
    monkeypatch.setattr(parquet, "REMEMBERED_NAMES", 2)
    writer = open_writer()
    for n in range(3):
        rows = arrow_table([row_of(event, NOW) for event in batch_of(range(n, n + 1))], 0)
        writer.write_rows(rows, name=f"query/{n}")
    assert list(writer._table.names) == ["query/1", "query/2"]
    assert list(open_writer()._table.names) == ["query/1", "query/2"]


def test_a_new_topics_table_may_begin_with_rows(open_writer):
    """It has no position then, and begins with all that the service keeps."""
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(2))], 0)
    open_writer().write_rows(rows, name="x")
    assert open_writer().position is None
    open_writer().move(replay_id(5))
    assert open_writer().position == replay_id(5)


def test_rows_that_are_none_are_refused(open_writer, table):
    """The columns that are wrong are named, and nothing is written."""
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


def test_a_managed_table_keeps_no_position(open_writer, table):
    """There the service's word counts; two words could disagree."""
    writer = open_writer(subscription=MANAGED)
    assert writer.write(batch_of([0], topic=None)).position is None
    assert not list(table.rglob("_position"))
    with pytest.raises(LocalProtocolError, match="is stored by the service"):
        writer.move(replay_id(0))


def test_a_table_that_cannot_be_read_stops_the_start(open_writer, table):
    """A damaged newest batch is named; guessing its end would repeat numbers."""
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


def test_a_strangers_partition_stops_the_start(open_writer, table):
    """Readers would take it for rows of the table, and its keys would be nobody's."""
    open_writer()
    (table / "ingest_date=yesterday").mkdir()
    with pytest.raises(WriteError, match="ingest_date=yesterday"):
        open_writer()


def test_a_second_writer_is_refused(spark, open_writer, table, clock):
    """Two writers could both take an event for new."""
    open_writer()
    with pytest.raises(ConfigurationError, match=f"another process .pid {os.getpid()}"):
        EventWriter(spark, table, topic=TOPIC, clock=clock)


def test_a_closed_writer_writes_no_more(open_writer, table):
    """Its lease is another's by then: what it knows of the table would be written over that."""
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


def test_a_refused_destination_is_left_as_it_was(spark, open_writer, table, clock, tmp_path):
    """Another subscription's table, and a directory of something else."""
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


def test_what_an_event_says_beside_its_fields_is_in_columns(spark, open_writer, table):
    """A change event's header, the headers that an event was sent with, and whose org it is of."""
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


def test_every_column_says_what_it_is(spark, open_writer, table):
    """In the files, where Spark finds it; catalogs show it."""
    open_writer().write(batch_of(range(2)))
    columns = {field.name: field.metadata for field in spark.read.parquet(str(table)).schema}
    assert {name: columns[name].get("comment") for name in SCHEMA.names} == {
        name: COMMENTS[name] for name in SCHEMA.names
    }


def test_schemas_are_kept_before_the_rows_that_need_them(open_writer, table, monkeypatch):
    """The writer does it, whoever calls it: without them no typed table can be made."""
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


def test_rows_without_their_schema_are_written_and_told(open_writer, table, caplog):
    """They cannot be decoded until it is put there; said once, and not if it is there."""
    rows = arrow_table([row_of(event, NOW) for event in batch_of(range(3))], 0)
    writer = open_writer()
    assert writer.write_rows(rows.slice(0, 1)).rows == writer.write_rows(rows.slice(1, 1)).rows == 1
    assert caplog.text.count("rows with schema schema-1 are written") == 1
    caplog.clear()
    assert writer.write_rows(rows, schemas={"schema-1": CODEC.schema_json}).rows == 1
    assert open_writer().write_rows(rows).duplicates == 3
    assert "schema-1" not in caplog.text
    assert FileSchemaStore(table.parent / ".orders.sfpubsub" / "_schemas").get("schema-1")


def test_a_table_of_the_old_layout_goes_on_as_it_is(spark, open_writer, table, clock):
    """Its columns and its hours; what it has no column for is not written, and all are read."""
    open_writer().write(batch_of(range(3)))
    writer = open_writer()
    writer.close()
    as_layout_2(table)
    clock.now += HOUR
    writer = open_writer(org_id="00D000000000001EAA")
    result = writer.write(batch_of(range(5)))
    assert (result.rows, result.duplicates) == (2, 3)
    assert len(list(table.glob("ingest_hour=*"))) == 2
    assert not list(table.glob("ingest_date=*"))
    assert ids_of(table) == [f"event-{n}" for n in range(5)]
    raw = RawBatches(spark, Destination.parse(table, "parquet"))
    found = raw.after(None)
    assert [batch.date for batch in found] == ["2026-11-20", "2026-11-21"]
    rows = raw.rows(found)
    assert rows.columns == NEWEST.stored.names
    assert {row["ingest_date"].isoformat() for row in rows.collect()} == {b.date for b in found}
    assert raw.after(found[0]) == found[1:]
