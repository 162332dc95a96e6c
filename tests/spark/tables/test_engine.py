"""The table engine writes each raw row to exactly one table, despite kills and conflicts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from sfpubsub.cli.main import run
from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark import EventWriter
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.raw.batches import RawBatches
from sfpubsub.spark.raw.ownership import claim_table
from sfpubsub.spark.raw.schema import SCHEMA
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.records.step import UNDECODABLE_NAME
from sfpubsub.spark.tables import engine as engine_module
from sfpubsub.spark.tables import planning, steps
from sfpubsub.spark.tables.decode import Decoded
from sfpubsub.spark.tables.engine import EventTables, StepReport
from sfpubsub.spark.tables.steps import StepTable
from sfpubsub.stores.schema_store import schema_file_name
from tests.avro.schemas import schema_text
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.tables.raw_world import (
    ACCOUNT,
    ORDER,
    ORDER_2,
    RECEIVED,
    TOPIC,
    Raw,
    remove_rows,
    set_back,
    version_of,
)


@pytest.fixture
def raw(spark, tmp_path) -> Raw:
    """Return a Parquet raw table whose typed tables are in Delta or Iceberg."""
    return Raw(spark, tmp_path / "raw")


def test_each_event_is_written_to_the_table_of_its_type_or_as_undecodable(raw):
    """Rows of later batches and newer schemas are added to their tables; a rerun adds none."""
    raw.write((ORDER, 20, 0), (ACCOUNT, 10, 2))
    raw.write((ORDER, 5, 1))
    first = raw.make()
    raw.check()
    assert (first.batches, first.undecodable) == (2, 3)
    assert first.rows == {"Order_Event__e": 25, "AccountChangeEvent": 10}
    assert raw.make() == StepReport()

    raw.write((ORDER_2, 7, 1), (ORDER, 3, 0))
    assert raw.make().rows == {"Order_Event__e": 10}
    raw.check()
    orders = raw.read("Order_Event__e")
    assert orders.where("schema_id = 'order_event' and Promised_At__c is null").count() == 28
    assert orders.select("ingest_date", "batch").distinct().count() == 3
    reasons = raw.undecodable().select("event_name", "reason").collect()
    assert len(reasons) == 4
    assert all("more than the schema describes" in row["reason"] for row in reasons)


def test_change_event_headers_are_stored_in_columns(raw):
    """A change event's header, changed field names and envelope fields are stored in columns."""
    raw.write((ACCOUNT, 3, 0))
    raw.make()
    row = raw.read("AccountChangeEvent").orderBy("ingest_seq").first()
    assert row["changed_fields"] == ["Name", "Type"]
    assert row["entity_name"] == "Account"
    assert row["change_type"] in ("CREATE", "UPDATE")
    assert row["event_id"] == "event-0"
    assert bytes(row["replay_id"]) == b"00000000"
    assert "ChangeEventHeader" not in row.asDict()


class Killed(BaseException):
    """Simulates SIGKILL, since no `except Exception` in the package can catch it."""


@contextmanager
def kill_at(moment: int, *places: tuple[Any, str]) -> Iterator[list[str]]:
    """Patch the functions at *places* so that one call raises `Killed`; yield the calls made.

    Calls are counted from 0. `Killed` is raised at call *moment* // 2: before the call if *moment*
    is even, otherwise after it.
    """
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for holder, name in places:
            patch.setattr(holder, name, killing(getattr(holder, name), moment, calls))
        yield calls


def killing(real: Any, moment: int, calls: list[str]) -> Any:
    def call(*args, **kwargs):
        number = 2 * len(calls)
        calls.append(real.__name__)
        if number == moment:
            raise Killed
        result = real(*args, **kwargs)
        if number + 1 == moment:
            raise Killed
        return result

    return call


