"""The mirror job on the emulator: a table equals the object, whatever happens to both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts."""
    settings = Settings(keepalive_s=0.3)
    with EmulatorServer(tmp_path / "org", settings=settings) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_a_table_equals_its_object(world: World):
    """Records from before the stream and every change after it are in the table; a new process
    goes on where the last one was.
    """
    old = world.create(30)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.check()
        assert mirror.report.records == 30
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
