"""Typed tables: every raw row is derived once, whatever happens on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sfpubsub.avro.codec import Codec
from sfpubsub.cli.main import run
from sfpubsub.client.batch import EventBatch
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.ingest.writer import EventWriter
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.destination import Destination, Source, claim_table
from sfpubsub.spark.tables import typed as typed_module
from sfpubsub.spark.tables import typed_files as files_module
from sfpubsub.spark.tables.typed import Derived, TypedTables, read_typed, read_undecodable
from sfpubsub.spark.tables.typed_files import finish, last_derived
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import RawEvent, ReplayId
from tests.avro.schemas import payload, schema_text, values
from tests.conftest import until

TOPIC = "/data/ChangeEvents"
ORDER, ORDER_2, ACCOUNT = "order_event", "order_event_v2", "account_change"
NAMES = {ORDER: "Order_Event__e", ORDER_2: "Order_Event__e", ACCOUNT: "AccountChangeEvent"}
CODECS = {name: Codec(name, schema_text(name)) for name in NAMES}


class Raw:
    """A raw table that is written batch by batch, and what is in it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.path = path
        self.typed = path.with_name("typed")
        self.expected: Counter[str] = Counter()
        self.spark = spark
        self.place = Destination.parse(path, "parquet")
        self.schemas = path.parent / f".{path.name}.sfpubsub" / "_schemas"
        self.store = FileSchemaStore(self.schemas)
        self._written = 0

    def write(self, *parts: tuple[str, int, int]) -> None:
        """Write one batch: of each schema so many events, and so many that cannot be decoded."""
        events = []
        for name, good, bad in parts:
            self.store.put(name, schema_text(name))
            for number, value in enumerate(values(name, good + bad, seed=self._written)):
                if name == ACCOUNT:
                    value["ChangeEventHeader"]["changedFields"] = ["0x06"]
                seq = self._written + len(events)
                raw = payload(name, value) + (b"x" if number >= good else b"")
                events.append(RawEvent(f"event-{seq}", name, raw, ReplayId(b"%08d" % seq)))
            self.expected[NAMES[name]] += good
            self.expected["_undecodable"] += bad
        batch = EventBatch(
            subscription=TOPIC,
            topic=TOPIC,
            events=tuple(events),
            codecs=CODECS,
            first_seq=self._written,
            received_at=1_795_215_600.0,
            ack=lambda first, last: None,
        )
        self._written += len(events)
        with EventWriter(self.spark, self.path, topic=TOPIC) as writer:
            writer.write(batch)

    def derive(self) -> Derived:
        """Derive what is there with a new deriver."""
        with TypedTables(self.spark, self.path, self.typed) as tables:
            return sum(tables.derive(), Derived())

    def check(self) -> None:
        """Every raw row is in one typed table, once, for a plain reader of the directories."""
        found: Counter[str] = Counter()
        seqs: list[int] = []
        for place in self.typed.iterdir():
            files = sorted(str(file) for file in place.glob("ingest_hour=*/batch=*/part-*.parquet"))
            if files and place.name not in ("_staging", "_ready"):
                rows = ds.dataset(files, format="parquet").to_table(columns=["ingest_seq"])
                found[place.name] += len(rows)
                seqs += rows["ingest_seq"].to_pylist()
        assert found == +self.expected
        assert sorted(seqs) == list(range(self._written))


@pytest.fixture
def raw(spark, tmp_path) -> Raw:
    return Raw(spark, tmp_path / "raw")


def test_counts_are_equal_across_types_versions_and_bad_events(spark, raw):
    """Each event is a row of its type or of `_undecodable`; later batches, types and versions add
    to what is there."""
    raw.write((ORDER, 20, 0), (ACCOUNT, 10, 2))
    raw.write((ORDER, 5, 1))
    first = raw.derive()
    raw.check()
    assert first == Derived(2, {"Order_Event__e": 25, "AccountChangeEvent": 10}, 3)
    assert raw.derive() == Derived()

    raw.write((ORDER_2, 7, 1), (ORDER, 3, 0))
    assert raw.derive() == Derived(1, {"Order_Event__e": 10}, 1)
    raw.check()
    orders = read_typed(spark, raw.typed, "Order_Event__e")
    assert orders.count() == 35
    assert orders.where("schema_id = 'order_event' and Promised_At__c is null").count() == 28
    assert orders.select("ingest_hour", "batch").distinct().count() == 3
    reasons = read_undecodable(spark, raw.typed).select("event_name", "reason").collect()
    assert len(reasons) == 4
    assert all("more than the schema describes" in row["reason"] for row in reasons)