def test_a_killed_step_is_resumed_from_its_plan(raw):
    """If a step is killed after it commits its plan, the next run adds only the missing rows.

    A schema that has arrived in the meantime does not change the plan.
    """
    raw.write((ORDER, 4, 0), (ACCOUNT, 3, 1))
    hide(raw, ORDER)
    with raw.tables() as tables:
        kind = type(tables.target.table("T"))
    for moment in (1, 3):  # after the plan; in the next start, after both tables
        with kill_at(moment, (kind, "append")), pytest.raises(Killed):
            raw.make(schema_patience=0)
    raw.store.put(ORDER, schema_text(ORDER))
    with kill_at(0, (StepTable, "add")), pytest.raises(Killed):  # before the next plan
        raw.make()
    assert raw.seqs("AccountChangeEvent") == [4, 5, 6]
    assert raw.seqs(UNDECODABLE_NAME) == [0, 1, 2, 3, 7]
    raw.make()
    raw.check()


def test_a_killed_step_is_repeated_for_its_own_objects(raw):
    """If a mirror is killed within a step and restarted with one more object, the step is completed
    as it was planned; the events of the new object are added from the next step on.
    """
    raw.write((ORDER, 2, 0), (ACCOUNT, 3, 0))
    with kill_at(1, (StepTable, "add")), pytest.raises(Killed):
        raw.make(objects=["Account"], mirror=True)
    raw.write((ORDER, 1, 0), (ACCOUNT, 1, 0))
    raw.make(objects=["Order_Event__e"], mirror=True)
    assert (raw.seqs("AccountChangeEvent"), raw.seqs("Order_Event__e")) == ([2, 3, 4, 6], [5])


def test_rows_may_be_removed_from_the_raw_table_once_they_are_in_the_tables(spark, tmp_path):
    """Tables need no raw row twice: they continue after all rows were removed from the raw table.

    They also know the number of the last row that they contain.
    """
    raw = Raw(spark, tmp_path / "raw", TABLE_FORMAT)
    raw.write((ORDER, 3, 1))
    raw.make()
    remove_rows(spark, raw.place)
    with raw.tables() as tables:
        assert tables.applied_seq() == 3
        assert tables.step() is None
        raw.write((ORDER, 2, 0))
        list(tables.run())
        assert tables.applied_seq() == 5
    raw.check()


def test_events_of_a_channel_are_undecodable_and_do_not_wait(raw):
    """Streaming API messages are JSON and will never have a schema, so no step waits for one."""
    raw.write((ORDER, 3, 0), received_at=RECEIVED)
    message = {"event_id": "", "dedupe_key": b"k" * 16, "replay_id": b"7", "schema_id": ""}
    message |= {"subscription": "/topic/Leads", "topic": "/topic/Leads", "event_name": "Leads"}
    message |= {"received_at": round(RECEIVED * 1e6), "payload": b"{}", "payload_json": "{}"}
    rows = pa.Table.from_pylist([message], schema=SCHEMA)
    with EventWriter(raw.spark, raw.path, format=raw.format, topic=TOPIC) as writer:
        writer.write_rows(rows)
    with raw.tables(schema_patience=3600, clock=lambda: RECEIVED) as tables:
        report = tables.step()
        assert (report.rows, report.undecodable) == ({"Order_Event__e": 3}, 1)
        assert [reason for reason in report.reasons if "is JSON and has no schema" in reason]
        assert tables.step() is None
        assert not tables.is_waiting
    assert raw.seqs(UNDECODABLE_NAME) == [3]


def hide(raw: Raw, *names: str) -> None:
    """Delete schemas from the raw table's schema store."""
    for name in names:
        (raw.schemas / schema_file_name(name)).unlink()


