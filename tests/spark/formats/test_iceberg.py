"""Changes of Iceberg tables with notes: each is made once, or not at all, whatever comes between.

A compaction, an expiry or a change by a user is one of another program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.errors import WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats import Conflict
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.frames import spark_schema
from sfpubsub.spark.formats.iceberg import WAP_ID, IcebergStore, path_of
from sfpubsub.spark.formats.store import Notes, Sessions
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.runtime.sql import quoted
from sfpubsub.spark.tables import open_target
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.sample_events import NOW, TOPIC, batch_of, replay_id
from tests.spark.stored_tables import RAW, unpack
from tests.spark.tables.test_targets import COLUMNS, parquet_of, rows, seqs

pytestmark = pytest.mark.skipif(
    TABLE_FORMAT != "iceberg",
    reason="iceberg has no jars for this PySpark: scripts/test_iceberg.sh runs it with 4.1",
)

KEY = "test.note"


class Killed(BaseException):
    """Ends a change as a kill would: nothing handles it."""


ROWS = pa.schema([("id", pa.int64())])


def number_of(note: str | None) -> int | None:
    """Return the number in a note such as ``test.note 2b``."""
    found = re.fullmatch(rf"{KEY} (\d+).*", note or "")
    return None if found is None else int(found[1])


class World:
    """One table, as this package and other programs see it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        place = Destination.parse(path, "iceberg")
        sessions = Sessions(spark, place)
        self.spark = sessions.plain
        self.changing = sessions.changing
        self.catalog, _ = path = path_of(self.spark, place)
        self.name = quoted(*path)
        self.table = IcebergStore(sessions, place, Notes("test", KEY, number_of), lambda: None)

    def make(self) -> World:
        self.table.create(spark_schema(ROWS), {})
        return self

    def append(self, *ids: int, note: str) -> bool:
        return self.table.append(pa.table({"id": ids}, ROWS), number_of(note), note)

    def merge(self, *ids: int, note: str) -> bool:
        """Add rows, by a statement."""
        rows = self.changing.createDataFrame([(each,) for each in ids], "id BIGINT")
        return self.table.merge(rows, "t.id = s.id", number_of(note), note)

    def newest(self) -> str | None:
        """Return the newest note, as its readers find it."""
        return self.table.told().note

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.table.read().collect())

    def add(self, *ids: int) -> None:
        """Add rows as another program."""
        for each in ids:
            self.spark.sql(f"INSERT INTO {self.name} VALUES ({each})")

    def call(self, procedure: str, more: str = "") -> None:
        self.spark.sql(
            f"CALL {self.catalog}.system.{procedure}(table => '{self.name}'{more})"
        ).collect()

    def expire(self) -> None:
        """Expire every snapshot but the newest of each branch."""
        self.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")

    def bury(self) -> None:
        """Add snapshots of another program, and expire those below them."""
        for _ in range(2):
            self.spark.sql(f"INSERT INTO {self.name} SELECT * FROM {self.name} LIMIT 0")
        self.expire()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path / "a [1] #ü").make()