def test_change_events_have_their_header_in_columns(spark, raw):
    """Expanded names, the header's facts and the envelope are columns of their own."""
    raw.write((ACCOUNT, 3, 0))
    raw.derive()
    row = read_typed(spark, raw.typed, "AccountChangeEvent").orderBy("ingest_seq").first()
    assert row["changed_fields"] == ["Name", "Type"]
    assert row["entity_name"] == "Account"
    assert row["change_type"] in ("CREATE", "UPDATE")
    assert row["event_id"] == "event-0"
    assert bytes(row["replay_id"]) == b"00000000"
    assert "ChangeEventHeader" not in row.asDict()


class Died(BaseException):
    """In place of a kill: nothing catches it."""


@contextmanager
def death_at(step: int) -> Iterator[None]:
    """Die before the step-th rename, note or removal."""
    with pytest.MonkeyPatch.context() as patch:
        steps = iter(range(step + 1))

        def dying(real):
            def call(*args, **kwargs):
                if next(steps, None) == step:
                    raise Died
                return real(*args, **kwargs)

            return call

        patch.setattr(files_module.os, "rename", dying(os.rename))
        patch.setattr(files_module, "replace_file", dying(files_module.replace_file))
        patch.setattr(files_module.shutil, "rmtree", dying(shutil.rmtree))
        yield


def die(*args):
    raise Died


