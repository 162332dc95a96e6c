"""What every `TableStore` promises, in the table format of the test session (conftest.py)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from importlib import import_module

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.store import Notes, Sessions, TableStore, open_store
from tests.spark.conftest import TABLE_FORMAT

COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])


def note_of(number: int) -> str:
    return json.dumps({"test.number": number, "attempt": uuid.uuid4().hex})


def number_of(note: str | None) -> int | None:
    try:
        return int(json.loads(note or "null")["test.number"])
    except (ValueError, KeyError, TypeError):
        return None


class Writer:
    """One of several programs that change the same table, with sessions of its own."""

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        self.sessions = Sessions(spark, place)
        self.store: TableStore = open_store(
            self.sessions, place, Notes("test", "test.number", number_of)
        )

    def change(self, verb: str, number: int) -> bool:
        """Make change *number*, which adds the row *number* unless it is a deletion."""
        rows, note = pa.table({"n": [number], "text": ["x"]}, COLUMNS), note_of(number)
        if verb == "append":
            return self.store.append(rows, number, note)
        if verb == "delete":
            return self.store.delete("n < 0", number, note)
        frame = self.sessions.changing.createDataFrame([(number, "x")], "n BIGINT, text STRING")
        if verb == "insert":
            return self.store.insert(frame, number, note)
        return self.store.merge(frame, "t.n = s.n", number, note)

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.store.read().collect())


@pytest.fixture(params=["a [1] #ü", "plain"] if TABLE_FORMAT == "delta" else ["plain"])
def open_writer(request, spark, tmp_path) -> Callable[[], Writer]:
    """Return a function that opens the same table, each time in sessions of its own. In Delta, one
    table is written by Spark, and the other by delta-rs.
    """
    place = Destination.parse(tmp_path / request.param, TABLE_FORMAT)
    Writer(spark, place).store.create(spark_schema(COLUMNS), {"sfpubsub.test": "1"}, merged=True)
    return lambda: Writer(spark, place)


@pytest.mark.parametrize("verb", ["append", "insert", "merge", "delete"])
def test_of_two_writers_one_loses(open_writer, verb: str):
    """Of two changes with the same number at the same moment, one is made; the other fails, or says
    that it was not made. So does one that comes later.
    """
    writers = [open_writer() for _ in range(2)]
    ready, results = threading.Barrier(2, timeout=300), []

    def run(writer: Writer, number: int) -> None:
        ready.wait()
        try:
            results.append(writer.change(verb, number))
        except Conflict:
            results.append(False)

    for number in (1, 2):
        threads = [threading.Thread(target=run, args=(each, number)) for each in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert sorted(results[-2:]) == [False, True]
        assert len(results) == 2 * number
        assert not any(each.change(verb, number) for each in writers)
    assert open_writer().numbers() == ([] if verb == "delete" else [1, 2])
    assert {each.store.number() for each in writers} == {2}


def test_the_log_tells_the_newest_change_and_its_note(open_writer):
    """Changes of other programs in between do not matter."""
    writer = open_writer()
    told = writer.store.told()
    assert (told.note, told.number, told.is_restored) == (None, 0, False)
    note = note_of(7)
    assert writer.store.append(None, 7, note)
    for number in range(3):
        writer.store.set({"k": str(number)})
    told = open_writer().store.told()
    assert (told.note, told.number, told.is_restored, told.is_certain) == (note, 7, False, True)
    assert writer.store.properties()["sfpubsub.test"] == "1"
    identity = writer.store.identity()
    assert identity == open_writer().store.identity()


def test_rows_of_an_earlier_version_can_be_read(open_writer):
    """A version names the rows that the table had then; no restore is seen where there was none."""
    writer = open_writer()
    writer.change("append", 1)
    version = writer.store.version()
    writer.change("merge", 2)
    assert [row["n"] for row in writer.store.read(version=version).collect()] == [1]
    assert not writer.store.is_restored_since(version)
    assert writer.numbers() == [1, 2]


def test_only_small_files_are_compacted(open_writer, monkeypatch):
    """Files that are large enough stay, so a table that grows is not rewritten each time."""
    writer = open_writer()
    for number in (1, 2, 3):
        writer.change("append", number)
    module = import_module(f"sfpubsub.spark.formats.{TABLE_FORMAT}")
    with monkeypatch.context() as patch:
        patch.setattr(module, "DONE_BYTES", 1)
        writer.store.compact()
    assert writer.store.files().count == 3
    writer.store.compact()
    assert (writer.store.files().count, writer.numbers()) == (1, [1, 2, 3])
    assert writer.change("append", 4)


def test_columns_that_rows_lack_are_null(open_writer):
    """So are new columns in old rows, and columns that another program has added."""
    writer = open_writer()
    writer.change("append", 1)
    writer.store.widen(spark_schema(COLUMNS.append(pa.field("more", pa.float64()))))
    assert writer.store.append(pa.table({"n": pa.array([2], pa.int64())}), 2, note_of(2))
    found = writer.store.read().orderBy("n").collect()
    assert [tuple(row) for row in found] == [(1, "x", None), (2, None, None)]
