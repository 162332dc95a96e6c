"""Tests of the mirror job with the emulator: each table must equal its object, whatever happens to
the org or the job.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from sfpubsub.emulator.org.records.fields import SObject
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.mirror import log
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.mirror.notes import Merge
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.mirror.verifying import Verification
from sfpubsub.spark.records import bounded
from sfpubsub.spark.records.rows import Merging
from sfpubsub.spark.records.table import RecordTable
from tests.conftest import until
from tests.faults.storm_org import seed_of
from tests.rest.support import reader_of
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World
from tests.spark.object_store import ObjectStore


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it; transactions of more than three changes are reported
    as overflows.
    """
    settings = Settings(keepalive_s=0.3, overflow_changes=3)
    with EmulatorServer(tmp_path / "org", settings=settings) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_table_equals_its_object(world: World):
    """The table contains the records from before the stream and reflects every later change; what
    events omit is read from the org, including the formula of a record made by an event. A new
    process resumes where the last one stopped, without unnecessary reads.
    """
    account = world.emulator.records.describe("Account")
    formula = {"name": "Half__c", "type": "double", "formula": "NumberOfEmployees / 2"}
    world.emulator.records.put_object(account.with_field(formula))
    old = world.create(30)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        assert (mirror.report.records, mirror.report.reads) == (30, 1)
        (status,) = mirror.status()
        assert status == ObjectStatus("Account", "current", records=30, read_at=world.wall)
        world.update(old[0], Phone="1")
        world.update(old[1], BillingCity=None)
        world.emulator.records.delete("Account", old[2], world.user)
        made = world.create(3, Phone="2", NumberOfEmployees=8)
        world.settle(mirror)
        world.check()
        assert [world.rows()[each]["Half__c"] for each in made] == [4, 4, 4]
        assert mirror.report.reads == 1
    world.emulator.records.undelete("Account", old[2], world.user)
    world.update(old[0], Name="new")
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        assert mirror.report.reads == 0  # events were sufficient
        with world.emulator.records.transaction(world.user) as changing:
            for record_id in old:
                changing.update("Account", record_id, {"Phone": "overflow"})
        world.wall += 5
        until(world.has_received_all, "the events", PATIENCE)
        world.until(mirror, lambda: mirror.status()[0].queued > 0)
        assert mirror.status()[0].oldest_entry == world.wall
        world.settle(mirror)
        world.check()
        assert mirror.report.reads == 1


def test_fields_that_change_or_go_are_followed_without_an_event(
    world: World, caplog: pytest.LogCaptureFixture
):
    """A field whose scale changes is read again within an hour, although no event arrives. The
    column of a field that is removed keeps its values, also when a record is read again or
    restored; new rows are null there, a comparison with the org leaves it out, and the object is
    read whole once the field is back. So it is if the user is permitted to see a field. A line in
    the log names the fields.
    """
    records = world.emulator.records
    account = records.describe("Account")
    rate = {"name": "Rate__c", "type": "currency", "scale": 2}
    old = {"name": "Old__c", "type": "string"}
    secret = {"name": "Secret__c", "type": "string"}
    account = account.with_field(secret)
    records.put_object(account.with_field(rate).with_field(old))
    (first,) = world.create(1, Rate__c=1.2345, Old__c="x", Secret__c="s")
    records.visibility.hide(world.user.username, "Account", "Secret__c")
    with world.mirror() as mirror:
        world.settle(mirror)
        row = world.rows()[first]
        assert (row["Old__c"], "Secret__c" in row) == ("x", False)
        records.put_object(account.with_field({**rate, "scale": 4}))
        world.pass_time(3600.0)
        world.settle(mirror)
        row = world.rows()[first]
        assert (row["Rate__c__decimal_18_4"], row["Rate__c"]) == (Decimal("1.2345"), None)
        assert row["Old__c"] == "x"
        assert mirror.report.reads == 2
        (text,) = [each for each in caplog.messages if "have changed" in each]
        assert "Old__c removed" in text
        assert "Rate__c (decimal_18_4)" in text
        (second,) = world.create(1)
        records.delete("Account", first, world.user)
        records.undelete("Account", first, world.user)
        world.settle(mirror)
        rows = world.rows()
        assert (rows[first]["Old__c"], rows[second]["Old__c"]) == ("x", None)
        reader = reader_of(world.emulator)
        compared = Verification(world.spark, reader, world.to, "Account", format=TABLE_FORMAT)
        assert (list(compared.differences()), compared.equal) == ([], 2)
        records.visibility.show(world.user.username, "Account", "Secret__c")
        world.pass_time(3600.0)
        world.settle(mirror)
        assert world.rows()[first]["Secret__c"] == "s"
        assert mirror.report.reads == 3
        records.put_object(account.with_field({**rate, "scale": 4}).with_field(old))
        records.update("Account", first, {"Old__c": "y"}, world.user)
        world.pass_time(3600.0)
        world.settle(mirror)
        assert world.rows()[first]["Old__c"] == "y"
        assert mirror.report.reads == 4
        world.check()


