"""Quarantined events that can be decoded after all: into the table, each once, whenever."""

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
from sfpubsub.spark.raw.destination import Destination
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
def kept(table: Path) -> FileQuarantine:
    return FileQuarantine(table.parent / f".{table.name}.sfpubsub" / "_quarantine")


def quarantined(number: int, *, at: float = NOW, **changes) -> QuarantinedEvent:
    """Event *number*, set aside because the service did not know its schema."""
    options = {"subscription": TOPIC, "topic": "", "reason": "no schema", "received_at": at + 1.5}
    raw = changes.pop("raw", raw_event(number, at=at))
    return QuarantinedEvent(raw, **{**options, "schema_json": SCHEMA_JSON, **changes})


@pytest.fixture
def into_table(spark, table: Path, kept: FileQuarantine):
    """Redrive all that is not marked, with a writer of its own, at some time."""

    def run(now: float = NOW, entries: Sequence[QuarantinedEvent] | None = None):
        waiting = kept.entries() if entries is None else iter(entries)
        waiting = [entry for entry in waiting if not kept.is_redriven(entry.key)]
        with EventWriter(spark, table, topic=TOPIC, clock=lambda: now) as writer:
            sink = Table(writer)
            done, left = redrive(kept, iter(waiting), Decoder([]), sink)
            return done, left, sink.duplicates

    return run


def rows_of(table: Path) -> list[dict]:
    rows = ds.dataset(table, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: row["ingest_seq"])


def forget_marks(kept: FileQuarantine) -> None:
    for mark in kept.directory.glob("*.done"):
        mark.unlink()


def test_each_event_is_in_the_table_once_though_the_window_has_passed(
    spark, into_table, table, kept
):
    """Redriven, and again after its key and its own time have left the window: one row each."""
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        writer.write(batch_of([raw_event(0), raw_event(5)]))
    kept.put([quarantined(1), quarantined(2, at=NOW - 500 * HOUR)])
    assert into_table(NOW + HOUR) == (2, 0, 0)
    first = rows_of(table)
    assert [row["event_id"] for row in first] == ["event-0", "event-5", "event-2", "event-1"]
    for later in (2, 100, 300):
        forget_marks(kept)
        assert into_table(NOW + later * HOUR) == (2, 0, 2)
    assert rows_of(table) == first
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW + 400 * HOUR) as writer:
        assert writer.write(batch_of([raw_event(1)])).duplicates == 1


def test_the_row_is_the_one_that_ingest_would_have_written(spark, into_table, table, kept):
    """Every column, the time of arrival included; and the table's position stays."""
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        writer.write(batch_of([raw_event(0), raw_event(5)], received_at=NOW + 1.5))
    kept.put([quarantined(1)])
    assert into_table() == (1, 0, 0)
    written, _, redriven = rows_of(table)
    same = ("topic", "subscription", "schema_id", "event_name", "event_time", "received_at")
    assert {name: redriven[name] for name in same} == {name: written[name] for name in same}
    assert redriven["replay_id"] == bytes(replay_id(1))
    assert redriven["payload_json"] == written["payload_json"].replace("0.0", "1.0")
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        assert writer.position == replay_id(5)


def test_killed_between_the_row_and_the_mark_it_is_still_one_row(
    into_table, table, kept, monkeypatch
):
    """The mark comes after the row; without it the event is redriven again, and known."""
    kept.put([quarantined(1)])

    def fail(*_arguments):
        assert len(rows_of(table)) == 1, "marked before the row was there"
        raise WriteError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(FileQuarantine, "mark_redriven", fail)
        with pytest.raises(WriteError):
            into_table()
    assert into_table() == (1, 0, 1)
    assert len(rows_of(table)) == 1
    assert len(list(kept.directory.glob("*.done"))) == 1


def test_what_cannot_go_into_the_table_stays(into_table, table, kept, capsys):
    """A payload that still does not fit, and an event of another subscription."""
    bad = quarantined(2, raw=raw_event(2, payload=b"\xff"))
    other = quarantined(3, subscription=MANAGED)
    kept.put([quarantined(1), bad, other])
    assert into_table(entries=[quarantined(1), bad, other]) == (1, 2, 0)
    assert [row["event_id"] for row in rows_of(table)] == ["event-1"]
    err = capsys.readouterr().err
    assert f"{bad.key} was not redriven: event event-2" in err
    assert f"{other.key} was not redriven: the event belongs to {MANAGED}" in err
    left = {entry.key for entry in kept.entries() if not kept.is_redriven(entry.key)}
    assert left == {bad.key, other.key}


def test_the_command_redrives_into_a_table(table, kept, tmp_path, capsys):
    """As a person runs it: rows and marks; the second time there is nothing to do."""
    kept.put([quarantined(1), quarantined(2)])
    command = ["quarantine", "redrive", "--dir", str(kept.directory), "--to"]
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
    # From here on Spark is not started.
    assert run([*command, str(table)]) == 0
    assert "0 redriven, 0 left" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("not a table")
    assert run([*command, str(tmp_path / "other"), "--again"]) == 1
    assert run([*command[:-1], "--format", "parquet"]) == 2
    assert "--to" in capsys.readouterr().err


def test_the_schema_of_a_redriven_row_is_kept_before_the_row(spark, table, kept, monkeypatch):
    """Wherever it was found: typed tables need it, and the mark would hide that it is missing."""
    kept.put([quarantined(1, schema_json=None)])
    held = FileSchemaStore(Destination.parse(table, "parquet").sidecar_directory / "_schemas")
    seen: list[str | None] = []
    append = ParquetTable.append

    def look(self, *arguments):
        seen.append(held.get("schema-1"))
        return append(self, *arguments)

    monkeypatch.setattr(ParquetTable, "append", look)
    with EventWriter(spark, table, topic=TOPIC, clock=lambda: NOW) as writer:
        sink = Table(writer)
        decoder = Decoder([{"schema-1": SCHEMA_JSON}.get])
        assert redrive(kept, kept.entries(), decoder, sink) == (1, 0)
    assert seen == [SCHEMA_JSON]