def test_a_row_waits_for_its_schema_for_a_limited_time(raw):
    """A row without a schema holds back its batch and later ones until `schema_patience` expires.

    Then the row is stored as undecodable, and moves to its own table once the schema has arrived.
    """
    now = RECEIVED + 30
    raw.write((ORDER, 3, 0))
    raw.write((ACCOUNT, 2, 1), (ORDER, 1, 0))
    hide(raw, ACCOUNT)
    with raw.tables(schema_patience=60, clock=lambda: now) as tables:
        assert tables.step().rows == {"Order_Event__e": 3}
        assert tables.step() is None
        assert tables.is_waiting
        now += 31
        report = tables.step()
        assert (report.rows, report.undecodable) == ({"Order_Event__e": 1}, 3)
        assert list(report.reasons) == [f"schema {ACCOUNT} is not known"]
        assert tables.step() is None
        assert not tables.is_waiting
    with raw.tables() as tables:
        assert tables.step() is None
        raw.store.put(ACCOUNT, schema_text(ACCOUNT))
        reports = list(tables.run())
    assert reports[-1].rows == {"AccountChangeEvent": 2}
    assert raw.seqs(UNDECODABLE_NAME) == [5]
    raw.check()
    assert raw.make() == StepReport()


def test_tables_refuse_a_raw_table_that_was_restored(spark, tmp_path):
    """After a restore, the tables stay as they are, and the error names a command that helps.

    The raw table goes on: the lost events come again, and no number is used twice.
    """
    raw = Raw(spark, tmp_path / "raw", TABLE_FORMAT)
    raw.write((ORDER, 3, 0))
    first = version_of(raw.spark, raw.place)
    raw.write((ORDER, 2, 1))
    raw.make()
    raw.check()
    set_back(raw.spark, raw.place, first)
    for _ in range(2):  # also in a new process, and after new rows
        with raw.tables() as tables:
            with pytest.raises(ConfigurationError, match=r"restored .* sfpubsub tables rebuild"):
                tables.step()
            assert tables.newest.number == 1
        assert raw.seqs("Order_Event__e") == [0, 1, 2, 3, 4]
        assert raw.seqs(UNDECODABLE_NAME) == [5]
        raw.write((ACCOUNT, 2, 0))
    with raw.tables() as tables:
        tables.rebuild()
        list(tables.run())
    assert raw.seqs("Order_Event__e") == [0, 1, 2]
    assert raw.seqs(UNDECODABLE_NAME) == []
    assert raw.seqs("AccountChangeEvent") == [6, 7, 8, 9]
    assert raw.make() == StepReport()


def test_rebuild_recreates_all_tables(raw):
    """A rebuild decodes rows whose schema was missing before.

    If it is killed, the next run completes it.
    """
    raw.write((ORDER, 3, 1), (ACCOUNT, 2, 0))
    hide(raw, ACCOUNT)
    raw.make()
    assert raw.seqs(UNDECODABLE_NAME) == [3, 4, 5]
    with raw.tables() as tables:
        assert tables.step() is None  # it has noted which schema is missing
        raw.store.put(ACCOUNT, schema_text(ACCOUNT))
        with kill_at(0, (type(tables.target), "finish")), pytest.raises(Killed):
            tables.rebuild()
        list(tables.run())
    raw.check()


def test_a_moved_raw_table_is_recognized(raw, tmp_path):
    """A raw table may be moved, or opened through a link.

    A copy that lacks the last processed batch is rejected.
    """
    raw.write((ORDER, 3, 0))
    raw.make()
    moved = tmp_path / "moved"
    shutil.move(raw.path, moved)
    shutil.move(tmp_path / ".raw.sfpubsub", tmp_path / ".moved.sfpubsub")
    raw.path, kept = moved, raw.path
    assert raw.make() == StepReport()
    os.symlink(moved, kept)
    raw.path = kept
    assert raw.make() == StepReport()
    shutil.copytree(moved, tmp_path / "copy")
    raw.path = tmp_path / "copy"
    (day,) = raw.path.glob("ingest_date=*")
    shutil.rmtree(day)
    with pytest.raises(ConfigurationError, match="does not contain the last batch"):
        raw.make()


def test_rows_of_two_raw_tables_are_never_mixed(raw, tmp_path):
    """Another raw table is rejected, both at a different path and in place of the first one.

    It is rejected even if its topic and batch number are the same.
    """
    raw.write((ORDER, 3, 0))
    raw.make()
    other = Raw(raw.spark, tmp_path / "other" / "raw")
    other.write((ORDER, 1, 0))
    other.typed = raw.typed
    with pytest.raises(ConfigurationError, match="not from"):
        other.make()
    shutil.rmtree(raw.path)
    shutil.rmtree(tmp_path / ".raw.sfpubsub")
    raw.write((ORDER, 1, 0))
    with pytest.raises(ConfigurationError, match="has been replaced since"):
        raw.make()