def test_numbers_of_any_length_are_mirrored(world: World, caplog: pytest.LogCaptureFixture):
    """A number with more decimal places than its column is rounded half up, in a read and in an
    event, and one with too many digits is null in a row that is not complete. Neither ends the
    mirror, repeats a read or differs for `verify`. The first record of each kind is logged.
    """
    records = world.emulator.records
    rate = {"name": "Rate__c", "type": "currency", "scale": 2}
    records.put_object(records.describe("Account").with_field(rate))
    long, far, half, rest = (
        world.create(1, Rate__c=each)[0] for each in (0.0033333333333333335, 1e17, 2.675, 1.0)
    )

    def found() -> dict[str, tuple[Any, bool, bool]]:
        return {
            record_id: (row["Rate__c"], row["_complete"], row["_reread"])
            for record_id, row in world.rows().items()
        }

    with world.mirror() as mirror:
        world.settle(mirror)
        assert found() == {
            long: (Decimal("0.00"), True, False),
            far: (None, False, False),
            half: (Decimal("2.68"), True, False),
            rest: (Decimal("1.00"), True, False),
        }
        read = mirror.report.records
        world.update(long, Rate__c=1e17)
        world.update(far, Rate__c=0.005)
        world.update(rest, Rate__c=0.0033333333333333335)
        world.settle(mirror)
        assert found() == {
            long: (None, False, False),
            far: (Decimal("0.01"), True, False),
            half: (Decimal("2.68"), True, False),
            rest: (Decimal("0.00"), True, False),
        }
        assert (mirror.report.records, mirror.report.reads) == (read + 2, 1)
        said = [each for each in caplog.messages if each.startswith("Rate__c of record")]
        assert [each.split()[3] for each in sorted(said, key=lambda each: "fit" in each)] == [
            min(long, half),
            far,
        ]
    reader = reader_of(world.emulator)
    compared = Verification(world.spark, reader, world.to, "Account", format=TABLE_FORMAT)
    assert (list(compared.differences()), compared.equal) == ([], 4)