def decide(raw: Raw) -> None:
    """Derive, and die when it is decided on and nothing is published."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "finish", die)
        with pytest.raises(Died):
            raw.derive()


def test_a_derivation_that_died_is_finished_as_it_was_begun(monkeypatch, raw):
    """Wherever it dies, the next one makes the counts equal; also when a schema has come meanwhile,
    with which the same rows would go elsewhere."""
    raw.write((ORDER, 4, 0), (ACCOUNT, 3, 1))
    raw.write((ORDER, 2, 1))
    shutil.move(raw.schemas, raw.path / "_away")
    raw.store.put(ACCOUNT, schema_text(ACCOUNT))
    with monkeypatch.context() as patch:
        patch.setattr(files_module.os, "rename", die)  # all is staged, nothing is decided on
        with pytest.raises(Died):
            raw.derive()
        assert not list(raw.typed.glob("*/ingest_hour=*"))
    decide(raw)
    with pytest.raises(Died), death_at(1):
        finish(raw.typed)
    (before,) = raw.typed.glob("*/ingest_hour=*/batch=*")
    for name in (ORDER, ORDER_2):
        raw.store.put(name, schema_text(name))
    raw.write((ORDER, 5, 0))
    assert raw.derive() == Derived(1, {"Order_Event__e": 5}, 0)
    assert before.exists()
    raw.expected = Counter({"AccountChangeEvent": 3, "_undecodable": 8, "Order_Event__e": 5})
    raw.check()


def test_a_publication_can_die_at_every_step(spark, raw, tmp_path):
    """And at every step of the next one: what was decided on is published, once, and then noted."""
    raw.write((ORDER, 4, 0), (ACCOUNT, 3, 1))
    raw.write((ORDER, 2, 1))
    decide(raw)
    decided = tmp_path / "decided"
    shutil.move(raw.typed, decided)
    step, deaths = 0, 0
    while step == deaths:
        shutil.copytree(decided, raw.typed)
        for _ in range(2):  # the second one dies later, or not at all
            try:
                with death_at(step):
                    finish(raw.typed)
            except Died:
                deaths = step + 1
                assert last_derived(raw.typed) is None or not list(
                    raw.typed.glob("_ready/*/ingest_hour=*/batch=*")
                )
        finish(raw.typed)
        raw.check()
        assert last_derived(raw.typed) == RawBatches(spark, raw.place).after(None)[-1]
        assert {path.name for path in raw.typed.iterdir()} >= {"_derived", "_undecodable"}
        assert not (raw.typed / "_ready").exists()
        shutil.rmtree(raw.typed)
        step += 1
    assert step > 7  # five batches, the note, and what goes away


def test_a_failed_note_of_columns_is_made_up_for(monkeypatch, spark, raw):
    """Rows are never in columns that no reader is told of, not even after a full disk."""
    raw.write((ORDER, 2, 0))
    with TypedTables(spark, raw.path, raw.typed) as tables:
        with monkeypatch.context() as patch:
            patch.setattr(files_module, "replace_file", full_disk)
            with pytest.raises(WriteError, match="No space left"):
                list(tables.derive())
        list(tables.derive())
    raw.check()
    assert read_typed(spark, raw.typed, "Order_Event__e").count() == 2


def full_disk(path, text):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_batch_that_is_published_while_the_table_is_listed_is_not_passed_over(monkeypatch, raw):
    """A look at a directory may miss a new name and yet see a newer one; the older comes first."""
    raw.path.mkdir(exist_ok=True)
    claim_table(raw.path, [Source("topic", TOPIC)])
    hour = raw.path / "ingest_hour=2026-11-21-00"
    for batch in "b0", "b1", "b2":
        (hour / f"batch={batch}").mkdir(parents=True)
    real, looks = os.listdir, []

    def slow(path):
        looks.append(path)
        names = real(path)
        if len(looks) == 4:
            names.append("batch=b9")  # seen by the second look, which missed b8
        return [name for name in names if name != "batch=b1" or len(looks) > 2]

    monkeypatch.setattr(os, "listdir", slow)
    found = RawBatches(raw.spark, raw.place).after(None)
    assert [batch.id for batch in found] == ["b0", "b1", "b2"]


def test_deriving_a_raw_batch_again_changes_nothing(raw):
    """A batch is known by its name: with the note of the last one lost, all come again."""
    raw.write((ORDER, 4, 1))
    raw.write((ACCOUNT, 4, 0))
    raw.derive()
    (raw.typed / "_derived").unlink()
    assert raw.derive().batches == 2
    raw.check()


def test_rows_that_go_missing_are_noticed(monkeypatch, raw):
    """If decoding neither returns a row nor a reason, nothing is published."""
    raw.write((ORDER, 4, 1))
    monkeypatch.setattr(typed_module, "undecodable_rows", lambda rows, plans: iter(()))
    with pytest.raises(WriteError, match="4 of the 5 rows"):
        raw.derive()
    assert not list(raw.typed.glob("Order_Event__e/ingest_hour=*"))


def test_events_of_an_unknown_schema_wait_in_undecodable(spark, raw):
    """A raw row whose schema nobody has does not stop the others, and says so."""
    raw.write((ORDER, 2, 0))
    shutil.rmtree(raw.schemas)
    assert raw.derive() == Derived(1, {}, 2)
    (row, _) = read_undecodable(spark, raw.typed).collect()
    assert row["reason"] == "schema order_event is not known"


def test_a_schema_that_comes_later_is_used_from_then_on(spark, raw):
    """By the same deriver, which may run for months."""
    raw.write((ORDER, 2, 0))
    shutil.rmtree(raw.schemas)
    with TypedTables(spark, raw.path, raw.typed) as tables:
        assert list(tables.derive()) == [Derived(1, {}, 2)]
        raw.write((ORDER, 3, 0))
        assert list(tables.derive()) == [Derived(1, {"Order_Event__e": 3}, 0)]


def test_a_directory_belongs_to_one_raw_table(spark, raw, tmp_path):
    """Typed tables of two raw tables are never mixed, and nobody's files are touched."""
    raw.write((ORDER, 1, 0))
    raw.derive()
    other = Raw(spark, tmp_path / "other")
    other.write((ORDER, 1, 0))
    with pytest.raises(ConfigurationError, match="is derived from"):
        TypedTables(spark, other.path, raw.typed)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConfigurationError, match=r"holds no typed tables .*'notes\.txt'"):
        TypedTables(spark, raw.path, tmp_path / "mine")
    with pytest.raises(ConfigurationError, match="name the raw table to read"):
        TypedTables(spark, tmp_path / "nothing", tmp_path / "new")
    with pytest.raises(ConfigurationError, match="it holds other, raw, which are: name one"):
        TypedTables(spark, tmp_path, tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"no _delta_log"):
        TypedTables(spark, raw.path, tmp_path / "new", format="delta")
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="of format delta: say so with --format"):
        TypedTables(spark, tmp_path / "lake", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigurationError, match="is in the raw table"):
        TypedTables(spark, raw.path, raw.path / "typed")
    assert not (raw.path / "typed").exists()


