"""Tests of the storm: after random changes, faults and restarts of an org and its mirror, both must
be equal. A blow is a fault or a kill.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.mirror.job import Mirror
from sfpubsub.spark.runtime.session import frame_of_rows
from sfpubsub.spark.tables import open_target
from tests.conftest import until
from tests.emulator.records.support import events
from tests.faults.storm import BLOWS, FAULTS, difference, fault_of, shuffled_blows
from tests.faults.storm_org import OBJECTS, OVERFLOW, event_of, seed_of, truth_of
from tests.faults.storm_tables import readers_of
from tests.faults.storm_writer import WEIGHTS, Writer
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import MARGIN, PATIENCE, TOPIC, World


@pytest.fixture
def seed() -> int:
    """Return a random seed, and print it."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # pytest shows it if the test fails
    return seed


def test_writer_makes_every_kind_of_change(tmp_path: Path, seed: int):
    """The storm's writer makes every kind of change over REST, and change events report them.

    The rows expected of each object have the same ids as a query of it.
    """
    emulator = EmulatorServer(
        tmp_path / "org", seed=seed_of(tmp_path), settings=Settings(overflow_changes=50)
    )
    with emulator:
        writer = Writer(emulator, seed)
        writer.fill(90)
        while writer.changes < 400:
            writer.step()
        for kind in [*WEIGHTS, *["text"] * 60]:
            writer.step_of(kind)
        assert set(writer.made) == set(WEIGHTS)
        assert writer.changes >= 400
        truth = truth_of(emulator)
        user = emulator.accounts.holder("")
        told = set()
        for name in OBJECTS:
            found = emulator.records.query(f"SELECT Id, LastModifiedDate FROM {name}", user).rows
            assert truth[name].keys() == {row["Id"] for row in found}
            topic = f"/data/{event_of(name)}"
            told |= {event["ChangeEventHeader"]["changeType"] for event in events(emulator, topic)}
            told |= {
                "DIFF"
                for event in events(emulator, topic)
                if event["ChangeEventHeader"]["diffFields"]
            }
    assert {"CREATE", "UPDATE", "DELETE", "UNDELETE", "GAP_OVERFLOW", "DIFF"} <= told


def test_the_same_seed_makes_the_same_changes(tmp_path: Path, seed: int):
    """Writers with the same seed leave two orgs with the same records, apart from dates, so that a
    storm can be repeated.
    """
    ends = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        with EmulatorServer(directory / "org", seed=seed_of(directory)) as emulator:
            writer = Writer(emulator, seed)
            writer.fill(30)
            writer.raise_goal(100)
            writer.start()
            writer.finish(300)
            truth = truth_of(emulator)
        ends.append(
            {
                (name, record_id): {k: v for k, v in row.items() if not k.endswith("Date")}
                for name, rows in truth.items()
                for record_id, row in rows.items()
            }
        )
    assert ends[0] == ends[1]


DAY = 86_400.0

# One of the three objects, so that the storm takes less than 45 s: with compound fields and, from
# the start of the storm, a formula.
MIRRORED = ("Account",)
FORMULA = {"name": "Half__c", "type": "double", "formula": "NumberOfEmployees / 2"}

COLUMNS = pa.schema(
    [
        ("record_id", pa.string()),
        ("Name", pa.string()),
        ("Price__c", pa.decimal128(18, 2)),
        ("Due__c", pa.date32()),
        ("At__c", pa.timestamp("us", tz="UTC")),
        ("Address", pa.struct([("City", pa.string()), ("Latitude", pa.decimal128(18, 15))])),
        ("_is_deleted", pa.bool_()),
    ]
)


def row(record_id: str, **values: object) -> dict[str, object]:
    """Return a row with these values, of a record that is not deleted."""
    return {"record_id": record_id, "_is_deleted": False, **values}


def test_all_readers_see_merged_rows(spark: SparkSession, tmp_path: Path):
    """Each reader that checks tables after a storm returns every record once, with its latest
    values, and no deleted records.
    """
    full = {
        "Name": "a", "Price__c": Decimal("1.10"), "Due__c": date(2026, 11, 22),
        "At__c": datetime(2026, 11, 22, 1, 2, 3, 4000, UTC), "Address": {"City": "Rome"},
    }  # fmt: skip
    steps = [
        [row("1", Name="old"), row("2", **full), row("3", Address={"City": None})],
        [row("1", Name="new"), {**row("2"), "_is_deleted": True}, row("5", **full)],
    ]
    with open_target(spark, tmp_path, TABLE_FORMAT) as target:
        table = target.table("Account")
        table.make(COLUMNS, {}, merged=True)
        for number, rows in enumerate(steps, start=1):
            given = frame_of_rows(target.spark, pa.Table.from_pylist(rows, COLUMNS))
            table.merge(given, ["record_id"], number)
    empty = dict.fromkeys(set(COLUMNS.names) - {"record_id", "_is_deleted"})
    wanted = {
        "1": {**empty, "Name": "new"}, "3": empty, "5": {**empty, **full},
    }  # fmt: skip
    for read in readers_of(spark, TABLE_FORMAT).values():
        assert read(tmp_path / "Account") == wanted


