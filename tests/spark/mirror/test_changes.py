"""Tests of the second witness of a mirror: reads of the records whose SystemModstamp has moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.mirror import reading
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World

EVERY = 3600.0


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it, which reads changed records."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        world = World(spark, tmp_path, emulator, TABLE_FORMAT)
        world.settings["drift"] = EVERY
        yield world


def pass_interval(world: World) -> None:
    """Advance the clocks of the mirror and of the org."""
    world.wall += EVERY
    world.pass_time(EVERY)
    world.emulator.clock.jump(EVERY)


def change_silently(world: World, old: list[str]) -> None:
    """Create, change and delete accounts without an event, and change one with an event, too."""
    faults = world.emulator.faults
    faults.add(Fault("lose_event", target="/data/AccountChangeEvent", times=4))
    world.create(1, Phone="silent")
    world.update(old[0], Phone="silent")
    world.update(old[1], Phone="silent")
    world.emulator.records.delete("Account", old[2], world.user)
    faults.assert_consumed()
    world.update(old[1], BillingCity="Bonn")


def test_changes_without_an_event_are_found(world: World):
    """A record that was created, changed or deleted without an event is read within an interval,
    also if a later event has overtaken the change, and counted by what was wrong. Rows that the
    next read returns again are skipped. A new process goes on where the last one stopped.
    """
    old = world.create(6)
    with world.mirror() as mirror:
        world.settle(mirror)
        records = mirror.report.records
        change_silently(world, old)
        world.settle(mirror)
        assert world.rows()[old[0]]["Phone"] is None
        pass_interval(world)
        world.settle(mirror)
        world.check()
        assert mirror.report.records == records + 7
        (status,) = mirror.status()
        assert status.repaired == {"missing": 1, "existence": 1, "changed": 2}
        pass_interval(world)
        world.settle(mirror)
        assert mirror.report.records == records + 7
    change_silently(world, old[3:])
    with world.mirror() as mirror:
        pass_interval(world)
        world.settle(mirror)
        world.check()
        assert mirror.report.reads == 0


def test_many_changed_records_are_read(world: World, monkeypatch: pytest.MonkeyPatch):
    """Changed records, with the same stamp too, are read page by page; in bulk from a number of
    them on; and by id if the query is too long for a URL. Deleted ones are found in each way.
    """
    monkeypatch.setattr(reading, "_PAGE", 3)
    old = world.create(10)
    with world.mirror() as mirror:
        world.settle(mirror)
        for n, way in enumerate(("pages", "long", "bulk")):
            if way == "long":
                monkeypatch.setattr(reading, "LONGEST_QUERY", 60)
            if way == "bulk":
                mirror._reads._bulk_from = 5
            world.emulator.faults.add(
                Fault("lose_event", target="/data/AccountChangeEvent", times=7)
            )
            with world.emulator.records.transaction(world.user) as changing:
                for number in range(3, 9):
                    changing.update("Account", old[number], {"Phone": f"{way} {number}"})
                changing.delete("Account", old[n])
            world.emulator.faults.assert_consumed()
            pass_interval(world)
            world.settle(mirror)
            world.check()
        (status,) = mirror.status()
        assert status.repaired == {"changed": 18, "existence": 3}
        at = {row["record_id"]: row["_derived_at"] for row in world.rows().values()}
        assert at[old[9]] < at[old[3]]  # the first has not changed since
        assert mirror.report.reads == 1
