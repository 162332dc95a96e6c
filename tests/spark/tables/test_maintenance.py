"""Maintenance makes many small files a few large ones, and changes nothing that anyone reads."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats import FormatError, store
from sfpubsub.spark.formats.store import MOST_FILES, SMALL_BYTES, Files, TableStore
from sfpubsub.spark.formats.target import parquet_of
from sfpubsub.spark.tables import maintenance, open_target
from sfpubsub.spark.tables.maintenance import maintain
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.readers import ids_of
from tests.spark.sample_events import NOW, TOPIC, batch_of
from tests.spark.tables.raw_world import ORDER, Raw

COLUMNS = pa.schema([("ingest_seq", pa.int64())])


@pytest.mark.parametrize(
    ("files", "is_due"),
    [
        (Files(MOST_FILES, MOST_FILES), True),
        (Files(MOST_FILES - 1, 1), False),
        (Files(MOST_FILES, MOST_FILES * SMALL_BYTES), False),
        (Files(0, 0), False),
    ],
)
def test_only_many_small_files_are_worth_rewriting(files: Files, is_due: bool):
    """A few files, or large ones, are left alone, so that a second run has nothing to do."""
    assert files.are_many_and_small == is_due


def test_tables_of_a_target_are_compacted_and_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch
):
    """The rows and the step of each table stay, and the next step is made. A dry run only tells,
    and a table in use is not touched.
    """
    monkeypatch.setattr(store, "MOST_FILES", 4)
    with open_target(spark, tmp_path, TABLE_FORMAT) as target:
        for name in ("Order_Event__e", "_steps"):
            table = target.table(name)
            table.make(COLUMNS)
            for step in range(1, 6 if name == "_steps" else 3):
                table.append([parquet_of(pa.table({"ingest_seq": [step]}, COLUMNS))], step)
        with pytest.raises(ConfigurationError, match="is being written by another process"):
            list(maintain(spark, tmp_path, format=TABLE_FORMAT))
    told = {
        each.table: each for each in maintain(spark, tmp_path, format=TABLE_FORMAT, dry_run=True)
    }
    assert {name: (each.files, each.compacted, each.expired) for name, each in told.items()} == {
        "Order_Event__e": (2, False, False),
        "_steps": (5, True, True),
    }
    done = list(maintain(spark, tmp_path, format=TABLE_FORMAT))
    assert done == list(told.values())
    with open_target(spark, tmp_path, TABLE_FORMAT) as target:
        table = target.table("_steps")
        assert (table.store.files().count, table.step()) == (1, 5)
        assert table.append([parquet_of(pa.table({"ingest_seq": [6]}, COLUMNS))], 6)
        assert sorted(row[0] for row in table.read().collect()) == [1, 2, 3, 4, 5, 6]
        assert target.table("Order_Event__e").store.files().count == 2


def test_past_days_of_a_raw_table_are_compacted_and_its_writer_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch
):
    """Today's files stay. The next writer finds position and keys, so no event is stored twice."""
    monkeypatch.setattr(store, "MOST_FILES", 4)
    times = [NOW]
    options = {"format": TABLE_FORMAT, "topic": TOPIC, "clock": lambda: times[-1]}
    with EventWriter(spark, tmp_path / "orders", maintain=False, **options) as writer:
        for count in (2, 4, 6):
            writer.write(batch_of(range(count)))
        times.append(NOW + 2 * 86_400)
        for count in (8, 10):
            writer.write(batch_of(range(count)))
    place = {"format": TABLE_FORMAT, "clock": lambda: times[-1]}
    (done,) = maintain(spark, tmp_path / "orders", **place)
    assert (done.files, done.compacted, done.expired) == (5, True, False)
    (after,) = maintain(spark, tmp_path / "orders", **place)
    assert (after.files, after.compacted) == (3, False)
    with EventWriter(spark, tmp_path / "orders", **options) as writer:
        result = writer.write(batch_of(range(12)))
    assert (result.rows, result.duplicates, result.first_seq) == (2, 10, 10)
    assert ids_of(tmp_path / "orders", TABLE_FORMAT) == [f"event-{n}" for n in range(12)]