def test_difference_lists_missing_extra_and_changed_records():
    """The difference of two tables names missing, surplus and different records, and is empty if
    the tables are equal.
    """
    wanted = {"1": {"Name": "a"}, "2": {"Name": "b", "X": 1}}
    assert difference(wanted, wanted) == ""
    text = difference(wanted, {"2": {"Name": "b", "X": 2}, "3": {}})
    assert text.startswith("1 missing ['1'], 1 too many ['3'], 1 different [('2', [('X', 1, 2)])]")
    assert difference(wanted, {**wanted, "1": {}}).startswith("0 missing [], 0 too many [], 1 diff")


def test_a_storm_contains_every_kind_of_blow(seed: int):
    """A storm with as many blows (faults and kills) as there are kinds has one of each kind."""
    assert set(shuffled_blows(len(BLOWS), random.Random(seed))) == set(BLOWS)


class StormWorld(World):
    """An org in a storm and its mirror, which share one clock that advances only in jumps.

    The org's responses lag behind its events by almost as much as the mirror's margin allows.
    """

    settings_of_org = Settings(
        rest_lag_s=0.9 * MARGIN, overflow_changes=OVERFLOW, keepalive_s=1.0, retention_s=1e9
    )

    def __init__(
        self, spark: SparkSession, path: Path, emulator: EmulatorServer, seed: int
    ) -> None:
        super().__init__(spark, path, emulator, TABLE_FORMAT)
        self.objects = MIRRORED
        self.rng = random.Random(seed)
        self.writer = Writer(emulator, seed, objects=MIRRORED)
        self.caused_faults: list[str] = []
        records = emulator.records
        records.put_object(records.describe("Account").with_field(FORMULA))

    def advance(self, mirror: Mirror) -> bool:
        """Let the mirror do one step; advance the org's clock by as much as the mirror's advanced.

        Return whether the mirror is settled.
        """
        before = self.now
        settled = super().advance(mirror)
        if self.now > before:
            self._follow_time(self.now - before)
        return settled

    def pass_time(self, seconds: float) -> None:
        """Advance the clocks of the org and of the mirror."""
        self.now += seconds
        self._follow_time(seconds)

    def _follow_time(self, seconds: float) -> None:
        self.emulator.clock.jump(seconds)
        self.wall = self.emulator.clock.now()

    def settle(self, mirror: Mirror) -> None:
        """Run the mirror until it has caught up; fail after `10 * PATIENCE` seconds."""
        until(lambda: self.advance(mirror) and self.has_received_all(), "the mirror", 10 * PATIENCE)

    def has_received_all(self) -> bool:
        """Return whether the newest event of the org is in the raw table."""
        found, _ = self.emulator.bus.read(self.emulator.bus.topic(TOPIC), 0, 10**6)
        raw = self.spark.read.format(self.format).load(self.raw.url)
        return not found or raw.where(f"event_id = '{found[-1].event_id}'").count() == 1

    def cause_fault(self, kind: str) -> None:
        """Cause a fault of the given kind in the org or its streams."""
        self.emulator.faults.add(fault_of(kind, self.rng))
        self.caused_faults.append(kind)

    def change_during_faults(self, changes: int, turns: int) -> None:
        """Make *changes* changes and cause *turns* faults, with one step of the mirror after each
        fault.

        The mirror is then stopped, whatever it is doing.
        """
        with self.mirror() as mirror:
            before = self.writer.changes
            for turn in range(1, turns + 1):
                while self.writer.changes < before + changes * turn // turns:
                    self.writer.step()
                self.cause_fault(self.rng.choice(list(FAULTS)))
                self.advance(mirror)

    def compare(self) -> dict[str, str]:
        """Return the differences between the tables and the org, by object and reader."""
        readers = readers_of(self.spark, self.format)
        return {
            f"{name} by {reader}": text
            for name, wanted in truth_of(self.emulator).items()
            if name in self.objects
            for reader, read in readers.items()
            if (text := difference(wanted, read(self.to / name)))
        }


def test_tables_equal_their_org_after_a_storm(spark: SparkSession, tmp_path: Path, seed: int):
    """During 500 changes, the mirror is stopped and restarted, streams break, sessions expire,
    positions are lost, the org moves, and events are late or only report gaps. Then every reader
    sees in each table what the org's own store contains.
    """
    clock, settings = ManualClock(time.time()), StormWorld.settings_of_org
    org = tmp_path / "org"
    with EmulatorServer(org, seed=seed_of(tmp_path), settings=settings, clock=clock) as emulator:
        world = StormWorld(spark, tmp_path, emulator, seed)
        world.writer.fill(60)
        world.change_during_faults(400, turns=3)
        for kind in FAULTS:
            if kind not in world.caused_faults:
                world.cause_fault(kind)
        while world.writer.changes < 500:
            world.writer.step()
        # A refresh and a sweep of each object are due in the last run, once: it takes less than a
        # day of the clock.
        world.pass_time(DAY)
        with world.mirror(refresh_formulas=DAY, sweep=DAY) as mirror:
            world.settle(mirror)
        assert world.compare() == {}
