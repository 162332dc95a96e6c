"""Tests of the writer's policies for events that cannot be decoded: quarantine, skip and fail."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from sfpubsub import FileQuarantine
from sfpubsub.errors import ConfigurationError, DecodeError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.ingest.progress import Progress
from sfpubsub.spark.raw import parquet
from tests.spark.sample_events import MANAGED, NOW, TOPIC, batch_of, raw_event, replay_id

BAD = b"\xff\xff"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def quarantine(table: Path) -> FileQuarantine:
    """Return the quarantine that belongs to the table."""
    return FileQuarantine(table.parent / f".{table.name}.sfpubsub" / "_quarantine")


@pytest.fixture
def open_writer(spark, table: Path, quarantine: FileQuarantine):
    """Return a function that closes the previous writer and opens a new one, with the policy
    `quarantine` unless another one is given.
    """
    opened: list[EventWriter] = []

    def open_one(**options) -> EventWriter:
        if opened:
            opened[-1].close()
        options.setdefault("topic", None if "subscription" in options else TOPIC)
        if options.setdefault("on_undecodable", "quarantine") == "quarantine":
            options["quarantine"] = quarantine
        opened.append(EventWriter(spark, table, clock=lambda: NOW, **options))
        return opened[-1]

    yield open_one
    if opened:
        opened[-1].close()


def ids_of(table: Path) -> list[str]:
    rows = ds.dataset(table, format="parquet").to_table().to_pylist()
    return [row["event_id"] for row in sorted(rows, key=lambda row: row["ingest_seq"])]


def events(*numbers: int) -> list:
    """Return events with these numbers; those with negative numbers cannot be decoded."""
    return [raw_event(abs(n), payload=BAD if n < 0 else None) for n in numbers]


def test_undecodable_event_is_quarantined_instead_of_written(
    open_writer, table, quarantine, caplog
):
    """An undecodable event is quarantined with its payload, position and schema, counted, and
    logged; no row is written for it.
    """
    result = open_writer().write(batch_of(events(0, -1, 2), received_at=NOW + 1.5))
    assert (result.rows, result.undecodable, result.set_aside) == (2, 1, 1)
    assert result.duplicates == 0
    assert ids_of(table) == ["event-0", "event-2"]
    (entry,) = quarantine.entries()
    assert (entry.raw.payload, entry.raw.replay_id) == (BAD, replay_id(1))
    assert (entry.received_at, entry.subscription) == (NOW + 1.5, TOPIC)
    assert entry.schema_json
    assert f"event event-1 at position {replay_id(1).hex()} cannot be decoded" in caplog.text
    assert Progress().after(result, None, 0.1).received == 3


def test_batch_of_undecodable_events_advances_the_position(open_writer, table, quarantine):
    """A batch that yields no rows still stores its position, so that a restarted job resumes after
    it.
    """
    result = open_writer().write(batch_of(events(-1, -2)))
    assert (result.rows, result.set_aside, result.batch_id) == (0, 2, None)
    assert open_writer().position == replay_id(2)
    assert len(quarantine) == 2


def test_quarantine_entry_precedes_its_batch_and_is_stored_once(
    open_writer, table, quarantine, monkeypatch
):
    """An undecodable event is quarantined before its batch is published.

    If the write then fails and is repeated, there is still only one entry, and one row per
    decodable event.
    """
    writer = open_writer(subscription=MANAGED)
    batch = batch_of(events(0, -1), topic=None)

    def fail(*_arguments):
        assert len(quarantine) == 1, "not quarantined before the rename"
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(parquet.os, "rename", fail)
        with pytest.raises(WriteError):
            writer.write(batch)
    assert not list(table.glob("ingest_date=*/batch=*"))
    assert open_writer(subscription=MANAGED).write(batch).rows == 1
    again = open_writer(subscription=MANAGED).write(batch)
    assert (again.rows, again.duplicates, again.set_aside) == (0, 1, 1)
    assert (ids_of(table), len(quarantine)) == (["event-0"], 1)


def test_failed_quarantine_fails_the_batch(open_writer, table, quarantine):
    """If the quarantine cannot be written, nothing is published and the error says that no events
    were acked. The next write tries again.
    """
    writer = open_writer()
    quarantine.directory.write_text("in the way")
    with pytest.raises(WriteError, match="no events were acked"):
        writer.write(batch_of(events(0, -1)))
    assert not list(table.glob("ingest_date=*/batch=*"))
    quarantine.directory.unlink()
    assert writer.write(batch_of(events(0, -1))).rows == 1
    assert len(quarantine) == 1


def test_skip_and_fail_policies(open_writer, table, quarantine):
    """The policy `skip` only counts undecodable events, and `fail` raises an error and writes
    nothing. An unknown policy, or a quarantine with another policy, is rejected.
    """
    with pytest.raises(DecodeError):
        open_writer(on_undecodable="fail").write(batch_of(events(0, -1)))
    assert not list(table.glob("ingest_date=*/batch=*"))
    result = open_writer(on_undecodable="skip").write(batch_of(events(0, -1)))
    assert (result.rows, result.set_aside, len(quarantine)) == (1, 1, 0)
    for options in ({"on_undecodable": "x"}, {"on_undecodable": "skip", "quarantine": quarantine}):
        with pytest.raises(ConfigurationError):
            open_writer(**options)
