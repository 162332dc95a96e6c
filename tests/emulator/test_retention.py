"""Tests that the end of the retention period costs little, however long the log is."""

from __future__ import annotations

import pytest

from sfpubsub.emulator.org.bus import Draft
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer

from .support import ORDERS

STEPS = 100
"""Number of instructions of SQLite's virtual machine that `Effort` counts as one."""

RETENTION_S = 1000.0


class Effort:
    """Counts the work of an emulator's database: hundreds of instructions since the last call."""

    def __init__(self, emulator: EmulatorServer) -> None:
        self.count = 0
        emulator._store._db.set_progress_handler(self._step, STEPS)

    def _step(self) -> int:
        self.count += 1
        return 0

    def spent(self) -> int:
        """Return the work since the last call."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def clock() -> ManualClock:
    """The clock of `org`."""
    return ManualClock()


@pytest.fixture
def org(tmp_path, clock):
    """An emulator that has not been started, with a retention period of `RETENTION_S`."""
    settings = Settings(retention_s=RETENTION_S, tip_refresh_s=RETENTION_S / 2)
    emulator = EmulatorServer(tmp_path, clock=clock, settings=settings)
    yield emulator
    emulator.stop()


def publish(org: EmulatorServer, count: int) -> int:
    """Publish events; return the position of the last one."""
    draft = Draft(b"", org.bus.topic(ORDERS).schema_id)
    org.bus.append(ORDERS, [draft] * count)
    return org.bus.tip()


def retained(org: EmulatorServer) -> list[int]:
    """Return the positions of the retained events."""
    return [event.position for event in org.bus.read(org.bus.topic(ORDERS), 0, 100_000)[0]]


@pytest.mark.parametrize("long", [2_000, 40_000])
def test_one_expired_event_costs_the_same_in_a_long_log(org, clock, long):
    """When one event expires, a read does the same work for 40,000 retained events as for 2,000."""
    first = publish(org, 1)
    clock.jump(2)
    publish(org, long)
    org.bus.read(org.bus.topic(ORDERS), org.bus.tip(), 1)
    clock.jump(RETENTION_S - 1)
    effort = Effort(org)
    org.bus.read(org.bus.topic(ORDERS), org.bus.tip(), 1)
    assert effort.spent() < 20
    assert not org.bus.is_alive(first)
    assert len(retained(org)) == long


def test_a_read_searches_for_expired_events_at_most_once_a_second(org, clock):
    """While events expire continuously, reads in the same second do not search again."""
    for _ in range(100):
        publish(org, 1)
        clock.jump(0.01)
    clock.jump(RETENTION_S - 0.5)
    topic = org.bus.topic(ORDERS)
    org.bus.read(topic, org.bus.tip(), 1)
    left = len(retained(org))
    clock.jump(0.2)
    org.bus.read(topic, org.bus.tip(), 1)
    assert len(retained(org)) == left
    clock.jump(0.8)
    assert retained(org) == []


def test_a_long_log_that_expires_at_once_is_deleted_in_parts(org, clock, tmp_path):
    """After a jump past the retention period, no expired event is readable at once, while a single
    read deletes only part of them; a restart and later reads delete all the others.
    """
    old = publish(org, 20_000)
    clock.jump(RETENTION_S + 1)
    new = publish(org, 1)
    assert retained(org) == [new]
    assert not org.bus.is_alive(old)
    assert org.bus.times_after(org.bus.topic(ORDERS), 0, 10) == [(new, clock.now())]
    assert [event.position for event, _ in org.bus.newest(org.bus.topic(ORDERS), 10)] == [new]
    stored = org._store.rows("SELECT count(*) FROM events")[0][0]
    assert 10_000 < stored < 20_000
    org.stop()
    with EmulatorServer(tmp_path, clock=clock, settings=org.settings) as again:
        assert not again.bus.is_alive(old)
        for _ in range(30):
            assert retained(again) == [new]
        for table in ("events", "topic_log"):
            assert again._store.rows(f"SELECT count(*) FROM {table}") == [(1,)]


def test_a_move_does_not_revive_expired_events(org, clock):
    """Renumbering the log keeps only the retained events, while expired ones await deletion."""
    publish(org, 20_000)
    clock.jump(RETENTION_S + 1)
    publish(org, 3)
    org.bus.move()
    assert len(retained(org)) == 3
