"""Tests that a Delta table accepts each number once, by Spark as by delta-rs."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.formats import Conflict, FormatError
from sfpubsub.spark.formats.delta import DeltaStore, LocalDeltaStore
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.store import Notes, Sessions
from tests.spark.conftest import TABLE_FORMAT

pytestmark = pytest.mark.skipif(
    TABLE_FORMAT != "delta",
    reason="this PySpark is set up for Iceberg; Delta runs with PySpark 4.2",
)

ROWS = pa.table({"n": pa.array([1], pa.int64()), "text": pa.array(["x"])})

KINDS = (DeltaStore, LocalDeltaStore)


def note(number: int) -> str:
    return json.dumps({"number": number, "attempt": uuid.uuid4().hex})


def number_of(text: str | None) -> int | None:
    return json.loads(text).get("number") if text and text.startswith("{") else None


@pytest.fixture
def open_store(spark: SparkSession, tmp_path: Path) -> Callable[[type[DeltaStore]], DeltaStore]:
    """Return a function that opens a table, each time in a session of its own."""

    def open_one(kind: type[DeltaStore]) -> DeltaStore:
        place = Destination.parse(tmp_path / "t", "delta")
        store = kind(Sessions(spark, place), place, Notes("app", "number", number_of))
        if not store.exists():
            store.create(spark_schema(ROWS.schema), {})
        return store

    return open_one


def count(store: DeltaStore) -> int:
    return store.read().count()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other_kind", KINDS)
def test_a_number_is_accepted_once_and_seen_by_both(open_store, kind, other_kind):
    """A commit whose number the table already has, or a lower one, is not made, and says so.

    It does not matter which of the two has made the earlier commit.
    """
    store, other = open_store(kind), open_store(other_kind)
    assert (store.number(), other.number()) == (0, 0)
    first = note(3)
    assert store.append(ROWS, 3, first)
    assert store.told().note == first
    assert other.number() == 3
    assert not other.append(ROWS, 3, note(3))
    assert not other.append(ROWS, 2, note(2))
    assert other.append(None, 4, note(4))
    assert store.number() == 4
    commented = pa.schema([pa.field("n", pa.int64(), metadata={"comment": "another"})])
    rows = ROWS.select(["n"]).cast(commented)
    assert other.append(rows, 5, note(5)), "a column may be missing, and be commented differently"
    assert [number_of(each.note) for each in store.commits() if each.note] == [5, 4, 3]
    assert count(store) == 2
    assert (store.identity(), store.version()) == (other.identity(), other.version())
    assert store.columns().fieldNames() == other.columns().fieldNames() == ["n", "text"]


@pytest.mark.parametrize(("kind", "rounds"), [(DeltaStore, 4), (LocalDeltaStore, 200)])
def test_one_of_two_writers_loses(spark, open_store, kind, rounds):
    """Of two commits with the same number at the same moment, one is made, and the other fails or
    says that it was not made; also if the table is compacted meanwhile.
    """
    stores = [open_store(kind) for _ in range(2)]
    ready, results = threading.Barrier(2, timeout=300), []

    def write(store: DeltaStore, number: int) -> None:
        ready.wait()
        try:
            results.append(store.append(ROWS, number, note(number)))
        except Conflict:
            results.append(False)

    for number in range(1, rounds + 1):
        writers = [threading.Thread(target=write, args=(each, number)) for each in stores]
        for writer in writers:
            writer.start()
        if number % 100 == 2:
            spark.sql(f"OPTIMIZE {stores[0].in_sql(spark)}")
        for writer in writers:
            writer.join(300)
        assert len(results) == 2 * number
        assert results[-2:].count(True) == 1, f"number {number}"
    assert (stores[0].number(), count(stores[0])) == (rounds, rounds)


def test_a_number_that_the_log_has_lost_is_unknown(open_store, spark, tmp_path):
    """After Delta has removed our commits from its log, Spark cannot tell the number; delta-rs can.

    The table still refuses it.
    """
    store = open_store(DeltaStore)
    assert store.append(ROWS, 7, note(7))
    for _ in range(2):
        store.set({"k": "v"})
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.forTable(spark._jsparkSession, str(tmp_path / "t")).checkpoint()
    *older, _ = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))
    for path in older:
        path.unlink()
    log.clearCache()
    store, library = open_store(DeltaStore), open_store(LocalDeltaStore)
    assert (store.number(), library.number()) == (None, 7)
    assert not store.append(ROWS, 7, note(7))
    assert not library.append(ROWS, 7, note(7))
    assert store.append(ROWS, 8, note(8))
    assert (store.number(), count(library)) == (8, 2)


def test_a_commit_that_another_program_replaced_is_noticed(open_store, tmp_path):
    """Spark's rename on a local disk can replace a commit of delta-rs. The next append fails then,
    instead of going on with a table that has lost rows.
    """
    store = open_store(LocalDeltaStore)
    assert store.append(ROWS, 1, note(1))
    path = tmp_path / "t" / "_delta_log" / f"{int(store.version()):020d}.json"
    path.write_text('{"commitInfo": {"operation": "OPTIMIZE"}}\n')
    with pytest.raises(Conflict, match="has replaced version 1"):
        store.append(ROWS, 2, note(2))
    assert count(store) == 0


def test_a_table_that_forgets_numbers_is_left_to_spark(open_store, tmp_path):
    """delta-rs stores the time of a number, with which Spark decides when to forget it. A table
    for which that is switched on is written by Spark.
    """
    store = open_store(LocalDeltaStore)
    assert store.append(ROWS, 1, note(1))
    (text,) = [
        line
        for line in (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if '"txn"' in line
    ]
    assert json.loads(text)["txn"]["lastUpdated"] > 0
    store.set({"delta.setTransactionRetentionDuration": "interval 30 days"})
    assert store._kept() is None
    assert not store.append(ROWS, 1, note(1))
    assert store.append(ROWS, 2, note(2))


def test_rows_that_do_not_fit_are_refused(open_store):
    """A column that the table lacks is not added; names are compared as Spark compares them."""
    store = open_store(LocalDeltaStore)
    with pytest.raises(FormatError, match="no column other"):
        store.append(ROWS.rename_columns(["n", "other"]), 1, note(1))
    assert store.append(ROWS.rename_columns(["N", "text"]), 1, note(1))
    with pytest.raises(FormatError):
        store.append(pa.table({"n": ["not a number"]}), 2, note(2))
    assert store.columns().fieldNames() == ["n", "text"]
    assert (store.number(), count(store)) == (1, 1)