def test_a_first_start_that_died_does_not_close_the_directory(spark, raw):
    """A draft of the identity is ours."""
    raw.write((ORDER, 1, 0))
    raw.typed.mkdir()
    (raw.typed / "_typed.json.0123.tmp").touch()
    raw.derive()
    raw.check()


def test_paths_are_no_patterns_and_no_urls(spark, tmp_path):
    """A table whose name Spark could take for several others, or for an encoded one."""
    raw = Raw(spark, tmp_path / "a [1]{b,c}*%20#ü" / "raw")
    raw.write((ORDER, 2, 1))
    raw.derive()
    raw.check()
    assert read_typed(spark, raw.typed, "Order_Event__e").count() == 2
    assert read_undecodable(spark, raw.typed).count() == 1


def test_two_derivers_do_not_meet(spark, raw):
    """The directory is leased to one of them."""
    raw.write((ORDER, 1, 0))
    with (
        TypedTables(spark, raw.path, raw.typed),
        pytest.raises(ConfigurationError, match="is being written by another process"),
    ):
        TypedTables(spark, raw.path, raw.typed)


def test_a_killed_job_is_continued(raw):
    """kill -9 while it publishes, then once more: nothing lost, nothing twice, no lock left."""
    for good in (30, 20, 10):
        raw.write((ORDER, good, 1), (ACCOUNT, good, 0))
    job = subprocess.Popen(
        [sys.executable, "-m", "sfpubsub", "derive", f"--from={raw.path}", f"--to={raw.typed}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: any(published(raw)) or job.poll() is not None, "a published batch", 240)
        os.kill(job.pid, signal.SIGKILL)
    finally:
        said, _ = job.communicate(timeout=600)
    assert any(published(raw)), said
    raw.derive()
    raw.check()


def published(raw: Raw) -> Iterator[Path]:
    return raw.typed.glob("Order_Event__e/ingest_hour=*/batch=*")


@pytest.fixture
def command(monkeypatch, raw):
    """`sfpubsub derive` of the raw table, in this process and with the session of the suite."""

    @contextmanager
    def ours(*args, **kwargs):
        yield raw.spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    return lambda *more: run(["derive", f"--from={raw.path}", f"--to={raw.typed}", *more])


def test_the_command_says_what_it_did(command, raw, capsys):
    """One JSON line; and a second run has nothing to do."""
    raw.write((ORDER, 4, 1))
    assert command() == 0
    assert json.loads(capsys.readouterr().out) == {
        "from": str(raw.path),
        "to": str(raw.typed),
        "batches": 1,
        "rows": {"Order_Event__e": 4},
        "undecodable": 1,
    }
    assert command() == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 0
    raw.check()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_behind_a_step(command, monkeypatch, raw, capsys, number, code):
    """With --follow nothing else does; what is derived by then is whole, and counted."""
    raw.write((ORDER, 4, 1))
    raw.write((ORDER, 4, 0))
    monkeypatch.setattr(typed_module, "BATCHES_AT_ONCE", 1)
    real = files_module.finish

    def interrupted(tables):
        os.kill(os.getpid(), number)
        real(tables)

    monkeypatch.setattr(files_module, "finish", interrupted)
    assert command("--follow") == code
    assert json.loads(capsys.readouterr().out)["batches"] == 1
    monkeypatch.undo()
    assert raw.derive().batches == 1
    raw.check()
