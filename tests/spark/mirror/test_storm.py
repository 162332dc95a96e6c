"""Tests of the storm: random changes, faults and restarts of an org and its mirror.

Afterwards, the mirror must equal the org. A blow is a fault or a kill.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub.spark.mirror.job import MirrorJob
from sfpubsub.spark.runtime.arrow import frame_of_rows
from sfpubsub.spark.tables import open_target
from tests.conftest import until
from tests.emulator.records.support import events
from tests.faults.storm import BLOWS, JOBS, difference, fault_of, missed, shuffled_blows
from tests.faults.storm_changes import KINDS as CHANGES
from tests.faults.storm_changes import OrgChanges
from tests.faults.storm_org import (
    MIRROR_USER,
    OBJECTS,
    Rows,
    admit_mirror,
    aligned,
    event_of,
    late_events,
    seed_of,
    truth_of,
)
from tests.faults.storm_tables import flaws_between, readers_of, rows_of
from tests.faults.storm_writer import WEIGHTS, Writer
from tests.spark.conftest import TABLE_FORMAT
from tests.spark.mirror.mirror_world import MARGIN, PATIENCE, World


@pytest.fixture
def seed() -> int:
    """Return a random seed, and print it."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")  # pytest shows it if the test fails
    return seed


def test_writer_makes_every_kind_of_change(tmp_path: Path, seed: int):
    """The storm's writer makes every kind of change over REST, and change events report them.

    For each object, `truth_of` returns the same record ids as a query.
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


def test_an_administrator_makes_every_kind_of_change(tmp_path: Path, seed: int):
    """Each change of the org by an administrator takes effect while the writer goes on, is counted,
    and is undone before the next one. Afterwards the mirror's user sees every record again.
    """
    with EmulatorServer(tmp_path / "org", seed=seed_of(tmp_path)) as emulator:
        writer = Writer(emulator, seed)
        writer.fill(60)
        admit_mirror(emulator)
        org = OrgChanges(emulator, writer, random.Random(seed))
        for kind in [*CHANGES, *CHANGES]:
            before = seen_by_mirror(emulator)
            org.begin(kind)
            for _ in range(10):
                writer.step()
            lasts = kind in ("rights", "object", "deselect")
            assert (seen_by_mirror(emulator) != before) or not lasts, kind
            org.end()
            assert (seen_by_mirror(emulator) == before) or not lasts, kind
        assert org.made == dict.fromkeys(CHANGES, 2)
        truth = truth_of(emulator)
        user = emulator.accounts.holder(MIRROR_USER)
        for name in OBJECTS:
            found = emulator.records.query(f"SELECT Id FROM {name}", user).rows
            assert truth[name].keys() == {row["Id"] for row in found}
        assert any(row["LastActivityDate"] for row in truth["Account"].values())


def seen_by_mirror(emulator: EmulatorServer) -> tuple[object, ...]:
    """Return for which objects the mirror's user has View All, which of them it sees, with how many
    fields, and which events the channel carries.
    """
    user, fields = emulator.accounts.holder(MIRROR_USER), {}
    for name in emulator.records.objects():
        with contextlib.suppress(RecordProblem):
            fields[name] = len(emulator.records.seen(name, user).fields)
    return user.view_all_of, fields, [one.entity for one in emulator.event_channels.members()]


def test_values_of_a_field_with_several_columns():
    """If a field got another type, its value is in one of several columns of the table; columns of
    fields that are gone are left out.
    """
    wanted = {"1": {"Name": "a", "Size__c": Decimal(1)}, "2": {"Name": "b", "Size__c": None}}
    found: Rows = {
        "1": {"Name": "a", "Size__c": None, "Size__c__decimal_18_4": Decimal(1), "Old__c": "x"},
        "2": {"Name": "b", "Size__c": None, "Size__c__decimal_18_4": None, "Old__c": None},
    }
    assert aligned(found, wanted) == wanted
    found["1"]["Size__c"] = "1"
    assert "1 different" in difference(wanted, aligned(found, wanted))


def test_a_blow_that_does_not_happen_is_reported(tmp_path: Path):
    """A storm is not passed if a kind of blow was planned and never happened."""
    emulator = EmulatorServer(tmp_path / "org")
    for blow in JOBS:
        emulator.faults.add(fault_of(blow, random.Random()))
    blows = ["driver", "rights", *JOBS]
    assert missed(blows, emulator, Counter(rights=1)) == ["job_aborted", "job_failed"]
    assert missed(["rights", "object"], emulator, Counter(rights=1)) == ["object"]
    emulator.stop()


def test_the_same_seed_makes_the_same_changes(tmp_path: Path, seed: int):
    """Writers with the same seed leave two orgs with the same records, apart from dates, so that a
    storm can be repeated. That includes the changes by an administrator.
    """
    ends = []
    for number in range(2):
        directory = tmp_path / str(number)
        directory.mkdir()
        with EmulatorServer(directory / "org", seed=seed_of(directory)) as emulator:
            writer = Writer(emulator, seed)
            writer.fill(30)
            admit_mirror(emulator)
            org = OrgChanges(emulator, writer, random.Random(seed))
            for place, kind in enumerate(CHANGES):
                writer.plan(10 * place, partial(org.begin, kind))
            writer.plan(95, org.end)
            writer.raise_goal(100)
            writer.start()
            writer.finish(300)
            truth = truth_of(emulator)
        ends.append(
            {
                (name, record_id): {k: v for k, v in row.items() if not k.endswith("edDate")}
                for name, rows in truth.items()
                for record_id, row in rows.items()
            }
        )
    assert ends[0] == ends[1]


DAY = 86_400.0

# Faults that leave the mirror's position valid. After a lost position or an overflow, all rows are
# marked for rereading, and events alone prove nothing.
BREAKS = ("drop", "reset", "gap", "late", "expire")

# Seconds after which an event of the fault "late" has arrived.
LATE = 5.0

# One of the three objects, with few of its fields, so that the storm takes less than 45 s: text
# that events contain as a diff, a compound field, and a field that only a refresh can update.
MIRRORED = ("Account",)
FIELDS = {"Name", "BillingAddress", "NumberOfEmployees", "Description", "SLAExpirationDate__c"}
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
            table.merge(given, "t.record_id = s.record_id", number)
    empty = dict.fromkeys(set(COLUMNS.names) - {"record_id", "_is_deleted"})
    wanted = {
        "1": {**empty, "Name": "new"}, "3": empty, "5": {**empty, **full},
    }  # fmt: skip
    for read in readers_of(spark, TABLE_FORMAT).values():
        assert read(str(tmp_path / "Account")) == wanted


def test_difference_lists_missing_extra_and_changed_records():
    """The difference between two tables lists missing, extra and changed records, and is empty if
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

    shares_clock = True
    settings_of_org = Settings(rest_lag_s=0.9 * MARGIN, keepalive_s=1.0, retention_s=1e9)

    def __init__(
        self, spark: SparkSession, path: Path, emulator: EmulatorServer, seed: int
    ) -> None:
        super().__init__(spark, path, emulator, TABLE_FORMAT)
        self.wall = emulator.clock.now()
        self.objects = MIRRORED
        self.rng = random.Random(seed)
        records = emulator.records
        account = records.describe("Account")
        for name in [each["name"] for each in account.definition["fields"]]:
            if name not in FIELDS:
                account = account.without_field(name)
        records.put_object(account.with_field(FORMULA))
        self.writer = Writer(emulator, seed, objects=MIRRORED, overflows=False)

    def pass_time(self, seconds: float) -> None:
        """Advance the clocks of the org and of the mirror."""
        super().pass_time(seconds)
        self.emulator.clock.jump(seconds)
        self.wall = self.emulator.clock.now()

    def change(self, changes: int, fault: str) -> None:
        """Cause a fault in the org or its streams, and make at least *changes* changes.

        Then let enough time pass for delayed events to arrive.
        """
        self.emulator.faults.add(fault_of(fault, self.rng, self.objects))
        before = self.writer.changes
        while self.writer.changes < before + changes:
            self.writer.step()
        self.pass_time(LATE)

    def receive(self) -> None:
        """Wait until the raw table contains all events, including delayed ones."""
        until(lambda: late_events(self.emulator) == 0, "the delayed events", PATIENCE)
        until(self.has_received_all, "all events", PATIENCE)

    def apply_events(self, mirror: MirrorJob) -> None:
        """Let the mirror apply all received events, and begin no read."""
        state = replace(self.stream.state(), is_anchored=False)  # reads begin once it is
        while mirror.advance(state):
            pass
        assert mirror._schedule.is_through

    def compare(self) -> dict[str, str]:
        """Return the differences between the tables and the org, by object and reader."""
        return {
            f"{name} by {reader}": text
            for name, wanted in truth_of(self.emulator).items()
            if name in self.objects
            for reader, read in readers_of(self.spark, self.format).items()
            if (text := difference(wanted, read(str(self.to / name))))
        }

    def compare_unmarked(self) -> str:
        """Return the differences between the Account table and the org in what events report.

        Formulas, records purged without an event, and rows marked for rereading are not compared.
        """
        rows = self._read("Account").toArrow()
        marked = rows.filter(rows["_reread"])["record_id"].to_pylist()
        wanted, found = truth_of(self.emulator)["Account"], rows_of(rows)
        for each in (wanted, found):
            for record_id in {*marked, *self.writer.purged}:
                each.pop(record_id, None)
            for row in each.values():
                del row[FORMULA["name"]]
        assert len(found) > 10, "too few rows are left to compare"
        return difference(wanted, found)