def between(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Do something once, before the next call of the method *step*."""
    original, done = getattr(IcebergStore, step), []

    def call(self, *arguments):
        if not done:
            done.append(True)
            act()
        return original(self, *arguments)

    monkeypatch.setattr(IcebergStore, step, call)


def test_properties_keep_words_that_spark_takes_for_secrets(spark: SparkSession, tmp_path: Path):
    """Spark hides values with words such as url or token; a field may have such a name."""
    text = json.dumps({"PhotoUrl": "url", "Token__c": "a secret password"})
    world = World(spark, tmp_path / "t")
    world.table.create(spark_schema(ROWS), {"sfpubsub.facts": text})
    assert world.table.properties()["sfpubsub.facts"] == text
    world.table.set({"sfpubsub.facts": f"{text} "})
    assert world.table.properties()["sfpubsub.facts"] == f"{text} "


@contextmanager
def killed_before(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """Kill whoever reaches the method *step* in the block."""

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        between(patch, step, kill)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize("change", ["append", "merge"])
def test_of_two_writers_one_loses(spark, tmp_path, world: World, monkeypatch, change: str):
    """A change is not published if another one has come first, though Iceberg would accept both.

    A statement that only adds rows is one of those that Iceberg would build on top of the other.
    """
    assert world.append(1, note="test.note 1")
    other = World(spark, tmp_path / "a [1] #ü")
    second = {"note": "test.note 2b"}
    between(monkeypatch, "_publish", lambda: other.append(3, **second))
    make = getattr(world, change)
    assert not make(2, note="test.note 2a")
    assert (world.ids(), world.newest()) == ([1, 3], "test.note 2b")
    assert make(2, note="test.note 3")
    assert (world.ids(), world.newest()) == ([1, 2, 3], "test.note 3")
    assert world.table.history().left == []


@pytest.mark.parametrize("change", ["append", "merge"])
@pytest.mark.parametrize("by", ["compaction", "user", "expiry"])
def test_a_change_is_staged_again_after_one_by_another_program(
    world: World, monkeypatch, change: str, by: str
):
    """Neither the change nor that of the other program is lost."""
    world.append(1, note="test.note 1")
    world.append(2, note="test.note 2")
    acts = {
        "compaction": lambda: world.call(
            "rewrite_data_files", ", options => map('rewrite-all', 'true')"
        ),
        "user": lambda: world.add(9),
        "expiry": world.expire,
    }
    between(monkeypatch, "_publish", acts[by])
    assert getattr(world, change)(3, note="test.note 3")
    assert world.ids() == [1, 2, 3, *([9] if by == "user" else [])]
    assert world.newest() == "test.note 3"


@pytest.mark.parametrize("change", ["append", "merge"])
def test_what_a_killed_process_has_staged_is_never_published(
    world: World, monkeypatch, change: str
):
    """Its branch is dropped by the next change."""
    world.append(1, note="test.note 1")
    with killed_before(monkeypatch, "_publish"):
        getattr(world, change)(2, note="test.note 2")
    assert (world.ids(), world.newest()) == ([1], "test.note 1")
    assert world.append(3, note="test.note 2'")
    assert (world.ids(), world.newest()) == ([1, 3], "test.note 2'")
    assert world.table.history().left == []


def test_a_change_whose_answer_was_lost_is_not_made_twice(world: World, monkeypatch):
    """If publishing raised an error after it had succeeded, the note in the table tells."""
    publish = IcebergStore._publish

    def lose_the_answer(self, *arguments):
        publish(self, *arguments)
        raise OSError("the connection is gone")

    monkeypatch.setattr(IcebergStore, "_publish", lose_the_answer)
    assert world.append(1, note="test.note 1")
    assert world.ids() == [1]
    assert world.table.properties()[KEY] == "test.note 1"
    assert world.table.history().left == []


def test_a_change_that_is_never_accepted_ends_with_the_cause(world: World, monkeypatch):
    """The number of attempts is limited, and the error has Spark's as its cause."""

    def refuse(self, *arguments):
        raise OSError("no")

    monkeypatch.setattr(IcebergStore, "_publish", refuse)
    with pytest.raises(Conflict) as caught:
        world.append(1, note="test.note 1")
    assert str(caught.value.__cause__) == "no"
    assert world.ids() == []


def test_a_note_that_was_not_copied_is_found(world: World, monkeypatch):
    """A process that was killed after publishing has made its change; the next one goes on."""
    world.append(1, note="test.note 1")
    with killed_before(monkeypatch, "_finish"):
        world.append(2, note="test.note 2")
    assert world.table.properties()[KEY] == "test.note 1"
    world.add(9)
    world.expire()
    assert (world.newest(), world.table.history().in_doubt) == ("test.note 2", [])
    assert not world.append(2, note="test.note 2'")
    assert world.append(3, note="test.note 3")
    world.bury()
    assert (world.newest(), world.ids()) == ("test.note 3", [1, 2, 3, 9])


def test_a_note_outlives_its_snapshot(world: World):
    """The newest note is known after other programs have expired all snapshots but their own."""
    world.append(1, note="test.note 1")
    world.bury()
    history = world.table.history()
    assert (len(history.snapshots), next(history.main()).note) == (1, None)
    assert world.newest() == "test.note 1"
    assert world.append(2, note="test.note 2")


@pytest.mark.parametrize("step", ["_publish", "_finish"])
def test_a_step_of_which_nothing_is_left_is_not_guessed(
    spark: SparkSession, tmp_path: Path, monkeypatch, step: str
):
    """A process was killed between staging and copying, and expiry has removed what would tell
    whether it had published its step. The table is refused, because the step could be repeated.
    """
    with open_target(spark, tmp_path, "iceberg") as target:
        table = target.table("T")
        table.make(COLUMNS)
        table.append([parquet_of(rows(0))], 1)
        with killed_before(monkeypatch, step):
            table.append([parquet_of(rows(1))], 2)
        assert table.step() == (2 if step == "_finish" else 1)
        World(spark, tmp_path / "T").bury()
        with pytest.raises(WriteError, match="was perhaps changed once more"):
            table.step()


@pytest.mark.parametrize("step", ["_publish", "_finish"])
def test_maintenance_finishes_what_a_killed_process_has_left(
    spark: SparkSession, tmp_path: Path, monkeypatch, step: str
):
    """Before snapshots expire, what they tell of a killed change is stored, and its branch dropped.
    So the table goes on, however long nobody changes it and whatever other programs do then.
    """
    with open_target(spark, tmp_path, "iceberg") as target:
        table = target.table("T")
        table.make(COLUMNS)
        table.append([parquet_of(rows(0))], 1)
        with killed_before(monkeypatch, step):
            table.append([parquet_of(rows(1))], 2)
        table.store.expire(0.0)
        World(spark, tmp_path / "T").bury()
        assert table.step() == (2 if step == "_finish" else 1)
        table.append([parquet_of(rows(1))], 2)
        assert (table.step(), seqs(table)) == (2, [0, 1])


@pytest.mark.parametrize("step", ["_publish", "_finish"])
def test_the_rows_tell_a_raw_table_where_to_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch, step: str
):
    """The same with a raw table: whether the last batch was published is seen from its rows."""
    options = {"format": "iceberg", "topic": TOPIC, "clock": lambda: NOW}
    place = tmp_path / "orders"
    with EventWriter(spark, place, **options) as writer:
        writer.write(batch_of(range(2)))
        with killed_before(monkeypatch, step):
            writer.write(batch_of(range(2, 4)))
    World(spark, place).bury()
    with EventWriter(spark, place, **options) as writer:
        assert writer.position == replay_id(3 if step == "_finish" else 1)
        result = writer.write(batch_of(range(5)))
    assert result.first_seq == (4 if step == "_finish" else 2)
    found = spark.read.format("iceberg").load(str(place)).orderBy("ingest_seq").collect()
    assert [row["event_id"] for row in found] == [f"event-{n}" for n in range(5)]
    assert [row["ingest_seq"] for row in found] == list(range(5))


