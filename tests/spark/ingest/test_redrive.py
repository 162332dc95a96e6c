"""Tests of redriving quarantined events into a table, in which each event must be stored once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from sfpubsub import FileQuarantine, QuarantinedEvent
from sfpubsub.cli.main import run
from sfpubsub.cli.redrive import Decoder, Table, redrive
from sfpubsub.errors import WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.raw.destination import sidecar_directory
from sfpubsub.spark.raw.parquet import ParquetTable
from sfpubsub.stores.schema_store import FileSchemaStore
from tests.spark.sample_events import (
    MANAGED,
    NOW,
    SCHEMA_JSON,
    TOPIC,
    batch_of,
    raw_event,
    replay_id,
)

HOUR = 3600.0


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def quarantine(table: Path) -> FileQuarantine:
    """The table's quarantine."""
    return FileQuarantine(table.parent / f".{table.name}.sfpubsub" / "_quarantine")


def quarantined(number: int, *, at: float = NOW, **changes) -> QuarantinedEvent:
    """Return event *number*, created at *at*, as quarantined for the reason "no schema".

    *changes* replace the raw event or other attributes.
    """
    options = {"subscription": TOPIC, "topic": "", "reason": "no schema", "received_at": at + 1.5}
    raw = changes.pop("raw", raw_event(number, at=at))
    return QuarantinedEvent(raw, **{**options, "schema_json": SCHEMA_JSON, **changes})


@pytest.fixture
def into_table(spark, table: Path, quarantine: FileQuarantine):
    """Return a function that redrives the entries not yet marked as redriven, with a new writer.

    The function takes the writer's time and the entries, by default all in the quarantine. It
    returns the numbers of redriven, remaining and duplicate events.
    """

    def run(now: float = NOW, entries: Sequence[QuarantinedEvent] | None = None):
        waiting = quarantine.entries() if entries is None else iter(entries)
        waiting = [entry for entry in waiting if not quarantine.is_redriven(entry.key)]
        with EventWriter(spark, table, topic=TOPIC, clock=lambda: now) as writer:
            sink = Table(writer)
            done, left = redrive(quarantine, iter(waiting), Decoder([]), sink)
            return done, left, sink.duplicates

    return run


def rows_of(table: Path) -> list[dict]:
    """Return the table's rows in order of arrival."""
    rows = ds.dataset(table, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: row["ingest_seq"])


def forget_marks(quarantine: FileQuarantine) -> None:
    """Delete the marks of redriven entries, so that they are redriven again."""
    for mark in quarantine.directory.glob("*.done"):
        mark.unlink()


def test_events_redriven_after_the_window_are_stored_once(spark, into_table, table, quarantine):
    """Events that are redriven again after their keys have left the window of dedupe keys are
    counted as duplicates and add no rows.
    """
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        writer.write(batch_of([raw_event(0), raw_event(5)]))
    quarantine.put([quarantined(1), quarantined(2, at=NOW - 500 * HOUR)])
    assert into_table(NOW + HOUR) == (2, 0, 0)
    first = rows_of(table)
    assert [row["event_id"] for row in first] == ["event-0", "event-5", "event-2", "event-1"]
    for later in (2, 100, 300):
        forget_marks(quarantine)
        assert into_table(NOW + later * HOUR) == (2, 0, 2)
    assert rows_of(table) == first
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW + 400 * HOUR) as writer:
        assert writer.write(batch_of([raw_event(1)])).duplicates == 1


def test_redriven_row_equals_an_ingested_row(spark, into_table, table, quarantine):
    """A redriven event's row has the columns that ingest would have written, including the time of
    arrival, and the table's position does not change.
    """
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        writer.write(batch_of([raw_event(0), raw_event(5)], received_at=NOW + 1.5))
    quarantine.put([quarantined(1)])
    assert into_table() == (1, 0, 0)
    written, _, redriven = rows_of(table)
    same = ("topic", "subscription", "schema_id", "event_name", "event_time", "received_at")
    assert {name: redriven[name] for name in same} == {name: written[name] for name in same}
    assert redriven["replay_id"] == bytes(replay_id(1))
    assert redriven["payload_json"] == written["payload_json"].replace("0.0", "1.0")
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        assert writer.position == replay_id(5)


def test_failure_between_row_and_mark_adds_no_second_row(
    into_table, table, quarantine, monkeypatch
):
    """A failure between writing a row and marking its entry adds no second row.

    The next redrive counts the event as a duplicate and marks the entry.
    """
    quarantine.put([quarantined(1)])

    def fail(*_arguments):
        assert len(rows_of(table)) == 1, "marked before the row was there"
        raise WriteError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(FileQuarantine, "mark_redriven", fail)
        with pytest.raises(WriteError):
            into_table()
    assert into_table() == (1, 0, 1)
    assert len(rows_of(table)) == 1
    assert len(list(quarantine.directory.glob("*.done"))) == 1


def test_entries_that_cannot_be_written_stay_in_the_quarantine(
    into_table, table, quarantine, capsys
):
    """An undecodable payload and an event of another subscription are reported and not marked as
    redriven, and other entries are redriven.
    """
    bad = quarantined(2, raw=raw_event(2, payload=b"\xff"))
    other = quarantined(3, subscription=MANAGED)
    quarantine.put([quarantined(1), bad, other])
    assert into_table(entries=[quarantined(1), bad, other]) == (1, 2, 0)
    assert [row["event_id"] for row in rows_of(table)] == ["event-1"]
    err = capsys.readouterr().err
    assert f"{bad.key} was not redriven: event event-2" in err
    assert f"{other.key} was not redriven: the event belongs to {MANAGED}" in err
    left = {entry.key for entry in quarantine.entries() if not quarantine.is_redriven(entry.key)}
    assert left == {bad.key, other.key}


def test_command_redrives_into_a_table(table, quarantine, tmp_path, capsys):
    """The command writes the events and reports their number, and a second run writes nothing.

    A destination that is missing or is not a table is an error.
    """
    quarantine.put([quarantined(1), quarantined(2)])
    command = ["quarantine", "redrive", "--dir", str(quarantine.directory), "--to"]
    done = subprocess.run(
        [sys.executable, "-m", "sfpubsub", *command, str(table)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "2 redriven (0 already in the table), 0 left" in done.stderr
    assert {row["event_id"] for row in rows_of(table)} == {"event-1", "event-2"}
    # The following commands do not start Spark.
    assert run([*command, str(table)]) == 0
    assert "0 redriven, 0 left" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("not a table")
    assert run([*command, str(tmp_path / "other"), "--again"]) == 1
    assert run([*command[:-1], "--format", "parquet"]) == 2
    assert "--to" in capsys.readouterr().err


def test_schema_is_stored_before_the_redriven_row(spark, table, quarantine, monkeypatch):
    """The schema is stored before the row, because typed tables need it to read the row.

    Once the entry is marked as redriven, a missing schema would go unnoticed.
    """
    quarantine.put([quarantined(1, schema_json=None)])
    held = FileSchemaStore(sidecar_directory(Destination.parse(table, "parquet")) / "_schemas")
    seen: list[str | None] = []
    append = ParquetTable.append

    def look(self, *arguments):
        seen.append(held.get("schema-1"))
        return append(self, *arguments)

    monkeypatch.setattr(ParquetTable, "append", look)
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        sink = Table(writer)
        decoder = Decoder([{"schema-1": SCHEMA_JSON}.get])
        assert redrive(quarantine, quarantine.entries(), decoder, sink) == (1, 0)
    assert seen == [SCHEMA_JSON]