def test_a_writer_compacts_the_days_before_at_the_first_write_of_a_day(
    spark: SparkSession, tmp_path: Path, monkeypatch
):
    """It does so in a later process too, and its next write is appended as always."""
    monkeypatch.setattr(store, "MOST_FILES", 3)
    place = tmp_path / "orders"
    times = [NOW]
    options = {"format": TABLE_FORMAT, "topic": TOPIC, "clock": lambda: times[-1]}
    with EventWriter(spark, place, **options) as writer:
        for count in (2, 4, 6):
            writer.write(batch_of(range(count)))
    times.append(NOW + 86_400)
    with EventWriter(spark, place, **options) as writer:
        writer.write(batch_of(range(8)))
        writer.write(batch_of(range(10)))
    (found,) = maintain(spark, place, format=TABLE_FORMAT, clock=lambda: times[-1], dry_run=True)
    assert found.files == 3
    assert ids_of(place, TABLE_FORMAT) == [f"event-{n}" for n in range(10)]


def test_a_job_compacts_its_tables_when_it_has_nothing_else_to_do(
    spark: SparkSession, tmp_path: Path, monkeypatch, caplog
):
    """After a number of steps, each table with many small files gets fewer, whoever made the steps.

    The job goes on, also if a table cannot be compacted.
    """
    monkeypatch.setattr(store, "MOST_FILES", 4)
    monkeypatch.setattr(maintenance, "MOST_FILES", 4)
    raw = Raw(spark, tmp_path / "raw")

    def files_after_four_steps() -> int:
        for _ in range(4):
            raw.write((ORDER, 2, 0))
            raw.make()
        raw.check()
        (found,) = [
            each
            for each in maintain(spark, raw.typed, format=TABLE_FORMAT, dry_run=True)
            if each.table == "Order_Event__e"
        ]
        return found.files

    def refuse(*_: object) -> None:
        raise FormatError("not now")

    assert files_after_four_steps() == 1
    with monkeypatch.context() as patch:
        for kind in TableStore.__subclasses__():
            patch.setattr(kind, "compact", refuse)
        assert files_after_four_steps() == 5
    assert "Order_Event__e was not maintained" in caplog.text


def test_what_cannot_be_maintained_is_refused(spark: SparkSession, tmp_path: Path):
    """The error names what is missing, or what the format does not allow."""
    with pytest.raises(ConfigurationError, match="does not exist: check the path"):
        list(maintain(spark, tmp_path / "nothing", format=TABLE_FORMAT))
    with pytest.raises(ConfigurationError, match="neither a raw table nor has it tables"):
        list(maintain(spark, tmp_path, format=TABLE_FORMAT))
    with pytest.raises(ConfigurationError, match="at least 7 days"):
        list(maintain(spark, tmp_path, format=TABLE_FORMAT, keep_versions=6 * 86_400.0))


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="Iceberg tells its snapshots' times itself")
@pytest.mark.parametrize(("days", "are_removed"), [(30, False), (8, True)])
def test_old_files_are_removed_when_their_version_is_old_enough(
    spark: SparkSession, tmp_path: Path, days: int, are_removed: bool
):
    """Files of a version that was replaced 10 days ago are kept for 30 days if the user says so.

    Delta's own statement ignores the time that it is given.
    """
    with open_target(spark, tmp_path, "delta") as target:
        table = target.table("Order_Event__e")
        table.make(COLUMNS)
        table.append([parquet_of(pa.table({"ingest_seq": [1]}, COLUMNS))], 1)
        table.append([parquet_of(pa.table({"ingest_seq": [2]}, COLUMNS))], 2)
        table.delete("ingest_seq = 1", 3)
    old = time.time() - 10 * 86_400
    files = set((tmp_path / "Order_Event__e").rglob("*.parquet"))
    for path in files:
        os.utime(path, (old, old))
    log = tmp_path / "Order_Event__e" / "_delta_log"
    for path in log.glob("*.json"):
        is_old = f'"deletionTimestamp":{old * 1000:.0f}'
        path.write_text(re.sub(r'"deletionTimestamp":\d+', is_old, path.read_text()))
    for path in log.glob("*.crc"):
        path.unlink()
    list(maintain(spark, tmp_path, format="delta", keep_versions=days * 86_400.0))
    left = set((tmp_path / "Order_Event__e").rglob("*.parquet"))
    assert bool(files - left) == are_removed
