"""Raw tables in Delta and Iceberg: each event is stored once, and only one writer can commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, LocalProtocolError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats import store
from sfpubsub.spark.ingest.dedupe import KEPT
from sfpubsub.spark.raw import logged
from sfpubsub.spark.raw.layout import STORED
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of, read_table
from tests.spark.sample_events import MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

HOUR = 3600.0
DAY = 24 * HOUR


class Clock:
    """A clock that stands still until a test moves it."""

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
def open_writer(
    spark: SparkSession, table: Path, clock: Clock
) -> Iterator[Callable[..., EventWriter]]:
    """Return a function that closes the writer that it last opened, and opens another as a new
    process would.
    """
    opened: list[EventWriter] = []

    def open_one(place: Path | str = table, **options) -> EventWriter:
        if opened:
            opened[-1].close()
        options.setdefault("topic", None if "subscription" in options else TOPIC)
        opened.append(EventWriter(spark, place, format=TABLE_FORMAT, clock=clock, **options))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].close()


def ids(table: Path) -> list[str]:
    return ids_of(table, TABLE_FORMAT)


def events(count: int) -> list[str]:
    return [f"event-{n}" for n in range(count)]


def ids_by_spark(spark: SparkSession, place: Path | str) -> list[str]:
    rows = spark.read.format(TABLE_FORMAT).load(str(place)).orderBy("ingest_seq")
    return [row["event_id"] for row in rows.select("event_id").collect()]


def test_every_reader_sees_each_event_once_with_all_columns(spark, open_writer, table, clock):
    """Duplicates within a batch, across batches and across restarts are dropped."""
    writer = open_writer()
    first = writer.write([batch_of([raw_event(0), raw_event(1), raw_event(0)]), batch_of([1, 2])])
    assert (first.rows, first.duplicates) == (3, 2)
    clock.now += HOUR
    third = open_writer().write(batch_of(range(6)))
    assert (third.rows, third.duplicates, third.first_seq) == (3, 3, 3)
    assert third.position == replay_id(5)
    rows = read_table(table, TABLE_FORMAT)
    assert rows["event_id"].to_pylist() == events(6)
    assert rows["ingest_seq"].to_pylist() == list(range(6))
    assert rows.column_names == STORED.names
    assert set(rows["ingest_date"].to_pylist()) == {date(2026, 11, 20), date(2026, 11, 21)}
    assert rows["batch"].to_pylist()[3:] == ["b" + "3".zfill(19)] * 3
    assert ids_by_spark(spark, table) == events(6)


def test_position_and_row_numbers_are_read_from_the_log(open_writer, table, clock):
    """A new writer reads the position and the next row number from the table's log, even after a
    position without rows.

    A batch of duplicates is not written, and the ingest date does not go back with the clock.
    """
    assert open_writer().position is None
    open_writer().write([batch_of(range(3)), batch_of([3, 1])])
    assert open_writer().position == replay_id(1)
    writer = open_writer()
    writer.move(replay_id(50))
    result = open_writer().write(batch_of([2]))
    assert (result.batch_id, result.duplicates) == (None, 1)
    clock.now -= 30 * HOUR  # must not change the ingest date
    writer = open_writer()
    assert writer.position == replay_id(2)
    assert writer.write(batch_of([9])).first_seq == 4
    assert set(read_table(table, TABLE_FORMAT)["ingest_date"].to_pylist()) == {date(2026, 11, 20)}


def test_a_managed_table_stores_no_position_and_rejects_a_topic(open_writer, table):
    """A managed subscription's table stores no position, and cannot be opened for a topic: the
    error names both sources.
    """
    open_writer(subscription=MANAGED).write(batch_of([0], topic=None))
    assert open_writer(subscription=MANAGED).position is None
    with pytest.raises(ConfigurationError, match=rf"belongs to managed.*{MANAGED}.*topic {TOPIC}"):
        open_writer()


def test_a_table_of_another_tool_is_rejected(spark, open_writer, table):
    """A table that was not created by this package is rejected, because its log contains no
    position.
    """
    stranger = spark.range(3).write.format(TABLE_FORMAT)
    if TABLE_FORMAT == "iceberg":
        spark.range(3).writeTo("shop.db.strange").create()
        with pytest.raises(ConfigurationError, match="not an sfpubsub table"):
            open_writer("shop.db.strange")
        return
    stranger.save(str(table))
    with pytest.raises(ConfigurationError, match="not an sfpubsub table"):
        open_writer()


def test_a_remote_directory_with_other_files_is_rejected(spark, clock, lake, tmp_path):
    """A remote directory with unrelated files is rejected, but names that begin with ``_`` are
    ignored.
    """
    place = lake / tmp_path.name
    (place / "_schemas").mkdir(parents=True)
    (place / "cat.jpg").write_text("cat")
    with pytest.raises(ConfigurationError, match=r"nor an sfpubsub table .*cat\.jpg"):
        EventWriter(
            spark,
            f"viewfs://lake/tables/{tmp_path.name}",
            format=TABLE_FORMAT,
            topic=TOPIC,
            clock=clock,
        )


def test_an_event_older_than_the_keys_in_memory_is_looked_up(
    open_writer, table, clock, monkeypatch
):
    """An event that may be older than the keys in memory is looked up in the table, in rows from
    one day before its time.

    If its time is unknown, the search starts one day before the earliest time at which the service
    can have stored it.
    """
    asked: list[tuple[float, float]] = []
    rows_with = LoggedTable.rows_with

    def record(self, keys, spans):
        asked.extend(spans)
        return rows_with(self, keys, spans)

    monkeypatch.setattr(LoggedTable, "rows_with", record)
    writer = open_writer()
    writer.write(batch_of(range(2)))
    clock.now += 100 * HOUR
    result = writer.write(batch_of([raw_event(1), raw_event(7), raw_event(8, at=clock.now)]))
    assert (result.rows, result.duplicates) == (2, 1)
    assert asked == [(NOW - 24 * HOUR, clock.now - 73 * HOUR)]
    result = writer.write(batch_of([raw_event(0), raw_event(6, payload=b"\xff\xff")]))
    assert (result.rows, result.duplicates) == (1, 1)
    assert asked[1:] == [(clock.now - KEPT - 24 * HOUR, clock.now - 73 * HOUR)]
    assert ids(table) == ["event-0", "event-1", "event-7", "event-8", "event-6"]


def test_write_rows_keeps_the_position(open_writer, table, tmp_path):
    """`write_rows`, used by streams and redrives, drops duplicates and does not move the table's
    position.
    """
    writer = open_writer()
    writer.write(batch_of(range(3)))
    rows = read_table(table, TABLE_FORMAT)
    writer = open_writer(tmp_path / "copy")
    assert writer.write_rows(rows.slice(0, 2)).rows == 2
    assert writer.position is None
    writer.move(replay_id(77))
    result = writer.write_rows(rows, name="query-1/0")
    assert (result.rows, result.duplicates, result.first_seq) == (1, 2, 2)
    writer = open_writer(tmp_path / "copy")
    assert writer.position == replay_id(77)
    assert writer.write_rows(rows, name="query-1/0").repeated
    assert ids(tmp_path / "copy") == events(3)


def test_a_batch_whose_commit_succeeded_unseen_is_not_written_again(
    open_writer, table, monkeypatch
):
    """If the connection breaks after a commit has succeeded, a retry drops the committed rows as
    duplicates.
    """
    writer = open_writer()
    write = LoggedTable._commit

    def commit_and_fail(self, *arguments, **options):
        write(self, *arguments, **options)
        raise OSError("the connection is gone")

    with monkeypatch.context() as broken:
        broken.setattr(LoggedTable, "_commit", commit_and_fail)
        with pytest.raises(WriteError, match=r"nothing was acked.*connection is gone"):
            writer.write(batch_of(range(3)))
    result = writer.write(batch_of(range(4)))
    assert (result.rows, result.duplicates, result.first_seq) == (1, 3, 3)
    assert ids(table) == events(4)


def test_an_older_writer_can_no_longer_write(spark, clock, tmp_path):
    """Once a newer writer has opened the table, the older one can no longer write.

    On a remote file system there is no lease, so the table's log alone ensures this.
    """
    url = f"viewfs://lake/tables/{tmp_path.name}"
    older = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    older.write(batch_of(range(2)))
    newer = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    for attempt in (lambda: older.write(batch_of([2])), lambda: older.move(replay_id(9))) * 2:
        with pytest.raises(WriteError, match="taken over by another writer"):
            attempt()
    assert newer.write(batch_of(range(3))).rows == 1
    assert ids_by_spark(spark, url) == events(3)


def test_a_writer_replaced_during_its_write_fails(spark, clock, tmp_path, monkeypatch):
    """If a newer writer opens the table while an older one is writing, the older one's commit
    fails.
    """
    url = f"viewfs://lake/tables/{tmp_path.name}"
    older = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    older.write(batch_of(range(2)))
    newer: list[EventWriter] = []
    make = store.frame_of

    def overtake(*arguments, **options):
        if not newer:
            newer.append(None)
            newer[0] = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
        return make(*arguments, **options)

    monkeypatch.setattr(store, "frame_of", overtake)
    with pytest.raises(WriteError, match="taken over by another writer"):
        older.write(batch_of([2]))
    assert newer[0].write(batch_of(range(3))).rows == 1
    assert ids_by_spark(spark, url) == events(3)


def test_only_the_last_of_two_writers_opened_at_once_can_write(spark, clock, tmp_path, monkeypatch):
    """If a second writer takes over a table while a first one is opening it, the first one tries
    again.

    Only the first one, which finished opening last, can then write.
    """
    url = f"viewfs://lake/tables/{tmp_path.name}"
    EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock).write(batch_of([0]))
    commit = LoggedTable._commit
    between: list[EventWriter] = []

    def commit_late(self, *arguments, **options):
        if not between:
            between.append(None)
            between[0] = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
        commit(self, *arguments, **options)

    monkeypatch.setattr(LoggedTable, "_commit", commit_late)
    last = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    with pytest.raises(WriteError, match="taken over"):
        between[0].write(batch_of([1]))
    assert last.write(batch_of(range(2))).rows == 1
    assert ids_by_spark(spark, url) == events(2)


def test_opening_a_table_fails_if_every_commit_conflicts(open_writer, monkeypatch):
    """If every commit conflicts, opening a table fails after a limited number of attempts, and the
    error says why.
    """

    def refuse(self, *arguments, **options):
        raise Conflict("again")

    monkeypatch.setattr(LoggedTable, "_commit", refuse)
    with pytest.raises(WriteError, match="keep"):
        open_writer()


def test_keys_are_loaded_in_bounded_spans_of_time(open_writer, clock, monkeypatch):
    """Deduplication keys are loaded in spans of time with a limited number of keys each, and none
    is missed.
    """
    writer = open_writer()
    for day in range(4):
        clock.now = NOW + day * DAY
        writer.write(batch_of(range(day * 3, day * 3 + 3)))
    monkeypatch.setattr(logged, "_KEYS_AT_ONCE", 7)
    found = list(writer._table.keys_since(NOW + DAY))
    # Each span ends with its day, and the last one at the time of the newest batch.
    assert [time for time, _ in found] == [NOW + DAY + HOUR, NOW + 2 * DAY + HOUR, NOW + 3 * DAY]
    keys = [keys[i : i + 16] for _, keys in found for i in range(0, len(keys), 16)]
    wanted = [event.dedupe_key for event in batch_of(range(3, 12))]
    assert sorted(keys) == sorted(wanted)


def test_write_rows_rejects_rows_with_missing_columns(spark, open_writer, table):
    """The error names the missing columns, and nothing is written, not even a transaction."""
    writer = open_writer()
    before = _last_state(spark, table)
    with pytest.raises(LocalProtocolError, match="event_id"):
        writer.write_rows(pa.table({"x": [1]}))
    assert _last_state(spark, table) == before


def test_the_state_in_the_log_is_readable_json(spark, open_writer, table):
    """Each transaction states its sources, writer, batch, first row number, row count and
    positions. The writer's id is the same in all its transactions, and differs from that of another
    writer.
    """
    writers = []
    writer = open_writer()
    for begin in (0, 3):
        writer.write(batch_of(range(begin, begin + 3)))
        state = json.loads(_last_state(spark, table))
        assert state["sources"] == [["topic", TOPIC]]
        batch = ("b" + str(begin).zfill(19), begin, 3)
        assert (state["batch"], state["first_seq"], state["rows"]) == batch
        assert state["positions"] == {TOPIC: replay_id(begin + 2).hex()}
        writers.append(state["writer"])
    open_writer()
    writers.append(json.loads(_last_state(spark, table))["writer"])
    assert writers[0] == writers[1] != writers[2]
    assert all(writers)


def _last_state(spark: SparkSession, table: Path) -> str:
    if TABLE_FORMAT == "iceberg":
        rows = spark.read.format("iceberg").load(f"{table}#snapshots").orderBy("committed_at")
        return rows.collect()[-1]["summary"]["sfpubsub.state"]
    return spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["userMetadata"]
