"""The mirror job on the emulator: a table equals the object, whatever happens to both."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World
from tests.spark.object_store import ObjectStore


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts, where a transaction with more than three changes overflows."""
    settings = Settings(keepalive_s=0.3, overflow_changes=3)
    with EmulatorServer(tmp_path / "org", settings=settings) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_a_table_equals_its_object(world: World):
    """Records from before the stream and every change after it are in the table: what events say,
    and what they leave out, which is read from the org. A new process goes on where the last one
    was, and reads nothing that it need not.
    """
    old = world.create(30)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        assert (mirror.report.records, mirror.report.reads) == (30, 1)
        world.update(old[0], Phone="1")
        world.update(old[1], BillingCity=None)
        world.emulator.records.delete("Account", old[2], world.user)
        world.create(3, Phone="2")
    world.emulator.records.undelete("Account", old[2], world.user)
    world.update(old[0], Name="new")
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        assert mirror.report.reads == 0  # events alone brought it
        with world.emulator.records.transaction(world.user) as changing:
            for record_id in old:
                changing.update("Account", record_id, {"Phone": "overflow"})
        world.settle(mirror)
        world.check()
        assert mirror.report.reads == 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["catalog", "object store"])
def test_a_mirror_is_in_a_catalog_or_in_an_object_store(
    where: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
):
    """By the name of a schema, and by a URL of the S3 API (scripts/test_s3.sh): a first read in
    bulk, events, a read by ids, a restart."""
    name = f"mirror_{uuid.uuid4().hex}"
    to = f"shop.{name}" if TABLE_FORMAT == "iceberg" else name
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


@pytest.mark.slow  # over a minute
def test_a_read_in_bulk_goes_on_behind_a_death(world: World):
    """What a process has read is not read again: the next one goes on with the job of the first,
    and lays the events over it that came meanwhile. A record that was purged without an event is
    found by the sweep, and a deleted one has no row if it is to be removed.
    """
    old = world.create(50)
    settings = {"bulk_from": 0, "piece_rows": 7, "deletes": "remove", "sweep": 3600.0}
    with world.mirror(**settings) as mirror:
        world.until(mirror, lambda: mirror.report.records > 0)
        assert mirror.report.records == 7  # and no more than some pieces are read ahead
        world.update(old[0], Phone="1")
        world.emulator.records.delete("Account", old[49], world.user)
    (job,) = world.emulator.jobs.all(queries=True)
    with world.mirror(**settings) as mirror:
        world.settle(mirror)
        world.check()
        assert old[49] not in world.rows()
        assert mirror.report.reads == 1
        assert not world.emulator.jobs.all(queries=True)  # no other one, and it is deleted
        world.emulator.records.purge(old[5])
        world.wall += 3600.0
        world.settle(mirror)
        world.check()
    assert job.is_query
