"""Tests of duplicates and conflicts in real tables: look-ups, restarts, and wrong clocks."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark import EventWriter, read_sidecar
from sfpubsub.types import RawEvent
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import read_table
from tests.spark.sample_events import CODEC, NOW, TOPIC, batch_of, raw_event, replay_id

HOUR = 3600.0
YEAR = 365 * 24 * HOUR

FORMATS = ["parquet", TABLE_FORMAT]


class Clock:
    """A clock that tests can set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def open_writer(
    spark: SparkSession, table: Path, clock: Clock, kind: str
) -> Iterator[Callable[..., EventWriter]]:
    """Return a function that closes the previous writer and opens a new one, as a restarted process
    would.
    """
    opened: list[EventWriter] = []

    def open_one(**options) -> EventWriter:
        if opened:
            opened[-1].close()
        opened.append(EventWriter(spark, table, format=kind, topic=TOPIC, clock=clock, **options))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].close()


def variant_of(number: int, value: float, place: int) -> RawEvent:
    """Return an event with the id of event *number* but with its own value and position."""
    payload = CODEC.encode(
        {"CreatedDate": round(NOW * 1000), "CreatedById": "005", "Number__c": value}
    )
    return RawEvent(f"event-{number}", "schema-1", payload, replay_id(place))


def conflicts_of(spark: SparkSession, table: Path) -> list[dict]:
    """Return the entries of the table's conflicts sidecar, sorted by payload."""
    rows = read_sidecar(spark, table, "conflicts").collect()
    return sorted((row.asDict() for row in rows), key=lambda row: row["payload"])


def test_conflicting_payloads_of_one_event_id_are_both_kept(spark, open_writer, table, caplog):
    """If two events share an id, the first is stored as a row, the other in the conflicts sidecar.

    The sidecar entry contains the positions of both. A conflict that is redelivered is counted
    again but stored once.
    """
    writer = open_writer()
    result = writer.write(batch_of([raw_event(0), variant_of(0, 9.0, 50), raw_event(1)]))
    assert (result.rows, result.duplicates, result.conflicts) == (2, 0, 1)
    assert result.received == 3
    result = writer.write(batch_of([variant_of(1, 8.0, 51), raw_event(1)]))
    assert (result.rows, result.duplicates, result.conflicts) == (0, 1, 1)
    assert "1 events have the id of another event but a different payload" in caplog.text
    writer = open_writer()
    again = [variant_of(0, 9.0, 50), variant_of(1, 7.0, 52), raw_event(0), raw_event(2)]
    result = writer.write(batch_of(again))
    assert (result.rows, result.duplicates, result.conflicts) == (1, 1, 2)
    kept = conflicts_of(spark, table)
    assert {
        (row["event_id"], row["replay_id"], row["stored_replay_id"], row["stored_seq"] is None)
        for row in kept
    } == {
        ("event-0", replay_id(50).hex(), replay_id(0).hex(), True),
        ("event-1", replay_id(51).hex(), replay_id(1).hex(), False),
        ("event-1", replay_id(52).hex(), replay_id(1).hex(), False),
    }
    payloads = {base64.b64decode(row["payload"]) for row in kept}
    assert payloads == {variant_of(0, n, 0).payload for n in (9.0, 8.0, 7.0)}
    assert {(row["topic"], row["schema_id"]) for row in kept} == {(TOPIC, "schema-1")}


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="RESTORE is Delta's")
@pytest.mark.parametrize("kind", ["delta"])
def test_rows_removed_by_a_restore_are_written_again(spark, open_writer, table, kind):
    """Rows that Delta's RESTORE removed are written again after a restart."""
    writer = open_writer()
    writer.write(batch_of(range(10)))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").selectExpr("max(version)").first()[0]
    writer.write(batch_of(range(10, 20)))
    writer.close()
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {history}")
    result = open_writer().write(batch_of(range(20)))
    assert (result.rows, result.duplicates) == (10, 10)


def test_undecodable_event_does_not_read_old_partitions(open_writer, table, clock, kind):
    """A look-up never reads partitions older than the service's retention.

    The test damages such a partition, so that reading it would fail.
    """
    writer = open_writer()
    writer.write(batch_of([raw_event(0)]))
    for file in table.rglob("part-*.parquet"):
        file.write_bytes(b"PAR1 and then nothing")
    clock.now += 29 * 24 * HOUR
    writer.write(batch_of([raw_event(5, at=clock.now)]))
    clock.now += 24 * HOUR
    events = [
        raw_event(1, payload=b"\xff"),
        raw_event(2, at=-62_135_596_800.0),
        raw_event(3, at=clock.now - 80 * HOUR),
        raw_event(4, at=clock.now),
    ]
    result = open_writer().write(batch_of(events))
    assert (result.rows, result.undecodable) == (4, 1)


def test_each_write_queries_the_table_once(open_writer, clock, monkeypatch):
    """A write looks up its events with one query, even if several are old or undecodable."""
    writer = open_writer()
    writer.write(batch_of(range(4)))
    asked = []
    rows_with = writer._table.rows_with
    monkeypatch.setattr(
        writer._table, "rows_with", lambda *args: asked.append(args) or rows_with(*args)
    )
    clock.now += 80 * HOUR
    events = [
        *(raw_event(n, payload=b"\xff%d" % n) for n in (5, 6)),
        *(raw_event(n) for n in (1, 2, 7)),
        raw_event(8, at=clock.now),
    ]
    result = writer.write(batch_of(events))
    assert (result.rows, result.duplicates) == (4, 2)
    assert len(asked) == 1


# Wrong clocks.


def days_of(table: Path, kind: str) -> set[str]:
    """Return the dates of the table's partitions, in ISO format."""
    if kind != "parquet":
        return {day.isoformat() for day in read_table(table, kind)["ingest_date"].to_pylist()}
    return {path.name.removeprefix("ingest_date=") for path in table.glob("ingest_date=*")}


def test_clock_that_is_a_year_ahead_does_no_lasting_harm(open_writer, table, clock, kind, caplog):
    """While the clock is wrong, a batch is dated by its newest event, and a warning is logged.

    Otherwise the table's time would stay a year ahead, and every later event would be looked up.
    """
    writer = open_writer()
    writer.write(batch_of(range(2)))
    clock.now += YEAR
    result = writer.write(batch_of([raw_event(n, at=NOW + HOUR) for n in (1, 2)]))
    assert (result.rows, result.conflicts) == (1, 1)
    writer = open_writer()  # a restart while the clock is wrong
    assert writer.write(batch_of([0, 3])).duplicates == 1
    assert "this machine's clock reads 2027-11-20 23:00 UTC" in caplog.text
    assert "the service would not deliver an event from 2026-11-20" in caplog.text
    clock.now = NOW + 2 * HOUR
    assert writer.write(batch_of([raw_event(4, at=clock.now)])).rows == 1
    assert days_of(table, kind) == {"2026-11-20", "2026-11-21"}


def test_conflicts_sidecar_is_a_json_file(open_writer, table, kind):
    """A conflict is stored as JSON that can be read without Spark, with the event id and the time
    at which it was found.
    """
    writer = open_writer()
    writer.write(batch_of([raw_event(0), variant_of(0, 9.0, 50)]))
    place = table.parent / ".orders.sfpubsub" if kind == "parquet" else table
    (file,) = (place / "_conflicts").glob("*.json")
    record = json.loads(file.read_text())
    assert record["event_id"] == "event-0"
    assert record["noted_at"] == NOW
