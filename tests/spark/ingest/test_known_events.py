"""Tests of which events a writer recognises, compared with a model that remembers every event.

The writer's decisions are the real ones: `KnownEvents` with its window and its clock. The table is
in memory. Publishers, the service and the writer's clock are simulated.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

import pyarrow as pa
import pytest

from sfpubsub.spark.ingest import key_window
from sfpubsub.spark.ingest.dedupe import Verdict
from sfpubsub.spark.ingest.key_window import KeyWindow
from sfpubsub.spark.ingest.known_events import KnownEvents
from sfpubsub.spark.raw.sources import Source
from sfpubsub.spark.raw.table import RawTable, StoredRow
from sfpubsub.types import ReplayId
from tests.spark.ingest.raw_rows import Event, rows_of
from tests.spark.sample_events import NOW

HOUR = 3600.0
DAY = 24 * HOUR

# How long the service keeps an event; twice as long is the latest that it purges one.
RETENTION = 72 * HOUR

# The times that publishers set, and how each reads once the event is decoded.
OWN_TIMES = {
    "right": lambda published: published,
    "20 h ahead": lambda published: published + 20 * HOUR,
    "in seconds": lambda published: published / 1000,  # taken for milliseconds: 1970
    "in microseconds": lambda published: None,  # after the year 9999
    "missing": lambda published: None,
}


class MemoryTable(RawTable):
    """A raw table in memory.

    Args:
        by_days: Whether it knows only the day in which a row was written, like a Parquet table, so
            that a look-up finds all rows of a day. Otherwise it finds only the rows that were
            written exactly in the given spans.
    """

    def __init__(self, *, by_days: bool) -> None:
        self.rows: list[tuple[StoredRow, float]] = []
        self._unit = DAY if by_days else 1.0

    @property
    def next_seq(self) -> int:
        return len(self.rows)

    @property
    def sources(self) -> tuple[Source, ...]:
        return ()

    @property
    def org_id(self) -> str | None:
        return None

    @property
    def positions(self) -> Mapping[str, ReplayId]:
        return {}

    @property
    def newest_time(self) -> float:
        return self.rows[-1][1] // self._unit * self._unit if self.rows else 0.0

    @property
    def names(self) -> Collection[str]:
        return ()

    def recover(self) -> None:
        """Do nothing, because no write is pending."""

    def keys_since(self, oldest: float) -> Iterable[tuple[float, bytes]]:
        for day, rows in groupby(self.rows, key=lambda row: row[1] // DAY):
            if day >= oldest // DAY:
                yield (day + 1) * DAY, b"".join(row.dedupe_key for row, _ in rows)

    def rows_with(
        self, keys: Collection[bytes], spans: Sequence[tuple[float, float]]
    ) -> Mapping[bytes, StoredRow]:
        found: dict[bytes, StoredRow] = {}
        units = [(first // self._unit, last // self._unit) for first, last in spans]
        for row, at in self.rows:
            if row.dedupe_key in keys and any(a <= at // self._unit <= b for a, b in units):
                found.setdefault(row.dedupe_key, row)
        return found

    def append(
        self,
        rows: pa.Table,
        positions: Mapping[str, ReplayId],
        now: float,
        name: str | None = None,
    ) -> str:
        for row in rows.to_pylist():
            self.rows.append((StoredRow(**{name: row[name] for name in StoredRow.COLUMNS}), now))
        return "b"

    def move(self, positions: Mapping[str, ReplayId]) -> None:
        raise AssertionError("no test moves a position")


class World:
    """A service that delivers events, a writer with its clock, and a model of what is stored."""

    def __init__(self, max_keys: int, *, by_days: bool) -> None:
        self.now = NOW
        self.clock = 0.0  # how far the writer's clock is ahead
        self.max_keys = max_keys
        self.table = MemoryTable(by_days=by_days)
        self.published: dict[int, tuple[Event, float]] = {}
        self.stored: dict[int, Event] = {}
        self.stored_at: dict[int, float] = {}
        self.restart()

    def restart(self) -> None:
        """Start another writer, which knows only what is in the table."""
        window = KeyWindow(max_keys=self.max_keys)
        self.known = KnownEvents(self.table, window, lambda: self.now + self.clock)
        self.known.recover()

    def publish(self, kind: str = "right", **values) -> Event:
        """Publish an event whose own time is of the given kind."""
        number = len(self.published)
        event = Event(number, time=OWN_TIMES[kind](self.now), **values)
        self.published[number] = event, self.now
        return event

    def retained(self, age: float) -> list[Event]:
        """Return the events that were published in the last *age* seconds."""
        return [event for event, at in self.published.values() if at >= self.now - age]

    def write(
        self, *events: Event, is_live: bool = True, keeps: bool = True, is_sure: bool = True
    ) -> Verdict:
        """Write events as a writer does, and compare the verdict with the model.

        Args:
            events: The events.
            is_live: Whether the service delivers them; otherwise they come from a quarantine.
            keeps: Whether new events get rows; otherwise they are put into the quarantine.
            is_sure: Whether the writer knows that the write succeeded.
        """
        rows = rows_of(*events)
        now = self.known.time_of(rows, is_live=is_live)
        marks = self.known.marks(rows, now)
        verdict = self.known.judge(rows, marks, now, is_live=is_live)
        self.compare(events, verdict)
        if keeps and verdict.new:
            for index in verdict.new:
                self.stored[events[index].number] = events[index]
                self.stored_at[events[index].number] = self.now
            new = rows.take(pa.array(verdict.new, pa.int64()))
            self.table.append(new, {}, now)
            if is_sure:
                self.known.add(new, [marks[index] for index in verdict.new], now)
            else:
                self.known.recover()
        return verdict

    def compare(self, events: Sequence[Event], verdict: Verdict) -> None:
        first = dict(self.stored)
        new, reencoded, conflicts = [], [], []
        for index, event in enumerate(events):
            row = first.get(event.number)
            if row is None:
                first[event.number] = event
                new.append(index)
            elif row.payload != event.payload and row[2:4] == event[2:4]:
                conflicts.append(index)
            elif row.payload != event.payload:
                reencoded.append(index)
        assert verdict.new == new
        assert verdict.reencoded == reencoded
        assert [conflict.index for conflict in verdict.conflicts] == conflicts


@pytest.fixture(params=["all keys", "24 keys", "24 keys, by days"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """Provide a world whose window holds all keys of 73 h, and others with a window of 24 keys."""
    monkeypatch.setattr(key_window, "_RECENT_KEYS", 8)
    by_days = "by days" in request.param
    return World(10_000_000 if request.param == "all keys" else 24, by_days=by_days)


def undecoded(events: Iterable[Event]) -> list[Event]:
    """Return the events as they are when they cannot be decoded: without a time."""
    return [event._replace(time=None) for event in events]


def fill(world: World, count: int = 40) -> None:
    """Write enough new events for a small window to drop older ones."""
    world.write(*(world.publish() for _ in range(count)))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("hours", [0.0, 1.0, 70.0, 73.5, 80.0, 92.0, 143.0])
def test_event_is_written_once_whatever_its_own_time(world: World, hours: float, restarts: bool):
    """An event that is delivered again while the service may keep it is a duplicate, whatever time
    its publisher set.
    """
    events = [world.publish(kind) for kind in OWN_TIMES]
    assert world.write(*events).new == [0, 1, 2, 3, 4]
    fill(world)
    world.now += hours * HOUR
    fill(world)
    if restarts:
        world.restart()
    assert world.write(*events, world.publish()).new == [5]


@pytest.mark.parametrize("hours", [1.0, 74.0, 120.0])
def test_decodable_and_undecodable_deliveries_of_an_event_are_one(world: World, hours: float):
    """An event that could not be decoded, and so had no time, is recognised once it can be, and the
    other way round, also when a quarantine is redriven after five days.
    """
    late, early, set_aside = ([world.publish(kind) for kind in OWN_TIMES] for _ in range(3))
    world.write(*undecoded(late), *early)
    world.write(*undecoded(set_aside), keeps=False)
    world.now += hours * HOUR
    fill(world)
    for is_live in (True, False):
        assert world.write(*late, *undecoded(early), is_live=is_live).new == []
    assert world.write(*set_aside, *set_aside, is_live=False).new == [0, 1, 2, 3, 4]
    assert world.write(*set_aside).new == []


@pytest.mark.parametrize("hours", [0.5, 18.0])
def test_one_id_with_a_new_time_is_a_duplicate_or_a_conflict(world: World, hours: float):
    """An event that is sent again with another time is a duplicate if its payload is the same, and
    a conflict if it is not.
    """
    event = world.publish()
    world.write(event)
    world.now += hours * HOUR
    fill(world)
    again = event._replace(time=world.now)
    assert world.write(again) == Verdict([])
    assert len(world.write(again._replace(payload=b"b")).conflicts) == 1


@pytest.mark.parametrize("kind", ["right", "20 h ahead"])
@pytest.mark.parametrize("step", [-3 * HOUR, 3 * HOUR])
def test_everything_is_delivered_again_after_a_move_while_the_clock_was_wrong(
    world: World, kind: str, step: float
):
    """After a move of the org, all events of the last 70 h are duplicates, even if the writer's
    clock went back before some were written, and forward again after that.
    """
    for clock in (0.0, step, 0.0):
        world.clock = clock
        world.write(*(world.publish(kind) for _ in range(10)))
        world.now += HOUR
    world.now += 67 * HOUR
    for hours in (0.0, 1.0, 3.0):
        world.now += hours * HOUR
        assert world.write(*world.retained(RETENTION)).new == []
        fill(world)


def test_two_sources_an_hour_apart_give_one_row(world: World):
    """An event that a second source delivers an hour later is a duplicate, and counted as
    re-encoded if that source enriches it.
    """
    waiting: list[Event] = []
    for _ in range(80):
        events = [world.publish() for _ in range(5)]
        other = [event._replace(topic="/event/B") for event in events[:3]]
        other += [event._replace(topic="/event/B", payload=b"more") for event in events[3:]]
        verdict = world.write(*waiting, *events)
        assert len(verdict.new) == 5
        assert len(verdict.reencoded) == (2 if waiting else 0)
        waiting = other
        world.now += HOUR


def test_event_of_a_deleted_row_is_new_after_a_restart(world: World):
    """The keys in memory are a copy of those in the table, so an event whose row was deleted is
    written again after the next start.
    """
    events = [world.publish() for _ in range(3)]
    world.write(*events)
    del world.table.rows[1], world.stored[1]
    world.restart()
    assert world.write(*events).new == [1]


@pytest.mark.parametrize("seed", range(5))
def test_every_delivery_is_a_row_a_duplicate_or_a_conflict(world: World, seed: int):
    """In random histories of publishers, redeliveries, moves, redrives, restarts, writes of unknown
    outcome and wrong clocks, every verdict is that of a model that remembers everything.
    """
    print(f"seed {seed}")
    chance = random.Random(seed)
    second: list[tuple[float, Event]] = []  # what the second source delivers, and when
    for _ in range(60):
        world.now += chance.choice([0.0, 60.0, HOUR, HOUR, 9 * HOUR, 30 * HOUR])
        due = [event for at, event in second if at <= world.now]
        second = [(at, event) for at, event in second if at > world.now]
        match chance.randrange(10):
            case 0:
                world.clock = chance.choice([0.0, -3 * HOUR, 3 * HOUR])
            case 1:
                world.restart()
            case 2:  # a move of the org
                world.write(*world.retained(RETENTION))
            case 3:  # events that the service purged late
                old = world.retained(140 * HOUR)
                world.write(*chance.sample(old, min(4, len(old))))
            case 4:  # a redrive, of events that have rows and of others
                old = world.retained(200 * HOUR)
                world.write(*chance.sample(old, min(6, len(old))), is_live=False)
            case 5:  # events that cannot be decoded now
                old = world.retained(RETENTION)
                world.write(*undecoded(chance.sample(old, min(2, len(old)))))
                fresh = world.publish(chance.choice(list(OWN_TIMES)))
                world.write(*undecoded([fresh]), keeps=chance.random() < 0.5)
            case 6:  # ids that are used again; a smaller window recognises them for a day
                most = 60 * HOUR if world.max_keys > 1000 else 20 * HOUR
                for number, at in list(world.stored_at.items()):
                    if at >= world.now - most and chance.random() < 0.1:
                        again = world.stored[number]._replace(time=world.now)
                        world.write(again, again._replace(payload=b"b"))
        events = [
            world.publish(chance.choice(list(OWN_TIMES))) for _ in range(chance.randrange(1, 9))
        ]
        second += [
            (
                world.now + HOUR,
                event._replace(topic="/event/B", payload=chance.choice([b"a", b"more"])),
            )
            for event in events
        ]
        world.write(*due, *events, *chance.sample(events, 1), is_sure=chance.random() < 0.9)
    assert len(world.stored) == len({row.dedupe_key for row, _ in world.table.rows})
    assert len(world.table.rows) == len(world.stored)
