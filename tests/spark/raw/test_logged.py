"""The raw table in Delta and Iceberg: every event once, and no writer but the newest."""

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
from sfpubsub.spark.ingest.dedupe import KEPT
from sfpubsub.spark.raw import logged
from sfpubsub.spark.raw.layout import NEWEST
from sfpubsub.spark.raw.logged import Conflict, LoggedTable
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of, read_table
from tests.spark.sample_events import MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

HOUR = 3600.0
DAY = 24 * HOUR


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
def open_writer(
    spark: SparkSession, table: Path, clock: Clock
) -> Iterator[Callable[..., EventWriter]]:
    """Opens a writer as a new process would: the one before it is closed."""
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
    """Repeats within a batch, across batches and across restarts; Spark and a plain reader."""
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
    assert rows.column_names == NEWEST.stored.names
    assert set(rows["ingest_date"].to_pylist()) == {date(2026, 11, 20), date(2026, 11, 21)}
    assert rows["batch"].to_pylist()[3:] == ["b" + "3".zfill(19)] * 3
    assert ids_by_spark(spark, table) == events(6)


def test_position_and_numbers_are_read_from_the_log(open_writer, table, clock):
    """After rows, after a position alone, and after duplicates alone, which make no file."""
    assert open_writer().position is None
    open_writer().write([batch_of(range(3)), batch_of([3, 1])])
    assert open_writer().position == replay_id(1)
    writer = open_writer()
    writer.move(replay_id(50))
    result = open_writer().write(batch_of([2]))
    assert (result.batch_id, result.duplicates) == (None, 1)
    clock.now -= 30 * HOUR  # no clock takes the day back
    writer = open_writer()
    assert writer.position == replay_id(2)
    assert writer.write(batch_of([9])).first_seq == 4
    assert set(read_table(table, TABLE_FORMAT)["ingest_date"].to_pylist()) == {date(2026, 11, 20)}


def test_a_managed_table_keeps_no_position_and_its_owner(open_writer, table):
    """Another subscription's events are refused, and both are named."""
    open_writer(subscription=MANAGED).write(batch_of([0], topic=None))
    assert open_writer(subscription=MANAGED).position is None
    with pytest.raises(ConfigurationError, match=rf"belongs to managed.*{MANAGED}.*topic {TOPIC}"):
        open_writer()


def test_somebody_elses_table_is_refused(spark, open_writer, table):
    """Its log has nothing of ours, so there is nothing to go on from."""
    stranger = spark.range(3).write.format(TABLE_FORMAT)
    if TABLE_FORMAT == "iceberg":
        spark.range(3).writeTo("shop.db.strange").create()
        with pytest.raises(ConfigurationError, match="not created by sfpubsub"):
            open_writer("shop.db.strange")
        return
    stranger.save(str(table))
    with pytest.raises(ConfigurationError, match="not an sfpubsub table"):
        open_writer()


def test_a_directory_of_something_else_is_refused(spark, clock, lake, tmp_path):
    """Elsewhere than on this machine Spark looks; what begins with ``_`` may be ours."""
    place = lake / tmp_path.name
    (place / "_schemas").mkdir(parents=True)
    (place / "cat.jpg").write_text("")
    with pytest.raises(ConfigurationError, match=r"nor an sfpubsub table .*cat\.jpg"):
        EventWriter(
            spark,
            f"viewfs://lake/tables/{tmp_path.name}",
            format=TABLE_FORMAT,
            topic=TOPIC,
            clock=clock,
        )


def test_an_old_event_is_looked_up_where_it_can_be(open_writer, table, clock, monkeypatch):
    """Its key has left the window. From a day before its own time on; without one from a day before
    the service can have had it."""
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


def test_rows_of_another_table_keep_the_position(open_writer, table, tmp_path):
    """What a stream or a redrive appends is new by its key, and where to resume stays."""
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


def test_a_failure_after_the_commit_is_not_written_again(open_writer, table, monkeypatch):
    """Whether the batch is there is asked of the table, and what is there is a duplicate."""
    writer = open_writer()
    write = LoggedTable._commit

    def commit_and_fail(self, rows, state):
        write(self, rows, state)
        raise OSError("the connection is gone")

    with monkeypatch.context() as broken:
        broken.setattr(LoggedTable, "_commit", commit_and_fail)
        with pytest.raises(WriteError, match=r"nothing was acked.*connection is gone"):
            writer.write(batch_of(range(3)))
    result = writer.write(batch_of(range(4)))
    assert (result.rows, result.duplicates, result.first_seq) == (1, 3, 3)
    assert ids(table) == events(4)