def test_unsuitable_sources_and_targets_are_rejected(spark, raw, tmp_path):
    """The error says what to specify, and no directory is created or changed."""
    raw.write((ORDER, 1, 0))
    raw.make()
    with pytest.raises(ConfigurationError, match="are built for all objects"):
        raw.make(objects=["Account"])
    with pytest.raises(ConfigurationError, match="specify the path of a raw table"):
        EventTables(spark, tmp_path / "nothing", tmp_path / "new")
    with pytest.raises(ConfigurationError, match="name a raw table that it contains: raw"):
        EventTables(spark, tmp_path, tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"no _delta_log"):
        EventTables(spark, raw.path, tmp_path / "new", raw_format="delta")
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="of format delta: use --from-format"):
        EventTables(spark, tmp_path / "lake", tmp_path / "new", raw_format="parquet")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigurationError, match="is inside the raw table"):
        EventTables(spark, raw.path, raw.path / "typed")
    assert not (raw.path / "typed").exists()


def test_a_target_without_steps_can_be_used_for_another_raw_table(spark, raw, tmp_path):
    """A mistyped source does not make the target unusable."""
    raw.path.mkdir()
    claim_table(raw.path, [Source("topic", TOPIC)])
    raw.make()
    other = Raw(spark, tmp_path / "other" / "raw")
    other.typed = raw.typed
    other.write((ORDER, 1, 0))
    other.make()
    other.check()


def test_only_the_given_objects_are_decoded(raw):
    """Rows of other objects are neither decoded nor counted as undecodable."""
    raw.write((ORDER, 3, 0), (ACCOUNT, 2, 1))
    raw.write((ORDER, 3, 0))
    report = raw.make(objects=["Account"])
    assert (report.batches, report.rows, report.undecodable) == (2, {"AccountChangeEvent": 2}, 1)


def test_a_batch_published_during_a_listing_is_not_skipped(monkeypatch, raw):
    """A listing may contain a new batch but miss an older one, which must be processed first."""
    raw.path.mkdir(exist_ok=True)
    claim_table(raw.path, [Source("topic", TOPIC)])
    day = raw.path / "ingest_date=2026-11-21"
    for batch in "b0", "b1", "b2":
        (day / f"batch={batch}").mkdir(parents=True)
    real, looks = os.listdir, []

    def slow(path):
        looks.append(path)
        names = real(path)
        if len(looks) == 4:
            names.append("batch=b9")  # the second listing contains b9, but misses b8
        return [name for name in names if name != "batch=b1" or len(looks) > 2]

    monkeypatch.setattr(os, "listdir", slow)
    found = RawBatches(raw.spark, raw.place).after(None)
    assert [batch.id for batch in found] == ["b0", "b1", "b2"]


def test_rows_lost_during_decoding_raise_an_error(monkeypatch, raw):
    """If decoding returns fewer rows than the raw table contains, an error is raised.

    Nothing is written, and the next run writes all rows.
    """
    raw.write((ORDER, 4, 1))
    monkeypatch.setattr(engine_module, "decode", lambda *args: Decoded({}, {"Order_Event__e": 4}))
    with pytest.raises(WriteError, match=r"expected 5 rows .* found 4"):
        raw.make()
    assert raw.read("Order_Event__e").count() == 0
    monkeypatch.undo()
    raw.make()
    raw.check()