def test_more_entries_than_the_queue_holds_become_one_read(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """If events ask for more reads by id than the queue may hold, the object is read whole instead,
    and the table equals it again. The calls that this took count after a restart, too.
    """
    monkeypatch.setattr(bounded, "MOST_ENTRIES", 4)  # instead of creating 100,000 records
    account = world.emulator.records.describe("Account")
    formula = {"name": "Half__c", "type": "double", "formula": "NumberOfEmployees / 2"}
    world.emulator.records.put_object(account.with_field(formula))
    with world.mirror() as mirror:
        world.settle(mirror)
        made = [world.create(1, NumberOfEmployees=8)[0] for _ in range(10)]
        until(world.has_received_all, "the events", PATIENCE)
        world.settle(mirror)
        world.check()
        assert {world.rows()[each]["Half__c"] for each in made} == {4}
        assert mirror.report.reads == 2
        used = mirror.report.api_calls
    Mailbox(None, world.place).put(Signal("reread", "Account"))
    with world.mirror(api_calls_per_day=used) as mirror:
        world.until(mirror, lambda: mirror.report.reads > 0 or "API calls" in world.said[-1])
        assert f"{used} API calls were used in 24 hours" in world.said[-1]


def test_archived_records_are_not_suspected_by_a_sweep(world: World):
    """A sweep, a comparison of all ids, finds archived records, which only queryAll returns, so it
    asks for no read of them, and they stay in the table, whether it is made by queries or in bulk.
    So do those that are reread by id, although the org returns archived records only to a query,
    and a comparison with the org finds them.
    """
    task = {
        "name": "Task",
        "key_prefix": "00T",
        "archivable": True,
        "fields": [{"name": "Subject", "type": "string"}],
    }
    records = world.emulator.records
    records.put_object(SObject(task))
    made = [records.create("Task", {"Subject": str(n)}, world.user) for n in range(3)]
    records.delete("Task", made[2], world.user)
    world.objects = ["Task"]
    with world.mirror(sweep=3600.0) as mirror:
        world.settle(mirror)
        merged = mirror.report.records
        records.archive("Task", made[0])
        world.wall += 3600.0
        world.settle(mirror)
        assert "Task: reading all ids" in world.said
        assert mirror.report.records == merged
        Mailbox(None, world.place).put(Signal("reread", "Task", "Subject = '0'"))
        world.until(mirror, lambda: mirror.report.records == merged + 1)
        world.settle(mirror)
        assert [world.rows("Task")[each]["_is_deleted"] for each in made] == [False, False, True]
    world.wall += 3600.0
    world.said.clear()
    with world.mirror(sweep=3600.0, bulk_from=0) as mirror:
        world.settle(mirror)
        assert "Task: reading all ids" in world.said
        assert (mirror.report.records, mirror.report.reads) == (0, 0)
    verification = Verification(
        world.spark, reader_of(world.emulator), world.to, "Task", format=TABLE_FORMAT, margin=0.0
    )
    assert list(verification.differences()) == []
    assert verification.equal == 2


@pytest.mark.slow  # over a minute
def test_mirror_follows_schema_changes_and_signals(spark: SparkSession, tmp_path: Path):
    """A new field becomes a column, and formulas, whose changes no event reports, are refreshed on
    schedule. Signals make the mirror pause, resume, reread some records, and add an object.
    """
    with EmulatorServer(tmp_path / "org", seed=seed_of(tmp_path)) as emulator:
        records = emulator.records
        world = World(spark, tmp_path, emulator, TABLE_FORMAT)
        world.objects = ["Order__c"]
        mailbox = Mailbox(spark, world.place)
        first, second = (
            records.create("Order__c", {"Name": n, "Quantity__c": 2, "Price__c": 5}, world.user)
            for n in "ab"
        )
        with world.mirror(refresh_formulas=3600.0) as mirror:
            world.settle(mirror)
            assert world.rows("Order__c")[first]["Total__c"] == 10

            colour = {"name": "Colour__c", "type": "string"}
            records.put_object(records.describe("Order__c").with_field(colour))
            records.update("Order__c", first, {"Colour__c": "red"}, world.user)
            world.settle(mirror)
            found = world.rows("Order__c")
            assert (found[first]["Colour__c"], found[second]["Colour__c"]) == ("red", None)

            formula = {"name": "Total__c", "type": "currency", "formula": "Quantity__c * 100"}
            records.put_object(records.describe("Order__c").with_field(formula))
            world.settle(mirror)
            assert world.rows("Order__c")[first]["Total__c"] == 10
            world.wall += 3600.0
            world.settle(mirror)
            assert {row["Total__c"] for row in world.rows("Order__c").values()} == {200}

            mailbox.put(Signal("pause"))
            world.until(mirror, lambda: "paused" in world.said[-1])
            applied = mirror.report.events
            records.update("Order__c", first, {"Colour__c": "blue"}, world.user)
            until(world.has_received_all, "the event", PATIENCE)
            assert not mirror.advance(world.stream.state())
            assert mirror.report.events == applied
            mailbox.put(Signal("resume"))
            world.settle(mirror)
            assert world.rows("Order__c")[first]["Colour__c"] == "blue"

            before = mirror.report.records
            mailbox.put(Signal("reread", "Order__c", "Name = 'b'"))
            mailbox.put(Signal("add", "Account"))
            (account,) = world.create(1)
            until(lambda: world.advance(mirror) and not mailbox.waiting(), "the answer", PATIENCE)
            world.settle(mirror)
            assert mirror.report.records == before + 2
            assert world.rows()[account]["Name"] == "account 0"
        with world.mirror() as mirror:
            assert set(mirror.tables.objects) == {"Order__c", "Account"}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["catalog", "object store"])
def test_mirror_works_in_a_catalog_and_in_an_object_store(
    where: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
):
    """Whether its target is the name of a schema or an S3 URL (scripts/test_s3.sh), a mirror does a
    Bulk read, applies events, reads records by id, and resumes after a restart.
    """
    name = f"mirror_{uuid.uuid4().hex}"
    to = f"shop.{name}" if TABLE_FORMAT == "iceberg" else f"spark_catalog.{name}"
    if where == "object store":
        store: ObjectStore = request.getfixturevalue("object_store")
        # An object store has no rename, so Iceberg's tables are in a catalog of a database.
        to = f"depot.{name}" if TABLE_FORMAT == "iceberg" else store.url(name)
    if "/" not in to:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {to}")
    settings = Settings(keepalive_s=0.3, overflow_changes=3)
    with EmulatorServer(tmp_path / "org", settings=settings) as emulator:
        world = World(spark, tmp_path, emulator, TABLE_FORMAT, to=to)
        old = world.create(20)
        with world.mirror(bulk_from=0, piece_rows=7, deletes="remove") as mirror:
            world.settle(mirror)
            world.check()
            world.update(old[0], Phone="1")
            emulator.records.delete("Account", old[1], world.user)
            world.settle(mirror)
            world.check()
            assert old[1] not in world.rows()
        with emulator.records.transaction(world.user) as changing:
            for record_id in old[2:8]:
                changing.update("Account", record_id, {"Phone": "overflow"})
        world.create(2)
        with world.mirror(deletes="remove") as mirror:
            world.settle(mirror)
            world.check()


