"""Tests of raw tables in an object store with the S3 API (scripts/test_s3.sh).

Delta is written to a URL, Iceberg to a catalog in a database, since an object store has no rename.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark import EventWriter, read_sidecar
from sfpubsub.spark.raw.destination import Destination
from sfpubsub.spark.raw.files import files_of
from sfpubsub.spark.runtime.session import own_session
from tests.faults import matrix
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.object_store import SECRET, ObjectStore
from tests.spark.sample_events import NOW, TOPIC, batch_of, replay_id

pytestmark = pytest.mark.slow

# Number of kills of one stream, unless OBJECT_STORE_KILLS sets another one.
KILLS = int(os.environ.get("OBJECT_STORE_KILLS", "20"))


@pytest.fixture
def place(object_store: ObjectStore, tmp_path: Path) -> str:
    """Return the destination of a new table: a URL for Delta, a catalog table for Iceberg."""
    if TABLE_FORMAT == "iceberg":
        return f"depot.raw.{tmp_path.name}"
    return object_store.url(f"raw/{tmp_path.name}")


@pytest.fixture
def open_writer(spark: SparkSession, place: str):
    if TABLE_FORMAT == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS depot.raw")
    opened: list[EventWriter] = []

    def open_one() -> EventWriter:
        opened.append(
            EventWriter(spark, place, format=TABLE_FORMAT, topic=TOPIC, clock=lambda: NOW)
        )
        return opened[-1]

    yield open_one
    for writer in opened:
        writer.close()


def rows_of(spark: SparkSession, place: str) -> list[tuple[str, int]]:
    frame = (
        spark.read.table(place)
        if TABLE_FORMAT == "iceberg"
        else spark.read.format("delta").load(place)
    )
    rows = frame.orderBy("ingest_seq").select("event_id", "ingest_seq").collect()
    return [(row[0], row[1]) for row in rows]


def test_each_event_is_stored_once_and_sidecars_are_readable(spark, open_writer, place):
    """A new writer resumes at the stored position and drops duplicates; the older one then fails.

    Spark can read the schemas sidecar.
    """
    older = open_writer()
    assert older.write(batch_of(range(3))).rows == 3
    newer = open_writer()
    assert newer.position == replay_id(2)
    result = newer.write(batch_of(range(5)))
    assert (result.rows, result.duplicates, result.first_seq) == (2, 3, 3)
    with pytest.raises(WriteError, match="taken over by another writer"):
        older.write(batch_of([9]))
    assert rows_of(spark, place) == [(f"event-{n}", n) for n in range(5)]
    (schema,) = read_sidecar(spark, place, "schemas").collect()
    assert schema["schema_id"] == "schema-1"
    frame = spark.read.table(place) if TABLE_FORMAT == "iceberg" else None
    if frame is not None:
        assert all(field.metadata.get("comment") for field in frame.schema)


def test_a_sidecar_file_is_never_missing_while_it_is_replaced(spark, object_store, tmp_path):
    """A reader always finds the file while it is being replaced."""
    if TABLE_FORMAT == "iceberg":
        pytest.skip("an Iceberg table in an object store needs a catalog")
    place = Destination.parse(object_store.url(f"raw/{tmp_path.name}"), "delta")
    files = files_of(place, "delta", "_gaps", own_session(spark))
    files.make()
    files.replace("a.json", "0")
    done = threading.Event()
    missing: list[str] = []
    looks = 0

    def look() -> None:
        nonlocal looks
        mine = files_of(place, "delta", "_gaps", own_session(spark))
        while not done.is_set():
            looks += 1
            if mine.read("a.json") is None:
                missing.append("absent")

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, 40):
            files.replace("a.json", str(number))
    finally:
        done.set()
        reader.join()
    assert looks > 20
    assert missing == []
    assert files.read("a.json") == "39"


def test_iceberg_without_a_catalog_is_rejected(spark, object_store):
    """Writing Iceberg to a URL raises an error that asks for a catalog table.

    Without a catalog, commits need a rename that never overwrites, which object stores lack.
    """
    with pytest.raises(ConfigurationError, match=r"a catalog table \(catalog type jdbc or rest\)"):
        EventWriter(spark, object_store.url("raw/x"), format="iceberg", topic=TOPIC)


def test_every_event_is_stored_once_after_many_kills(
    spark: SparkSession, object_store: ObjectStore, tmp_path: Path, place: str
):
    """Although ingest is killed many times, Spark and (for Delta) a reader without Spark find each
    event once and in order, and no secret is logged.
    """
    if TABLE_FORMAT == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS depot.raw")
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")

    def read(_table: Path, _format: str) -> matrix.Rows:
        found = {"spark": rows_of(spark, place)}
        if TABLE_FORMAT == "delta":
            from deltalake import DeltaTable

            url = place.replace("s3a://", "s3://")
            table = DeltaTable(url, storage_options=object_store.storage_options)
            rows = table.to_pyarrow_table(columns=["event_id", "ingest_seq"])
            rows = rows.sort_by("ingest_seq")
            found["plain"] = list(
                zip(rows["event_id"].to_pylist(), rows["ingest_seq"].to_pylist(), strict=True)
            )
        return found

    report = matrix.run(
        TABLE_FORMAT,
        "topic",
        tmp_path,
        matrix.cells("topic", KILLS, random.Random(seed)),
        seed=seed,
        to=place,
        options=object_store.options,
        read=read,
        say=print,
    )
    print(report)
    assert report.wrong == {}
    assert sum(report.kills.values()) == KILLS
    assert SECRET not in (tmp_path / "ingest.log").read_text()