def test_large_steps_are_split_between_batches(monkeypatch, raw):
    """A step processes a limited number of batches and bytes, fewer if the session has little
    memory, but never part of a batch.
    """
    for number in (4, 3, 2, 1):
        raw.write((ORDER, number, 0))
    monkeypatch.setattr(planning, "BATCHES_AT_ONCE", 3)
    with raw.tables() as tables:
        assert [report.batches for report in tables.run()] == [3, 1]
    raw.typed = raw.typed.with_name("again")
    monkeypatch.setattr(planning, "BYTES_AT_ONCE", 1)
    with raw.tables() as tables:
        assert [report.batches for report in tables.run()] == [1, 1, 1, 1]
    monkeypatch.undo()
    raw.typed = raw.typed.with_name("little memory")
    monkeypatch.setattr(planning, "bytes_to_collect", lambda spark, most: min(1, most))
    with raw.tables() as tables:
        assert [report.batches for report in tables.run()] == [1, 1, 1, 1]
    raw.check()


def test_special_characters_in_paths_are_taken_literally(spark, tmp_path):
    """Spark does not interpret brackets, ``*`` or ``%20`` in the path of a raw Parquet table as a
    pattern or as URL encoding.
    """
    raw = Raw(spark, tmp_path / "a [1]{b,c}*%20#ü" / "raw")
    raw.typed = tmp_path / "typed"
    raw.write((ORDER, 2, 1))
    raw.make()
    raw.check()
    assert (raw.read("Order_Event__e").count(), raw.undecodable().count()) == (2, 1)


def test_a_second_engine_on_the_same_target_is_rejected(raw):
    """The first engine holds a lease on the directory until it is closed."""
    raw.write((ORDER, 1, 0))
    with (
        raw.tables(),
        pytest.raises(ConfigurationError, match="is being written by another process"),
    ):
        raw.tables()


def options(raw: Raw) -> list[str]:
    """Return the options of `sfpubsub tables` for a raw table."""
    return [f"--from={raw.path}", f"--to={raw.typed}", f"--format={raw.to_format}"]


