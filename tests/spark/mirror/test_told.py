"""Tests of what a mirror tells about itself: how far its tables are, and what holds them up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sfpubsub
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.monitoring.monitor import Monitor
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from tests.conftest import until, wait_for_exit
from tests.faults.storm_org import CREDENTIALS
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_a_paused_mirror_tells_how_far_its_tables_are(world: World):
    """Events that a paused mirror does not apply are told while the stream has no lag; the next
    process knows of them too, and nobody is told of them once they are applied.
    """
    (record_id,) = world.create(1)
    mailbox = Mailbox(world.spark, world.place)
    with world.mirror() as mirror:
        world.settle(mirror)
        assert mirror.status()[0].behind is None
        mailbox.put(Signal("pause", None))
        works_until(world, mirror, lambda: mirror.status()[0].state == "waiting")
        world.update(record_id, Phone="1")
        works_until(world, mirror, world.has_received_all)
        (status,) = mirror.status()
        assert status.state == "waiting"
        assert "--resume" in status.waits["paused"]
        assert status.behind is not None
        monitor = Monitor("mirror")
        monitor.follow_objects(mirror.status)
        (problem,) = monitor.problems()  # the clock of this world is ahead of that of its events
        assert problem.situation == "behind"
        assert "paused" in problem.reason
    with world.mirror() as mirror:
        # Found by reading, because an earlier process wrote it.
        assert [name for name, _, _ in mirror.engine.unapplied()] == ["AccountChangeEvent"]
        mailbox.put(Signal("resume", None))
        world.settle(mirror)
        assert mirror.status()[0].behind is None
        assert mirror.engine.unapplied() == []
        world.check()


def test_a_mirror_says_that_its_jvm_has_ended(world: World, tmp_path: Path):
    """If Spark's Java process is killed, the command ends with an error that says so."""
    world.create(1)
    environment = {
        "SFPUBSUB_ENDPOINT": world.emulator.grpc_target,
        "SFPUBSUB_INSECURE": "1",
        "SFPUBSUB_AUTH": "client-credentials",
        "SFPUBSUB_LOGIN_URL": world.emulator.http_url,
        **{f"SFPUBSUB_{name.upper()}": value for name, value in CREDENTIALS.items()},
    }
    command = ["mirror", "run", "Account", "--to", str(world.to), "--format", TABLE_FORMAT]
    process = subprocess.Popen(
        [sys.executable, "-m", "sfpubsub", *command, "--margin", "0"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "records read and merged" in line:
                break
        os.kill(jvm_of(process.pid), signal.SIGKILL)
        _, errors = wait_for_exit(process)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Spark's Java process has ended" in errors
    # PySpark may print a traceback of its own, if the process ended while it sent something.
    assert str(Path(sfpubsub.__file__).parent) not in errors


def works_until(world: World, mirror: MirrorJob, condition: Callable[[], bool]) -> None:
    """Let the mirror work until *condition* returns True, even if it seems to have nothing to do.

    Unlike `World.until`, which also ends when a mirror is settled, as a paused one may seem.
    """

    def is_so() -> bool:
        world.advance(mirror)
        return condition()

    until(is_so, "the condition", PATIENCE)


def jvm_of(pid: int) -> int:
    """Return the id of the Java process that a process has started."""

    def found() -> int:
        lines = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        others = Path(f"/proc/{pid}/task").glob("*/children")
        children = {*lines, *(child for each in others for child in each.read_text().split())}
        names = {child: Path(f"/proc/{child}/comm").read_text().strip() for child in children}
        return next((int(child) for child, name in names.items() if name == "java"), 0)

    return until(found, "the JVM", PATIENCE)