@pytest.mark.slow  # a minute
def test_new_rows_are_the_same_with_and_without_spark(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A read's new rows are the same whether they are built in memory or by Spark.

    Spark builds them from the read log if they are not all in memory, for instance after a restart.
    """
    old = world.create(9, NumberOfEmployees=7, AnnualRevenue=12.5)
    world.emulator.records.delete("Account", old[3], world.user)
    frames: list[DataFrame] = []
    alone = RecordTable.alone

    def counted(self: RecordTable, rows: DataFrame, merging: Merging) -> DataFrame:
        frames.append(rows)
        return alone(self, rows, merging)

    compared: list[int] = []
    returned = MirrorTables._returned

    def compare(
        self: MirrorTables, note: Merge, of: RecordTable, merging: Merging, *more: Any
    ) -> tuple[DataFrame | None, DataFrame | list[bytes] | None]:
        merged, new = returned(self, note, of, merging, *more)
        if isinstance(new, list):
            files = pa.concat_tables(pq.read_table(io.BytesIO(file)) for file in new)
            files = files.sort_by("record_id")
            rows = of.found(self.log(note.entity).rows(note.first, note.last))
            rows = rows.where(col("record_id").isin(files["record_id"].to_pylist()))
            spark = alone(of, rows, merging).toArrow().sort_by("record_id")
            assert files.select(spark.column_names).to_pylist() == spark.to_pylist()
            compared.append(len(files))
        return merged, new

    monkeypatch.setattr(RecordTable, "alone", counted)
    monkeypatch.setattr(MirrorTables, "_returned", compare)
    found = []
    for kept in (10**6, 0):
        monkeypatch.setattr(log, "_KEPT_BYTES", kept)
        here = tmp_path / str(kept)
        here.mkdir()
        one = World(world.spark, here, world.emulator, TABLE_FORMAT)
        with one.mirror(bulk_from=0, piece_rows=5) as mirror:
            one.until(mirror, lambda mirror=mirror: mirror._fetching.is_busy)
            written = one.stream.state().written
            one.update(old[8], Phone="1")  # an event adds this row before the read does
            until(
                lambda one=one, written=written: one.stream.state().written > written, "the event"
            )
            one.settle(mirror)
            one.check()
        found.append(one.rows())
        assert bool(frames) == (kept == 0)
    assert sum(compared) == len(old) - 1
    changing = {"LastModifiedDate", "SystemModstamp"}
    names = [name for name in found[0][old[0]] if not name.startswith("_") and name not in changing]
    names += ["_is_deleted", "_complete", "_reread", "_reread_reason"]
    assert found[0].keys() == found[1].keys() == set(old)
    for record_id in old:
        rows = [{name: each[record_id][name] for name in names} for each in found]
        assert rows[0] == rows[1]


@pytest.mark.slow  # over a minute
def test_bulk_read_resumes_after_a_restart(world: World):
    """A new process continues the Bulk job of the previous one and applies the events that arrived
    meanwhile, without reading anything twice. The sweep, a comparison of all ids, finds a record
    that was purged without an event.
    """
    old = world.create(50)
    # More pieces than are read ahead of two merges, so the job goes on, however slow they are.
    settings = {"bulk_from": 0, "piece_rows": 2, "deletes": "remove", "sweep": 3600.0}
    with world.mirror(**settings) as mirror:
        world.until(mirror, lambda: mirror.report.records > 0)
        world.update(old[0], Phone="1")
        world.emulator.records.delete("Account", old[49], world.user)
    (job,) = world.emulator.jobs.all(queries=True)
    with world.mirror(**settings) as mirror:
        world.settle(mirror)
        world.check()
        assert old[49] not in world.rows()
        assert mirror.report.reads == 1
        assert not world.emulator.jobs.all(queries=True)  # it was the only job, and is deleted
        world.emulator.records.purge(old[5])
        world.wall += 3600.0
        world.settle(mirror)
        world.check()
    assert job.is_query
