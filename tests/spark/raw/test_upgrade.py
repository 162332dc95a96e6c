"""Tests that upgrading a raw table keeps each row exactly once and in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.raw import upgrade
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.layout import LAYOUTS, NEWEST
from sfpubsub.spark.raw.state import State
from sfpubsub.spark.raw.upgrade import upgrade_table
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.old_tables import as_layout_2
from tests.spark.readers import ids_of, read_table
from tests.spark.sample_events import NOW, TOPIC, batch_of, replay_id

HOUR = 3600.0


class Killed(Exception):  # noqa: N818
    """Raised to simulate SIGKILL."""


def old_files(spark: SparkSession, table: Path) -> None:
    """Make a Parquet table of layout 2, with three batches on two days."""
    for number in range(3):
        with EventWriter(
            spark, table, topic=TOPIC, clock=lambda n=number: NOW + n * HOUR
        ) as writer:
            writer.write(batch_of(range(number * 2, number * 2 + 2)))
    as_layout_2(table)


def events(amount: int) -> list[str]:
    return [f"event-{n}" for n in range(amount)]


def check_upgraded(spark: SparkSession, table: Path, format_: str) -> None:
    """Check that each row was kept with its batch and has the new columns, then append rows."""
    rows = read_table(table, format_)
    assert rows["event_id"].to_pylist() == events(6)
    assert rows["ingest_seq"].to_pylist() == list(range(6))
    assert set(NEWEST.stored.names) <= set(rows.column_names)
    assert "ingest_hour" not in rows.column_names
    found = RawBatches(spark, Destination.parse(table, format_)).after(None)
    assert [batch.id for batch in found] == [f"b{n:019d}" for n in (0, 2, 4)]
    with EventWriter(
        spark, table, format=format_, topic=TOPIC, org_id="00D", clock=lambda: NOW + 4 * HOUR
    ) as writer:
        assert writer.position == replay_id(5)
        result = writer.write(batch_of(range(8)))
        assert (result.rows, result.duplicates, result.first_seq) == (2, 6, 6)
    rows = read_table(table, format_)
    assert rows["org_id"].to_pylist() == [None] * 6 + ["00D"] * 2


def test_a_parquet_upgrade_survives_a_kill_at_any_rename(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a kill at any rename, writers are rejected until the upgrade is repeated, and no row is
    lost.
    """
    rename = os.rename
    for step in count(1):
        table = tmp_path / str(step) / "orders"
        table.parent.mkdir()
        old_files(spark, table)
        place = Destination.parse(table, "parquet")
        with monkeypatch.context() as patch:
            patch.setattr(upgrade.os, "rename", _dying(rename, step))
            try:
                assert upgrade_table(spark, place)
            except Killed:
                with pytest.raises(ConfigurationError, match="run sfpubsub upgrade"):
                    EventWriter(spark, table, topic=TOPIC)
            else:
                break
        assert upgrade_table(spark, place)
        assert ids_of(table, "parquet") == events(6)
        assert not upgrade_table(spark, place), "a second upgrade finds nothing to do"
    assert step > 3
    check_upgraded(spark, table, "parquet")
    assert not (place.sidecar_directory / "_upgrade").exists()


def _dying(rename: Callable[..., None], step: int) -> Callable[..., None]:
    left = count(1)

    def call(*arguments: object) -> None:
        if next(left) == step:
            raise Killed
        rename(*arguments)

    return call


def test_a_parquet_upgrade_that_fails_while_staging_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """If staging fails, the old table stays in use, and the next upgrade starts over."""
    table = tmp_path / "orders"
    old_files(spark, table)
    place = Destination.parse(table, "parquet")

    def fail(*arguments: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "sync_directory_and_files", fail)
        with pytest.raises(WriteError, match="run the upgrade again"):
            upgrade_table(spark, place)
    assert ids_of(table, "parquet") == events(6)
    assert upgrade_table(spark, place)
    check_upgraded(spark, table, "parquet")


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="Delta has jars for PySpark 4.2")
def test_a_delta_table_is_upgraded_in_one_transaction(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An upgrade adds the new columns to all rows and keeps a column added by the owner."""
    table = tmp_path / "orders"
    first = State.first
    with monkeypatch.context() as patch:
        patch.setattr(State, "first", lambda source, writer: first(source, writer, LAYOUTS[1]))
        for number in range(3):
            with EventWriter(
                spark, table, format="delta", topic=TOPIC, clock=lambda n=number: NOW + n * HOUR
            ) as writer:
                writer.write(batch_of(range(number * 2, number * 2 + 2)))
            if number == 0:
                spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (note STRING)")
    rows = read_table(table, "delta")
    assert set(rows["ingest_hour"].to_pylist()) == {
        "2026-11-20-23",
        "2026-11-21-00",
        "2026-11-21-01",
    }
    assert "org_id" not in rows.column_names
    place = Destination.parse(table, "delta")
    assert upgrade_table(spark, place)
    assert not upgrade_table(spark, place)
    assert "note" in read_table(table, "delta").column_names
    check_upgraded(spark, table, "delta")