def test_an_older_writer_can_write_no_more(spark, clock, tmp_path):
    """Elsewhere than in a directory of this machine there is no lease: the log alone decides."""
    url = f"viewfs://lake/tables/{tmp_path.name}"
    older = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    older.write(batch_of(range(2)))
    newer = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    for attempt in (lambda: older.write(batch_of([2])), lambda: older.move(replay_id(9))) * 2:
        with pytest.raises(WriteError, match="taken over by another writer"):
            attempt()
    assert newer.write(batch_of(range(3))).rows == 1
    assert ids_by_spark(spark, url) == events(3)


def test_a_writer_overtaken_in_the_middle_of_its_write_fails(spark, clock, tmp_path, monkeypatch):
    """Its rows are staged, or not yet; the newer one has nothing but its first transaction."""
    url = f"viewfs://lake/tables/{tmp_path.name}"
    older = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    older.write(batch_of(range(2)))
    newer: list[EventWriter] = []
    make = logged.frame_of

    def overtake(*arguments, **options):
        if not newer:
            newer.append(None)
            newer[0] = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
        return make(*arguments, **options)

    monkeypatch.setattr(logged, "frame_of", overtake)
    with pytest.raises(WriteError, match="taken over by another writer"):
        older.write(batch_of([2]))
    assert newer[0].write(batch_of(range(3))).rows == 1
    assert ids_by_spark(spark, url) == events(3)


def test_two_writers_that_begin_at_once_end_as_one(spark, clock, tmp_path, monkeypatch):
    """The first one's first transaction comes in between; the second begins on top of it."""
    url = f"viewfs://lake/tables/{tmp_path.name}"
    EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock).write(batch_of([0]))
    commit = LoggedTable._commit
    between: list[EventWriter] = []

    def commit_late(self, rows, state):
        if not between:
            between.append(None)
            between[0] = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
        commit(self, rows, state)

    monkeypatch.setattr(LoggedTable, "_commit", commit_late)
    last = EventWriter(spark, url, format=TABLE_FORMAT, topic=TOPIC, clock=clock)
    with pytest.raises(WriteError, match="taken over"):
        between[0].write(batch_of([1]))
    assert last.write(batch_of(range(2))).rows == 1
    assert ids_by_spark(spark, url) == events(2)


def test_a_table_that_is_changed_all_the_time_stops_the_start(open_writer, monkeypatch):
    """Tries are counted; the error says why."""

    def refuse(self, rows, state):
        raise Conflict("again")

    monkeypatch.setattr(LoggedTable, "_commit", refuse)
    with pytest.raises(WriteError, match="keep"):
        open_writer()


def test_keys_are_brought_in_spans(open_writer, clock, monkeypatch):
    """However many there are, the driver holds a bounded number at once, and misses none."""
    writer = open_writer()
    for day in range(4):
        clock.now = NOW + day * DAY
        writer.write(batch_of(range(day * 3, day * 3 + 3)))
    monkeypatch.setattr(logged, "_KEYS_AT_ONCE", 7)
    found = list(writer._table.keys_since(NOW + DAY))
    # The end of the day, and of the last one no more than the newest batch's time.
    assert [time for time, _ in found] == [NOW + DAY + HOUR, NOW + 2 * DAY + HOUR, NOW + 3 * DAY]
    keys = [keys[i : i + 16] for _, keys in found for i in range(0, len(keys), 16)]
    wanted = [event.dedupe_key for event in batch_of(range(3, 12))]
    assert sorted(keys) == sorted(wanted)


def test_rows_of_wrong_shape_are_refused(open_writer):
    """Before anything is written; the columns are named."""
    writer = open_writer()
    with pytest.raises(LocalProtocolError, match="event_id"):
        writer.write_rows(pa.table({"x": [1]}))


def test_the_state_can_be_read_by_people(spark, open_writer, table):
    """Each transaction says what it is: source, batch, rows, position, writer."""
    open_writer().write(batch_of(range(3)))
    state = json.loads(_last_state(spark, table))
    assert state["sources"] == [["topic", TOPIC]]
    assert (state["batch"], state["first_seq"], state["rows"]) == ("b" + "0" * 19, 0, 3)
    assert state["positions"] == {TOPIC: replay_id(2).hex()}


def _last_state(spark: SparkSession, table: Path) -> str:
    if TABLE_FORMAT == "iceberg":
        rows = spark.read.format("iceberg").load(f"{table}#snapshots").orderBy("committed_at")
        return rows.collect()[-1]["summary"]["sfpubsub.state"]
    return spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]["userMetadata"]