def test_a_rollback_during_a_write_is_reported(world: World, monkeypatch):
    """Publishing undoes a rollback at the same moment; the error says so."""
    world.append(1, note="test.note 1")
    first = world.table.history().tip
    world.append(2, note="test.note 2")
    roll_back = f", snapshot_id => {first}"
    between(monkeypatch, "_publish", lambda: world.call("rollback_to_snapshot", roll_back))
    with pytest.raises(WriteError, match="roll it back again"):
        world.append(3, note="test.note 3")


def test_a_deletion_of_whole_files_is_staged_like_any_change(
    spark: SparkSession, tmp_path: Path, monkeypatch
):
    """Readers see it only when it is published; SQL's DELETE would change the main branch."""
    with open_target(spark, tmp_path, "iceberg") as target:
        table = target.table("T")
        table.make(COLUMNS)
        table.append([parquet_of(rows(0, 1))], 1)
        seen: list[list[int]] = []
        between(monkeypatch, "_publish", lambda: seen.append(seqs(table)))
        table.delete("true", 2)
        assert (seen, seqs(table), table.step()) == ([[0, 1]], [], 2)


def test_a_wap_id_of_a_user_is_no_note(world: World):
    """Only what contains the key is a note of ours."""
    world.append(1, note="test.note 1")
    world.spark.conf.set(WAP_ID, "7")
    world.add(2)
    world.spark.conf.unset(WAP_ID)
    world.call("publish_changes", ", wap_id => '7'")
    assert (world.ids(), world.newest()) == ([1, 2], "test.note 1")


def test_a_table_of_an_earlier_version_keeps_its_identity(spark: SparkSession, tmp_path: Path):
    """Its identity is the id in Iceberg's metadata; that of a new table is a property."""
    unpack(1, "iceberg", tmp_path)
    newest = sorted((tmp_path / RAW / "metadata").glob("v9.metadata.json"))[-1]
    known = json.loads(newest.read_text())["table-uuid"]
    assert RawBatches(spark, Destination.parse(tmp_path / RAW, "iceberg")).identity() == known
    new = tmp_path / "new"
    with EventWriter(spark, new, format="iceberg", topic=TOPIC, clock=lambda: NOW):
        pass
    raw = RawBatches(spark, Destination.parse(new, "iceberg"))
    assert raw.identity() == raw.identity() != known
