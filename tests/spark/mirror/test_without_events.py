"""Tests of mirrors of objects without events: only SystemModstamp tells what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.records.model import Records
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.mirror.mirror import Mirror
from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
from tests.cli.test_cli import environment
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World

# Nothing listens there.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def run(world: World, *objects: str, endpoint: str | None = None, **settings: Any) -> MirrorReport:
    """Run a mirror until its tables match the org, as a new process would."""
    given = environment(world.emulator)
    options = {name.removeprefix("SFPUBSUB_").lower(): text for name, text in given.items()}
    with Mirror(
        objects or ["Account"],
        to=world.to,
        format=TABLE_FORMAT,
        settings=MirrorSettings(margin=0.0, batch_seconds=0.1, **settings),
        options=options if endpoint is None else {**options, "endpoint": endpoint},
        spark=world.spark,
        on_message=world.said.append,
    ) as mirror:
        report = mirror.run(once=True)
        assert mirror.objects == list(objects or ["Account"])
        assert {each.state for each in mirror.status()} == {"current"}
        assert not any(each.repaired for each in mirror.status())
    return report


def change(world: World, old: list[str]) -> None:
    """Create, change and delete an account."""
    world.create(1, Phone="new")
    world.update(old[0], Phone="1")
    world.emulator.records.delete("Account", old[1], world.user)


@pytest.mark.parametrize("by", ["modstamp", "auto"])
def test_a_mirror_without_events_equals_the_org(world: World, by: str):
    """The first run reads all records, the next one those whose stamps have moved, deleted ones
    too, and counts none as repaired. With ``modstamp``, nothing is subscribed to, and with ``auto``
    an object whose events are not delivered does not wait.
    """
    endpoint = NOWHERE if by == "modstamp" else None
    for member in world.emulator.event_channels.members("ChangeEvents"):
        if by == "auto" and member.entity == "AccountChangeEvent":
            world.emulator.event_channels.remove(member.member_id)
    old = world.create(5)
    assert run(world, by=by, endpoint=endpoint).reads == 1
    change(world, old)
    report = run(world, by=by, endpoint=endpoint)
    world.check()
    assert len(world.rows()) == 6
    assert (report.reads, report.events) == (0, 0)
    assert "Account: no event tells about its changes, so its stamps do" in world.said


def test_an_object_whose_events_are_read_later_is_reread(world: World):
    """Nothing tells what happened between the last read by stamps and the first event."""
    old = world.create(5)
    run(world, by="modstamp", endpoint=NOWHERE)
    change(world, old)
    world.looks = True
    with world.mirror() as mirror:
        world.settle(mirror)
        assert mirror.report.reads == 1
    world.check()


def test_objects_without_a_second_witness_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """An object without stamps, or whose records are only listed for a given parent, is refused at
    the start in words, and later starts do not mirror it. One that has events may lack stamps.
    """
    plan = Records.plan

    def refused(records: Records, text: str, *others: Any, **more: Any) -> Any:
        if "FROM Order__c" in text and "WHERE" not in text:
            problem = "Implementation restriction: Order__c requires a filter by a single Id"
            raise RecordProblem("MALFORMED_QUERY", problem)
        return plan(records, text, *others, **more)

    monkeypatch.setattr(Records, "plan", refused)
    with pytest.raises(ConfigurationError, match=r"Order__c .* requires a filter by a single Id"):
        run(world, "Order__c", by="modstamp", endpoint=NOWHERE)
    monkeypatch.undo()
    world.emulator.records.visibility.hide(world.user.username, "Account", "SystemModstamp")
    with pytest.raises(ConfigurationError, match=r"Account .* no field SystemModstamp"):
        run(world, "Account", by="modstamp", endpoint=NOWHERE)
    assert run(world, "Account", by="auto").reads == 1
