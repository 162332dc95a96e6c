"""The storm: whatever happens to an org and to its mirror, at the end they are equal."""

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
from tests.faults.storm import BLOWS, FAULTS, blows_of, difference, fault_of
from tests.faults.storm_org import OBJECTS, OVERFLOW, event_of, seed_of, truth_of
from tests.faults.storm_tables import readers_of
from tests.faults.storm_writer import WEIGHTS, Writer
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import MARGIN, PATIENCE, TOPIC, World


@pytest.fixture
def seed() -> int:
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # shown with a failure
    return seed


def test_the_writer_does_everything_and_the_truth_is_what_rest_tells(tmp_path: Path, seed: int):
    """Every kind of change is made, over REST, and each object's rows are those of a query."""
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
    """A storm can be had again: two orgs with one seed end alike, but for times."""
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
    return {"record_id": record_id, "_is_deleted": False, **values}


def test_all_readers_see_the_rows_of_a_table_that_was_merged(spark: SparkSession, tmp_path: Path):
    """What is compared at the end of a storm is what each reader sees: replaced rows once, deleted
    records not at all, and values as the org has them."""
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


def test_what_is_wrong_is_told():
    """A record that is missing, one too many, one with another value; nothing if all is well."""
    wanted = {"1": {"Name": "a"}, "2": {"Name": "b", "X": 1}}
    assert difference(wanted, wanted) == ""
    text = difference(wanted, {"2": {"Name": "b", "X": 2}, "3": {}})
    assert text.startswith("1 missing ['1'], 1 too many ['3'], 1 different [('2', [('X', 1, 2)])]")
    assert difference(wanted, {**wanted, "1": {}}).startswith("0 missing [], 0 too many [], 1 diff")


def test_a_storm_has_every_kind_of_blow(seed: int):
    """With as many blows as there are kinds, each is there."""
    assert set(blows_of(len(BLOWS), random.Random(seed))) == set(BLOWS)


class StormWorld(World):
    """An org in a storm. One clock is the org's and the mirror's: it stands still but for jumps.

    Answers of the org lag behind its events by as much as the margin allows.
    """

    settings_of_org = Settings(
        rest_lag_s=0.9 * MARGIN, overflow_changes=OVERFLOW, keepalive_s=1.0, retention_s=1e9
    )

    def __init__(
        self, spark: SparkSession, path: Path, emulator: EmulatorServer, seed: int
    ) -> None:
        super().__init__(spark, path, emulator, TABLE_FORMAT)
        self.objects = OBJECTS
        self.rng = random.Random(seed)
        self.writer = Writer(emulator, seed)
        self.blows: list[str] = []

    def advance(self, mirror: Mirror) -> bool:
        """See `World`. The org's time passes as well."""
        before = self.now
        settled = super().advance(mirror)
        if self.now > before:
            self.emulator.clock.jump(self.now - before)
            self.wall = self.emulator.clock.now()
        return settled

    def settle(self, mirror: Mirror) -> None:
        """See `World`. A storm leaves more to do."""
        until(lambda: self.advance(mirror) and self.is_through(), "the mirror", 10 * PATIENCE)

    def is_through(self) -> bool:
        """Whether the newest event of the org is in the raw table."""
        found, _ = self.emulator.bus.read(self.emulator.bus.topic(TOPIC), 0, 10**6)
        raw = self.spark.read.format(self.format).load(self.raw.url)
        return not found or raw.where(f"event_id = '{found[-1].event_id}'").count() == 1

    def blow(self, kind: str) -> None:
        """Let something happen to the org or its streams."""
        self.emulator.faults.add(fault_of(kind, self.rng))
        self.blows.append(kind)

    def weather(self, changes: int, turns: int) -> None:
        """Make changes while the mirror does a few things, and leave it wherever it is then."""
        with self.mirror() as mirror:
            before = self.writer.changes
            for turn in range(1, turns + 1):
                while self.writer.changes < before + changes * turn // turns:
                    self.writer.step()
                self.blow(self.rng.choice(list(FAULTS)))
                self.advance(mirror)

    def compare(self) -> dict[str, str]:
        """Return what is wrong, by object and reader."""
        readers = readers_of(self.spark, self.format)
        return {
            f"{name} by {reader}": text
            for name, wanted in truth_of(self.emulator).items()
            for reader, read in readers.items()
            if (text := difference(wanted, read(self.to / name)))
        }


@pytest.mark.slow  # until it has been measured where nothing else runs: 45 s are what it may take
def test_tables_equal_their_org_after_a_storm(spark: SparkSession, tmp_path: Path, seed: int):
    """500 changes by REST, while the mirror is left in the middle of what it does and begun anew,
    streams break, sessions expire, positions are lost, the org moves, and events are gaps or late:
    then each table is what the org's own store holds, to every reader."""
    clock, settings = ManualClock(time.time()), StormWorld.settings_of_org
    org = tmp_path / "org"
    with EmulatorServer(org, seed=seed_of(tmp_path), settings=settings, clock=clock) as emulator:
        world = StormWorld(spark, tmp_path, emulator, seed)
        world.writer.fill(60)
        for _ in range(2):
            world.weather(200, turns=4)
        for kind in FAULTS:
            if kind not in world.blows:
                world.blow(kind)
        while world.writer.changes < 500:
            world.writer.step()
        with world.mirror(refresh_formulas=1.0, sweep=1.0) as mirror:
            world.settle(mirror)
        assert world.compare() == {}
