"""A mirror survives removed and restored raw rows, unknown schemas, and another org's session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sfpubsub.cli.main import run
from sfpubsub.emulator.faults import Fault
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.errors import ConfigurationError, OtherOrgError
from sfpubsub.spark.formats.target import LAST, TargetTable
from sfpubsub.spark.mirror.notes import Merge
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.mirror.verifying import Verification
from sfpubsub.spark.records.reads import AsOf, Read
from sfpubsub.spark.tables import open_target
from tests.conftest import until
from tests.rest.support import reader_of
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import PATIENCE, World
from tests.spark.tables.raw_world import remove_rows, set_back, version_of


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """An org with accounts and a mirror of it."""
    settings = Settings(keepalive_s=0.3)
    with EmulatorServer(tmp_path / "org", org_id="00D000000000001", settings=settings) as emulator:
        yield World(spark, tmp_path, emulator, TABLE_FORMAT)


def test_a_mirror_survives(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """All raw rows can be removed once they have been applied: a new process continues.

    It rejects the session of another org before it reads anything, and its error names both orgs.
    So does a comparison. An event whose schema the service does not know leads to a new read of the
    objects that it may concern, and their rows are marked until then. If the raw table was
    restored, the mirror ends with an error that names a command, after which it reads its objects
    again.
    """
    old = world.create(3)
    with world.mirror() as mirror:
        world.settle(mirror)
        world.update(old[0], Phone="1")
        world.settle(mirror)
    world.before = (world.before or 0) + world._read("_raw").count()
    remove_rows(world.spark, world.raw)

    org = world.emulator
    with EmulatorServer(tmp_path / "other", org_id="00D000000000009") as other:
        world.emulator = other
        ids = "00D000000000001EAA, not of 00D000000000009EAA"
        with pytest.raises(OtherOrgError, match=ids), world.mirror():
            pass
        compared = Verification(
            world.spark, reader_of(other), world.place.address, "Account", TABLE_FORMAT
        )
        with pytest.raises(OtherOrgError, match=ids):
            next(compared.differences())
    world.emulator = org

    with world.mirror() as mirror:
        colour = {"name": "Colour__c", "type": "string"}
        org.records.put_object(org.records.describe("Account").with_field(colour))
        org.faults.add(Fault("refuse", rpc="GetSchema", error_code="schema.not.found", times=1))
        before = version_of(world.spark, world.raw)
        world.update(old[1], Phone="2")
        until(lambda: world.advance(mirror) is not None and marked(world), "the mark", PATIENCE)
        assert marked(world) == set(old)
        world.settle(mirror)
        world.check()
        assert mirror.report.reads >= 1  # the new field may be another reason for a read

    set_back(world.spark, world.raw, before)
    with (
        pytest.raises(ConfigurationError, match="sfpubsub tables rebuild"),
        world.mirror() as mirror,
    ):
        world.settle(mirror)

    @contextmanager
    def ours(*arguments: Any, **options: Any) -> Iterator[SparkSession]:
        yield world.spark

    monkeypatch.setattr("sfpubsub.spark.runtime.session.spark_session", ours)
    place = [f"--from={world.raw.address}", f"--to={world.to}", f"--format={world.format}"]
    assert run(["tables", "rebuild", "--yes", *place]) == 0
    assert "read again by the next sfpubsub mirror run" in capsys.readouterr().err
    assert marked(world) == set(old)
    with world.mirror() as mirror:
        world.update(old[2], Phone="3")
        # Events cannot be counted here: the restore has removed the rows and the position.
        until(
            lambda: world.advance(mirror) and world.rows()[old[2]]["Phone"] == "3",
            "the update",
            PATIENCE,
        )
        world.check()


def marked(world: World) -> set[str]:
    """Return the ids of the records that are marked for rereading."""
    return {record_id for record_id, row in world.rows().items() if row["_reread"]}


@pytest.mark.skipif(TABLE_FORMAT != "delta", reason="Iceberg's properties keep the number")
def test_a_table_whose_log_no_longer_tells_its_steps_is_not_empty(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Delta forgets commits after 30 days. A read of the whole object then adds no row twice."""
    world.create(3)
    with world.mirror() as mirror:
        world.settle(mirror)
    monkeypatch.setattr(TargetTable, "newest", lambda self: (0, LAST))
    read = Read(AsOf(10, 10), None, None)
    note = Merge("Account", "object", 1, 1, read, None, is_last=False, applied_seq=0, at=0.0)
    with open_target(world.spark, world.to, TABLE_FORMAT) as target:
        tables = MirrorTables(target, reader_of(world.emulator).describe, "mark")
        tables.add("Account", None)
        found = tables.objects["Account"]
        _, new = tables._returned(note, found, found.merging(None, read=read), [], None)
        assert isinstance(new, DataFrame)
        assert new.isEmpty()
