"""Tests that one object of a mirror, or an org that does not answer, does not stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.cli.mirror import _progress_text
from sfpubsub.emulator.faults.plan import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.mirror.mirror import Mirror
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.mirror.status import ObjectStatus
from tests.cli.test_cli import point_at
from tests.conftest import until
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[EmulatorServer]:
    """An org with the objects Account and Order__c."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        yield emulator


def status_of(mirror: MirrorJob, name: str) -> ObjectStatus:
    """Return the status of one object."""
    return next(each for each in mirror.status() if each.entity == name)


def reach(world: World, mirror: MirrorJob, condition: Callable[[], bool]) -> None:
    """Let the mirror work until *condition* returns True, even while it has nothing to do."""

    def is_reached() -> bool:
        world.advance(mirror)
        return condition()

    until(is_reached, "the condition", PATIENCE)


@pytest.mark.slow  # five starts of a mirror
def test_object_that_is_gone_is_parked_until_it_is_back(
    spark: SparkSession, tmp_path: Path, emulator: EmulatorServer
):
    """An object that the org no longer has keeps its rows while the others go on, also in a new
    process, and is read again as a whole when it is back. A signal removes it from the mirror for
    good. A name that was never mirrored and does not exist is refused.
    """
    records = emulator.records
    world = World(spark, tmp_path, emulator, TABLE_FORMAT)
    world.objects = ["Account", "Order__c"]
    mailbox = Mailbox(spark, world.place)
    (account,) = world.create(1)
    order = records.create("Order__c", {"Name": "a"}, world.user)
    with world.mirror() as mirror:
        world.settle(mirror)
        records.remove_object("Order__c")
        mailbox.put(Signal("reread", "Order__c"))
        reach(world, mirror, lambda: "gone" in status_of(mirror, "Order__c").waits)
        world.update(account, Phone="1")
        world.settle(mirror)
        world.check()
    world.objects = ["Account"]  # the mirror knows the other one
    with world.mirror() as mirror:
        world.settle(mirror)
        assert "does not exist" in status_of(mirror, "Order__c").waits["gone"]
        row = world.rows("Order__c")[order]
        assert (row["Name"], row["_is_deleted"], row["_reread"]) == ("a", False, True)
        records.restore_object("Order__c")
        reach(world, mirror, lambda: not status_of(mirror, "Order__c").waits)
        world.settle(mirror)
        assert not world.rows("Order__c")[order]["_reread"]
        mailbox.put(Signal("abandon-read", "Order__c"))  # no read is running
        mailbox.put(Signal("remove", "Order__c"))
        reach(world, mirror, lambda: len(mirror.status()) == 1)
        records.update("Order__c", order, {"Name": "b"}, world.user)
        world.settle(mirror)
    world.objects = ["Account", "Acount"]
    with world.mirror() as mirror:
        assert {each.entity for each in mirror.status()} == {"Account", "Acount"}
        with pytest.raises(ConfigurationError, match="Acount does not exist"):
            world.settle(mirror)
    assert world.rows("Order__c")[order]["Name"] == "a"
    world.objects = ["Order__c"]
    with world.mirror() as mirror:
        world.settle(mirror)
    assert world.rows("Order__c")[order]["Name"] == "b"
    assert any("mirrored again because it was named" in text for text in world.said)


def test_job_that_failed_is_replaced_by_a_new_read(
    spark: SparkSession, tmp_path: Path, emulator: EmulatorServer
):
    """A Bulk job that ended as Failed does not end the mirror, nor the next start, which finds it
    in the read log: its object is read again after a back-off, and the others go on.
    """
    world = World(spark, tmp_path, emulator, TABLE_FORMAT)
    world.create(3)
    emulator.faults.add(Fault("end_query_job", target="Account", state="Failed"))
    with world.mirror(bulk_from=0) as mirror:
        reach(world, mirror, lambda: "read" in status_of(mirror, "Account").waits)
        assert "ended as Failed" in status_of(mirror, "Account").waits["read"]
    emulator.faults.assert_consumed()
    world.objects = ["Account", "Order__c"]
    with world.mirror(bulk_from=0) as mirror:
        waits: set[str] = set()

        def is_current() -> bool:
            waits.update(status_of(mirror, "Account").waits)
            return {each.state for each in mirror.status()} == {"current"}

        reach(world, mirror, is_current)
        assert "read" in waits
        world.check()


def test_a_signal_ends_a_read_that_is_running(
    spark: SparkSession, tmp_path: Path, emulator: EmulatorServer
):
    """A read that is given up ends, and the signal is answered once: it does not end the new read,
    too. The next process starts although its last step is about an object that is not mirrored any
    more.
    """
    world = World(spark, tmp_path, emulator, TABLE_FORMAT)
    world.objects = ["Account", "Order__c"]
    world.create(12)
    mailbox = Mailbox(spark, world.place)

    def is_answered() -> bool:
        world.advance(mirror)
        world.pass_time(3.0)
        return not mailbox.waiting()

    with world.mirror(piece_rows=1) as mirror:
        reach(world, mirror, lambda: mirror.report.records > 0)
        mailbox.put(Signal("abandon-read", "Account"))
        until(is_answered, "the answer", PATIENCE)
        world.settle(mirror)
        world.check()
        mailbox.put(Signal("reread", "Order__c"))
        reach(world, mirror, lambda: status_of(mirror, "Order__c").queued > 0)
        mirror.engine.remove("Order__c")  # as a start does if the org no longer has it
    world.objects = ["Account"]
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()


def test_events_are_ingested_without_a_single_call_to_the_org(
    spark: SparkSession,
    tmp_path: Path,
    emulator: EmulatorServer,
    monkeypatch: pytest.MonkeyPatch,
):
    """With the limit of API calls used up, a mirror that is restarted still ingests and applies
    events; it reads nothing, and says why. A signal that needs the org waits, and stops nothing.
    """
    point_at(emulator, monkeypatch)
    user = emulator.accounts.holder("")
    account = emulator.records.create("Account", {"Name": "a"}, user)
    lake = tmp_path / "lake"

    def opened() -> Mirror:
        # From the start, so the schema of the events is known before the org is silent.
        settings = MirrorSettings(margin=0.0, start="earliest", batch_seconds=0.1)
        return Mirror(["Account"], to=lake, format=TABLE_FORMAT, settings=settings, spark=spark)

    with opened() as mirror:
        mirror.run(once=True)
    emulator.api_calls.set_remaining(0, emulator.clock.now())
    emulator.records.update("Account", account, {"Phone": "1"}, user)
    mailbox = Mailbox(spark, Destination.of_tables(lake, TABLE_FORMAT))
    mailbox.put(Signal("add", "Order__c"))
    with opened() as mirror:
        thread = threading.Thread(target=mirror.run)
        thread.start()
        until(lambda: _progress_text(mirror).startswith("1 event "), "the event", PATIENCE)
        assert _progress_text(mirror).endswith("waiting: Account")
        until(
            lambda: "LIMIT_EXCEEDED" in mirror.status()[0].waits.get("read", ""),
            "the reason",
            PATIENCE,
        )
        mirror.stop()
        thread.join()
    assert mirror.report.records == 0
    assert [each.kind for each in mailbox.waiting()] == ["add"]