def test_a_killed_job_is_resumed(raw):
    """After SIGKILL during a step, the next job is not locked out, and neither loses nor duplicates
    rows.
    """
    for good in (30, 20, 10):
        raw.write((ORDER, good, 1), (ACCOUNT, good, 0))
    job = subprocess.Popen(
        [sys.executable, "-m", "sfpubsub", "tables", *options(raw)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        plan = "_delta_log/*1.json" if TABLE_FORMAT == "delta" else "metadata/v2.metadata.json"
        until(lambda: [*raw.typed.glob(f"_steps/{plan}")] or job.poll() is not None, "a plan", 600)
        os.kill(job.pid, signal.SIGKILL)
    finally:
        job.communicate(timeout=600)
    raw.make()
    raw.check()


@pytest.fixture
def command(monkeypatch, raw):
    """Return a function that runs `sfpubsub tables` in this process with the test session."""

    @contextmanager
    def ours(*args, **kwargs):
        yield raw.spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    return lambda *more: run(["tables", *more, *options(raw)])


def test_a_step_reports_its_duration(raw):
    """A step's duration can be read while it runs, to detect a hang, and later in its report."""
    raw.write((ORDER, 2, 0))
    seen = []
    with raw.tables() as tables:
        tables.on_step = lambda report: seen.append((report.seconds, tables.step_seconds()))
        assert tables.step_seconds() is None
        report = tables.step()
        assert tables.step_seconds() is None
        assert tables.step() is None
    ((told, under_way),) = seen
    assert 0 < told == report.seconds <= under_way


def test_the_command_reports_what_it_did(command, raw, capsys):
    """The command prints its result as one line of JSON.

    A second run processes no batches, and `rebuild` processes all of them again.
    """
    raw.write((ORDER, 4, 1))
    capsys.readouterr()
    assert command("--http=0") == 0
    printed = capsys.readouterr()
    first, *_, last = printed.err.splitlines()
    assert first.startswith("metrics, health and status page: http://127.0.0.1:")
    assert last == "1 batch, 4 rows, 1 not decoded"
    assert json.loads(printed.out) == {
        "from": str(raw.path),
        "to": str(raw.typed),
        "batches": 1,
        "rows": {"Order_Event__e": 4},
        "undecodable": 1,
    }
    assert command() == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 0
    assert command("rebuild") == 2
    assert "asks for confirmation in a terminal: use --yes" in capsys.readouterr().err
    raw.check()
    assert command("rebuild", "--yes") == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 1
    raw.check()


def test_tables_can_be_rebuilt_if_rows_were_removed_before_they_were_processed(
    command, raw, capsys
):
    """If raw rows of an unfinished step were removed, the error names the command that helps, and
    that command works: the tables then have the rows that are left.
    """
    raw.write((ORDER, 3, 0))
    raw.make()
    raw.write((ACCOUNT, 2, 0))
    with kill_at(1, (StepTable, "add")), pytest.raises(Killed):
        raw.make()
    newest = max(raw.path.glob("ingest_date=*/batch=*"), key=lambda path: path.name)
    shutil.rmtree(newest)
    assert command() == 1
    error = capsys.readouterr().err
    assert "expected 2 rows in raw batches" in error
    assert "but found 0" in error
    assert "build the tables again with sfpubsub tables rebuild" in error
    assert command("rebuild", "--yes") == 0
    assert raw.seqs("Order_Event__e") == [0, 1, 2]


def test_old_plans_of_steps_are_removed(command, monkeypatch, raw, capsys):
    """A target keeps the plans of the newest steps, and the newest one about each subject, so the
    time to start does not grow with its age. A removal that is killed is repeated.

    If the newest plan itself is gone, the error names the command that helps, and it works.
    """
    monkeypatch.setattr(steps, "_KEPT", 4)
    monkeypatch.setattr(steps, "_TRIM_EVERY", 4)
    raw.write((ORDER, 2, 0))

    def plans() -> list[int]:
        return sorted(row[0] for row in raw.read("_steps").select("step").collect())

    with raw.tables() as tables:
        list(tables.run())
        kind = type(tables.target.table("_steps"))
        for number in range(2, 12):
            tables.instruct({}, "once" if number == 2 else "often", {"number": number})
        with kill_at(1, (kind, "delete")), pytest.raises(Killed):
            tables.instruct({}, "often", {"number": 12})
    assert plans() == [2, 8, 9, 10, 11]
    with raw.tables() as tables:
        assert tables.newest.totals == {"number": 11}
        list(tables.run())
        tables.instruct({}, "often", {"number": 12})
        assert plans() == [2, 8, 9, 10, 11, 12]
        raw.write((ORDER, 1, 0))
        list(tables.run())
        raw.check()
        tables.target.table("_steps").delete("step > 12", 14, 0)
    with pytest.raises(WriteError, match=r"step 13 was removed .* sfpubsub tables rebuild"):
        raw.tables()
    assert command() == 1
    assert "step 13 was removed" in capsys.readouterr().err
    assert command("rebuild", "--yes") == 0
    raw.check()


def test_the_command_fails_if_nothing_could_be_decoded(command, raw, capsys):
    """The error gives the missing schema as the reason, and suggests the option `schemaStore`."""
    raw.write((ORDER, 4, 0), (ACCOUNT, 3, 0))
    shutil.rmtree(raw.schemas)
    assert command() == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["undecodable"] == 7
    assert "decoding failed for all events (7 events)" in err
    assert "reason (count: 4): schema order_event" in err
    assert "schemaStore" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_after_the_current_step(
    command, monkeypatch, raw, capsys, number, code
):
    """With --follow, the command runs until a signal arrives, and then completes and counts the
    current step.
    """
    raw.write((ORDER, 4, 1))
    raw.write((ORDER, 4, 0))
    monkeypatch.setattr(planning, "BATCHES_AT_ONCE", 1)
    real = Target.finish

    def interrupted(target, step):
        os.kill(os.getpid(), number)
        real(target, step)

    monkeypatch.setattr(Target, "finish", interrupted)
    assert command("--follow") == code
    assert json.loads(capsys.readouterr().out)["batches"] == 1
    monkeypatch.undo()
    assert raw.make().batches == 1
    raw.check()
