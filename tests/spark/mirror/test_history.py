"""The history tables of a mirror have every state that its tables showed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError
from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.tables import open_target
from tests.faults.storm_tables import flaws_of_history
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import World


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it."""
    with EmulatorServer(tmp_path / "org", settings=Settings(keepalive_s=0.3)) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def versions(world: World, record_id: str) -> list[dict[str, Any]]:
    """Return the versions of a record, oldest first."""
    rows = world._read("Account_history").toArrow().to_pylist()
    own = [row for row in rows if row["record_id"] == record_id]
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return sorted(own, key=lambda row: (row["valid_from"] or first, row["valid_to"] or last))


@pytest.mark.parametrize("deletes", ["mark", "remove"])
def test_a_history_has_what_events_and_reads_say(world: World, deletes: str):
    """A record has a version for each event, and for each read that finds what no event has told.

    A read that finds nothing new adds none. If the rows of deleted records are removed, their last
    version says that they are deleted, and a restored record continues it.
    """
    one, two = world.create(2, Phone="1")
    world.settings |= {"history": True, "deletes": deletes, "refresh_formulas": 3600.0}
    with world.mirror() as mirror:
        world.settle(mirror)
        world.update(one, Phone="2")
        world.settle(mirror)
        world.wall += 3600.0
        world.settle(mirror)
        assert len(versions(world, one)) == 2, "nothing has changed"
        world.emulator.records.derive("Account", one, {"PhotoUrl": "/other"})
        world.wall += 3600.0
        world.settle(mirror)
        world.emulator.records.delete("Account", one, world.user)
        world.settle(mirror)
        world.emulator.records.undelete("Account", one, world.user)
        world.settle(mirror)
    found = versions(world, one)
    shown = [(row["Phone"], row["_is_deleted"], row["from_read"]) for row in found]
    assert shown[:5] == [
        ("1", False, True),
        ("2", False, False),
        ("2", False, True),
        ("2", True, False),
        ("2", False, False),
    ]
    # Without the row, a read has to say again what no event contains.
    assert shown[5:] == ([("2", False, True)] if deletes == "remove" else [])
    assert found[0]["valid_from"] is None
    assert found[2]["PhotoUrl"] == "/other"
    for old, new in itertools.pairwise(found):
        assert old["valid_to"] == new["valid_from"]
    (row,) = versions(world, two)
    assert (row["Phone"], row["valid_to"], row["from_read"]) == ("1", None, True)
    assert (
        flaws_of_history(world.spark.newSession(), TABLE_FORMAT)(world.place.table("Account").url)
        == []
    )


def test_a_history_begins_with_its_mirror(spark: SparkSession, tmp_path: Path):
    """A mirror keeps its history tables without being asked, and cannot begin them later."""

    def describe(name: str) -> ObjectDescription:
        raise AssertionError(f"{name} was described")

    for name, history in (("with", True), ("without", False)):
        with open_target(spark, tmp_path / name, TABLE_FORMAT) as target:
            MirrorTables(target, describe, "mark", history=history)
            assert MirrorTables(target, describe, "mark").queue.has_history() == history
    with (
        open_target(spark, tmp_path / "without", TABLE_FORMAT) as target,
        pytest.raises(ConfigurationError, match="no history tables"),
    ):
        MirrorTables(target, describe, "mark", history=True)


def test_a_removed_record_has_one_open_version(world: World):
    """If rows are removed, a read that finds a record in the Recycle Bin adds no version of it."""
    one, two = world.create(2, Phone="1")
    world.settings |= {"history": True, "deletes": "remove", "refresh_formulas": 3600.0}
    with world.mirror() as mirror:
        world.settle(mirror)
        world.emulator.records.delete("Account", one, world.user)
        world.settle(mirror)
        world.wall += 3600.0
        world.settle(mirror)
    found = versions(world, one)
    assert [(row["_is_deleted"], row["valid_to"] is None) for row in found] == [
        (False, False),
        (True, True),
    ]
    assert len(versions(world, two)) == 1
