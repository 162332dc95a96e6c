"""A mirror whose stream has lost events: what it rereads, and what it says meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.ingest.selection import LOOK_EVERY, SETTLING
from sfpubsub.spark.ingest.sidecars import KeptGap
from sfpubsub.spark.raw.sidecar_files import read_sidecar
from sfpubsub.spark.raw.sources import Source
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, TOPIC, World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def gaps(world: World) -> list[dict[str, Any]]:
    """Return the stored gaps."""
    return [row.asDict() for row in read_sidecar(world.spark, world.raw.address, "gaps").collect()]


@pytest.mark.parametrize(
    ("kind", "reason"), [("topic", "rejected"), ("managed", "expired")], ids=["topic", "managed"]
)
def test_run_once_after_80_hours_rereads_what_was_lost(world: World, kind: str, reason: str):
    """If nothing ran for longer than the service keeps events, there is one gap, and a run that
    ends when it is settled ends only after its tables equal the org again.
    """
    if kind == "managed":
        world.emulator.managed.create("Changes", TOPIC)
        world.source = Source("managed", "Changes")
    old = world.create(3)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        state = world.stream.state()
        assert mirror.is_settled(state)
        assert not mirror.is_settled(replace(state, has_open_gap=True))
        assert not mirror.is_settled(replace(state, gaps=(KeptGap("new.json", None),)))
    world.update(old[0], Phone="1")  # its event expires before it is received
    world.emulator.clock.jump(80 * 3600.0)
    for reads in (1, 0):
        with world.mirror() as mirror:
            until(lambda: world.advance(mirror), "the mirror", PATIENCE)  # as a run --once ends
            assert mirror.report.reads == reads
        world.check()
        assert [gap["reason"] for gap in gaps(world)] == [reason]


def test_a_deselected_object_waits_and_is_reread(world: World):
    """An object that is removed from the channel in mid-run waits if only events may tell, and says
    so; it is reread, and again once its events are delivered again. Another process knows as much.
    """
    old = world.create(3)
    world.looks = True
    world.settings["by"] = "events"

    def waits() -> dict[str, str]:
        (status,) = mirror.status()
        return status.waits

    with world.mirror() as mirror:
        world.settle(mirror)
        members = world.emulator.event_channels.members("ChangeEvents")
        (member,) = [each for each in members if each.entity == "AccountChangeEvent"]
        world.emulator.event_channels.remove(member.member_id)
        world.update(old[0], Phone="1")  # no event
        world.pass_time(LOOK_EVERY)
        world.until(mirror, lambda: "deselected" in waits())
        until(lambda: len(gaps(world)) == 1, "the gap", PATIENCE)
        world.until(mirror, lambda: world.rows()[old[0]]["Phone"] == "1")
        (gap,) = gaps(world)
        assert (gap["reason"], gap["entity"]) == ("deselected", "Account")
    world.update(old[1], Phone="2")  # no event
    world.emulator.event_channels.add("Again", "ChangeEvents", "AccountChangeEvent")
    with world.mirror() as mirror:
        world.until(mirror, lambda: "deselected" in waits())
        world.pass_time(SETTLING)
        world.until(
            mirror, lambda: not waits() and not any(each.queued for each in mirror.status())
        )
        world.settle(mirror)
        world.check()
        assert len(gaps(world)) == 1
