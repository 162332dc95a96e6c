"""Tests that no row is deleted because its record is hidden from the user, or left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import PermissionDeniedError
from sfpubsub.spark.mirror.absences import (
    MOST_ROWS,
    MOST_SHARE,
    WINDOW,
    Loss,
    Safeguards,
    are_too_many,
)
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World

CLERK = "clerk@example.com"


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org whose records belong to another user than the one who runs the mirror."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        emulator.accounts.put_user(CLERK, view_all=True)
        world = World(spark, tmp_path, emulator, TABLE_FORMAT)
        world.username = CLERK
        yield world


@pytest.mark.parametrize("alone", ["rights", "twice", "limit", None])
def test_each_safeguard_alone_keeps_the_rows_of_hidden_records(world: World, alone: str | None):
    """View All is withdrawn, and then all records are reread: none of them counts as deleted, even
    if only one of the three safeguards is there. Without any of them, all do.
    """
    names = ("rights", "twice", "limit")
    world.safeguards = Safeguards(**{name: name == alone for name in names})
    old = world.create(200)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.emulator.accounts.put_user(CLERK, view_all=False)
        Mailbox(None, world.place).put(Signal("reread", "Account"))
        if alone == "rights":
            world.until(mirror, lambda: "rights" in mirror.status()[0].waits)
        elif alone == "twice":
            world.until(mirror, lambda: mirror.status()[0].queued == len(old))  # missing once
            world.until(mirror, lambda: "rights" in mirror.status()[0].waits)
        elif alone == "limit":
            world.until(mirror, lambda: mirror.status()[0].parked_rows == len(old))
        else:
            world.settle(mirror)
    rows = world.rows()
    assert rows.keys() == set(old)
    assert {row["_is_deleted"] for row in rows.values()} == {alone is None}


def test_deletions_are_counted_per_day():
    """More than ten rows, or more than a thousandth of the live rows, whichever is larger, are too
    many within 24 hours. A repeated step counts once, and counting live rows is left out if
    possible.
    """

    def live(count: int) -> bool:
        return are_too_many(losses, Loss(9, 1000.0 + WINDOW, 4), lambda: count)

    def fail() -> int:
        raise AssertionError("the live rows were counted")

    assert (MOST_ROWS, MOST_SHARE) == (10, 0.001)
    losses = [Loss(3, 1000.0, 100), Loss(5, 1001.0, 5), Loss(9, 1000.0 + WINDOW, 4)]
    assert not live(0)
    losses.append(Loss(7, 2000.0, 2))
    assert live(10_999)
    assert not live(11_000)
    assert not are_too_many([], Loss(1, 0.0, 10), fail)


def test_more_rows_of_an_object_without_events_may_be_deleted_per_day():
    """Events do not tell which of its records were deleted: a hundred rows, or a hundredth of the
    live rows, may be absent.
    """

    def are_parked(rows: int, live: int) -> bool:
        return are_too_many([], Loss(1, 0.0, rows), lambda: live, has_events=False)

    assert [are_parked(rows, 0) for rows in (100, 101)] == [False, True]
    assert [are_parked(200, live) for live in (19_999, 20_000)] == [True, False]


def test_a_mirror_survives_that_its_rights_are_withdrawn(world: World):
    """A mirror does not start without View All. If that is withdrawn later, each object waits, also
    one that a signal added, a gap is written, and no row is deleted. A restart with a new grant
    finds the interruption: all records are reread once the service is sure to deliver events again.
    """
    old = world.create(30)
    contact = world.emulator.records.create("Contact", {"LastName": "Doe"}, world.user)
    accounts, records = world.emulator.accounts, world.emulator.records
    accounts.put_user(CLERK, view_all=False)
    with pytest.raises(PermissionDeniedError, match="Account"), world.mirror() as mirror:
        mirror.run(world.stream.state)
    accounts.put_user(CLERK, view_all=True)
    with world.mirror() as mirror:
        world.settle(mirror)
        Mailbox(None, world.place).put(Signal("add", "Contact"))
        world.until(mirror, lambda: mirror.report.reads == 2)
        world.settle(mirror)
        world.check()

        accounts.put_user(CLERK, view_all=False)
        for name in ("Account", "Contact"):
            Mailbox(None, world.place).put(Signal("reread", name))
        world.until(mirror, lambda: all("rights" in each.waits for each in mirror.status()))
        assert [each.state for each in mirror.status()] == ["waiting"] * 2
        with pytest.raises(PermissionDeniedError, match="View All"):
            mirror.run(world.stream.state, once=True)
        gaps = [json.loads(each.read_text()) for each in (world.to / "_raw" / "_gaps").glob("*")]
        told = sorted((gap["reason"], gap["entity"]) for gap in gaps)
        assert told == [("rights", "Account"), ("rights", "Contact")]
        counted = [gap.entity for gap in world.stream.streams[0].subscription.health().gaps]
        assert sorted(map(str, counted)) == ["Account", "Contact"]
    rows = [*world.rows().values(), *world.rows("Contact").values()]
    assert contact in {row["record_id"] for row in rows}
    assert not any(row["_is_deleted"] for row in rows)
    world.update(old[0], Name="withheld")
    records.delete("Account", old[1], world.user)
    accounts.put_user(CLERK, view_all=True)
    with world.mirror() as mirror:
        world.before = world.events()  # what was withheld is never delivered
        world.until(mirror, lambda: mirror.report.reads == 2)
        world.settle(mirror)
        world.check()


class SlowRights(World):
    """A world whose org shares the mirror's clock, so that streams see new rights minutes later."""

    shares_clock = True

    def pass_time(self, seconds: float) -> None:
        """Advance the clocks of the mirror and of the org."""
        super().pass_time(seconds)
        self.emulator.clock.jump(seconds)