def test_tables_equal_their_org_after_a_storm(spark: SparkSession, tmp_path: Path, seed: int):
    """After 500 changes with faults, and a restart, every reader of the mirror sees the org's data.

    The faults break streams, expire sessions, and delay events or replace them with gap events.
    Before the refresh of formulas, which also finds purged records, only what events report must be
    equal.
    """
    clock, settings = ManualClock(time.time()), StormWorld.settings_of_org
    org = tmp_path / "org"
    with EmulatorServer(org, seed=seed_of(tmp_path), settings=settings, clock=clock) as emulator:
        world = StormWorld(spark, tmp_path, emulator, seed)
        world.writer.fill(60)
        with world.mirror() as mirror:
            world.settle(mirror)
            world.pass_time(DAY)
            for fault in shuffled_blows(len(BREAKS), world.rng, BREAKS):
                world.change(100, fault)
            world.receive()
            emulator.faults.assert_consumed()
        with world.mirror(refresh_formulas=DAY, sweep=DAY) as mirror:
            world.apply_events(mirror)
            assert world.compare_unmarked() == ""
            world.settle(mirror)
        assert world.compare() == {}


def test_flaws_of_a_history_are_found():
    """A history that does not end with the row, has a hole, or is not open once, has a flaw."""
    row = {"record_id": "1", "Name": "b", "_is_deleted": False}
    first = {"record_id": "1", "Name": "a", "_is_deleted": False, "valid_from": 1, "valid_to": 2}
    last = {**first, "Name": "b", "valid_from": 2, "valid_to": None}
    assert list(flaws_between(row, [first, last])) == []
    for versions in (
        [],
        [first],
        [{**first, "valid_to": None}, last],
        [first, {**last, "Name": "a"}],
        [first, {**last, "_is_deleted": True}],
        [{**first, "valid_to": 3}, last],
    ):
        assert len(list(flaws_between(row, versions))) == 1