def test_events_withheld_after_a_new_grant_are_covered_by_the_read(
    spark: SparkSession, tmp_path: Path
):
    """Streams may see a new grant minutes after reads do. What changes meanwhile has no event, so
    the read of all records that follows a new grant begins only after that time.
    """
    settings = Settings(keepalive_s=0.3, rights_propagation_s=590.0)
    clock = ManualClock(time.time())
    with EmulatorServer(tmp_path / "org", settings=settings, clock=clock) as emulator:
        emulator.accounts.put_user(CLERK, view_all=True)
        clock.jump(600.0)
        world = SlowRights(spark, tmp_path, emulator, TABLE_FORMAT)
        world.username = CLERK
        old = world.create(3)
        with world.mirror() as mirror:
            world.settle(mirror)
            emulator.accounts.put_user(CLERK, view_all=False)
            world.until(mirror, lambda: "rights" in mirror.status()[0].waits)
            clock.jump(600.0)
            emulator.accounts.put_user(CLERK, view_all=True)
            world.until(mirror, lambda: "again" in mirror.status()[0].waits["rights"])
            world.update(old[0], Phone="1")  # withheld, as streams do not see the grant yet
            until(lambda: world.advance(mirror), "the mirror", PATIENCE)
            world.check()
            assert mirror.report.reads == 2


@pytest.mark.slow  # three whole reads and two sweeps
def test_many_purged_records_wait_for_a_confirmation(world: World):
    """Records that were purged without an event are deleted after two reads. More than ten in a day
    are parked, and nothing else stops; a user confirms their number, and no more than that.
    """
    old = world.create(40)
    mailbox = Mailbox(None, world.place)

    def sweep(mirror: MirrorJob, purged: list[str]) -> None:
        for record_id in purged:
            world.emulator.records.purge(record_id)
        world.wall += 3600.0
        world.settle(mirror)

    with world.mirror(sweep=3600.0) as mirror:
        world.settle(mirror)
        sweep(mirror, old[:4])
        world.check()
        sweep(mirror, old[4:12])
        (status,) = mirror.status()
        assert (status.parked_rows, status.queued, status.state) == (8, 0, "current")
        assert {each for each, row in world.rows().items() if row["_is_deleted"]} == set(old[:4])
    with world.mirror(sweep=3600.0) as mirror:
        world.update(old[20], Name="goes on")
        sweep(mirror, old[12:15])
        rows = world.rows()
        assert rows[old[20]]["Name"] == "goes on"
        assert {each for each, row in rows.items() if row["_reread_reason"] == "parked"} == set(
            old[4:15]
        )
        assert mailbox.parked() == {"Account": 11}
        mailbox.put(Signal("confirm", "Account", rows=8))
        until_done(world, mirror, mailbox)
        assert mirror.status()[0].parked_rows == 11
        mailbox.put(Signal("confirm", "Account", rows=11))
        until_done(world, mirror, mailbox)
        world.settle(mirror)
        world.check()
        assert mirror.status()[0].parked_rows == 0
        assert mailbox.parked() == {}


def until_done(world: World, mirror: MirrorJob, mailbox: Mailbox) -> None:
    """Let the mirror work until it has processed all signals."""
    world.until(mirror, lambda: not mailbox.waiting())
