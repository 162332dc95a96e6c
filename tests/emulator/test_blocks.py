"""Tests of blocks: encoded responses that are stored when their events are published.

Streams send blocks instead of encoding events again, so blocks have to match the event log.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sfpubsub.emulator.grpc import blocks as module
from sfpubsub.emulator.grpc.pages import Pages
from sfpubsub.emulator.org.bus import Bus, Draft
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.schemas import Schema
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS

SETTINGS = Settings(retention_s=1000.0, response_bytes=200_000)


class Org:
    """The event bus of an emulator that runs no server, and the pages its streams would send."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.emulator = EmulatorServer(directory, clock=ManualClock(), settings=settings)
        self.bus = self.emulator.bus
        self.pages = Pages(self.bus, settings)

    def publish(self, name: str, count: int, size: int = 20) -> None:
        schema_id = self.bus.topic(name).schema_id
        self.bus.append(name, [Draft(b"x" * size, schema_id) for _ in range(count)])

    def blocks(self) -> int:
        """Return the number of stored blocks."""
        with closing(sqlite3.connect(self.emulator.data_dir / "blocks.sqlite3")) as database:
            return int(database.execute("SELECT count(*) FROM blocks").fetchone()[0])

    def delete_events(self) -> None:
        """Delete all events from the log but keep their blocks, and clear the page cache."""
        self.emulator._store.run("DELETE FROM events")
        self.pages = Pages(self.bus, self.emulator.settings)

    def read_all(self, name: str, limits: Callable[[], int], start: int = 0) -> list[Any]:
        """Return the positions and events that a stream would send; check the size of each page."""
        topic, position = self.bus.topic(name), start
        sent: list[Any] = []
        while (page := self.pages.after(topic, position, limits())).positions:
            events = pb.FetchResponse.FromString(page.wire).events
            assert len(events) == len(page.positions)
            assert len(page.wire) <= self.emulator.settings.response_bytes or len(events) == 1
            for schema_id, count in page.schemas.items():
                assert sum(item.event.schema_id == schema_id for item in events) == count
            sent += zip(page.positions, events, strict=True)
            assert page.end == page.positions[-1]
            position = page.end
        return sent

    def check(self, name: str, limits: Callable[[], int], start: int = 0) -> int:
        """Check that what a stream would send matches the log; return the number of events."""
        topic, position, log = self.bus.topic(name), start, []
        while events := self.bus.read(topic, position, 1000)[0]:
            log += events
            position = events[-1].position
        with_ids = name.startswith("/event/") or self.emulator.settings.change_event_ids
        sent = self.read_all(name, limits, start)
        assert [
            (place, item.event.id, item.event.schema_id, item.event.payload, item.replay_id)
            for place, item in sent
        ] == [
            (
                event.position,
                event.event_id if with_ids else "",
                event.schema_id,
                event.payload,
                self.bus.ids.mint(event.position),
            )
            for event in log
        ]
        return len(log)


@pytest.fixture
def open_org(tmp_path: Path) -> Iterator[Callable[..., Org]]:
    """Return a function that opens the data directory as an `Org`, and stops the previous one."""
    opened: list[Org] = []

    def open_it(settings: Settings = SETTINGS) -> Org:
        for org in opened:
            org.emulator.stop()
        opened.append(Org(tmp_path / "data", settings))
        return opened[-1]

    yield open_it
    opened[-1].emulator.stop()


def full_pages() -> int:
    """Return 100, a page size of as many events as a block can hold."""
    return 100


def test_published_events_are_read_from_blocks(open_org):
    """A block holds up to 100 events, even if they were published separately or before a restart.

    Streams read blocks without reading the log.
    """
    org = open_org()
    for count in (1, 98, 200, 1, 50):
        org.publish(ORDERS, count)
    assert org.blocks() == 3
    org = open_org()
    org.publish(ORDERS, 49)
    assert org.blocks() == 3
    org.publish(ORDERS, 1)
    assert org.blocks() == 4
    org = open_org()
    org.delete_events()
    assert len(org.read_all(ORDERS, full_pages)) == 400


def test_blocks_are_added_to_an_older_data_directory(open_org):
    """A data directory without blocks can still be read.

    Each publication then creates some of the missing blocks of old events.
    """
    org = open_org()
    org.publish(ORDERS, 1000)
    org.emulator.stop()
    for file in org.emulator.data_dir.glob("blocks.*"):
        file.unlink()
    org = open_org()
    assert org.check(ORDERS, full_pages) == 1000
    for made in (2, 4, 6, 8, 10, 10):
        org.publish(ORDERS, 1)
        assert org.blocks() == made
    assert org.check(ORDERS, full_pages) == 1006


@pytest.mark.parametrize("changed", [{"replay_id_bytes": 8}, {"change_event_ids": False}])
def test_blocks_encoded_with_other_settings_are_not_used(open_org, changed):
    """A stream never sends blocks encoded with settings other than its own.

    The settings are changed, changed back and changed again, with new events each time.
    """
    org = open_org()
    for settings in (Settings(**changed), SETTINGS, Settings(**changed)):
        org.publish(ACCOUNTS, 150)
        assert org.check(ACCOUNTS, full_pages) == org.check(CHANGES, full_pages)
        org = open_org(settings)
    assert org.check(ACCOUNTS, full_pages) == 450


LOSSES: dict[str, Callable[[Org], None]] = {
    "aged": lambda org: org.emulator.clock.jump(600.0),
    "aged out": lambda org: org.bus.age_out(),
    "aged out in a block": lambda org: org.bus.age_out(org.bus.ids.mint(org.bus.tip() - 30)),
    "reset": lambda org: org.bus.reset(),
    "moved": lambda org: org.bus.move(),
}


@pytest.mark.parametrize("seed", range(6))
def test_blocks_match_the_log_after_random_operations(open_org, seed):
    """Blocks match the log after random publications, losses, schema changes and restarts."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    org = open_org()
    other = json.loads(org.bus.schema(org.bus.topic(ORDERS).schema_id).text)
    other["fields"].append({"name": "More__c", "type": ["null", "string"], "default": None})
    both = [org.bus.schema(org.bus.topic(ORDERS).schema_id), Schema(json.dumps(other))]
    for _ in range(25):
        match chance.randrange(8):
            case 0:
                happened = chance.choice(list(LOSSES))
                if org.bus.tip() > 30:
                    LOSSES[happened](org)
            case 1:
                org = open_org()
            case 2:
                org.bus.change_schema(ORDERS, chance.choice(both))
            case _:
                size = chance.choice([0, 20, 127, 128, 3000, 20_000])
                org.publish(chance.choice([ORDERS, ACCOUNTS]), chance.randint(1, 250), size)
        start = chance.randint(0, org.bus.tip())
        for name in (ORDERS, ACCOUNTS, CHANGES):
            org.check(name, lambda: chance.choice([1, 7, 99, 100]), chance.choice([0, start]))


def test_stale_blocks_after_a_kill_are_ignored(open_org):
    """Blocks of events that are no longer in the log, left behind by a kill, are not sent."""
    org = open_org()
    org.publish(ORDERS, 200)
    file, kept = org.emulator.data_dir / "blocks.sqlite3", org.emulator.data_dir / "kept"
    with closing(sqlite3.connect(file)) as database:
        database.execute("VACUUM INTO ?", (str(kept),))
    org.bus.age_out(org.bus.ids.mint(150))
    assert org.blocks() == 0
    org.emulator.stop()
    kept.rename(file)
    org = open_org()
    assert org.blocks() == 2
    assert org.check(ORDERS, full_pages) == 50


def test_large_events_have_no_blocks(open_org):
    """Large events are not stored in blocks, which would double their size on disk.

    Small events that are published after them are stored in blocks.
    """
    org = open_org()
    org.publish(ORDERS, 100, module._LARGEST_BYTES // 100)
    assert org.blocks() == 0
    org.publish(ORDERS, 100)
    assert org.blocks() == 1
    assert org.check(ORDERS, full_pages) == 200


@pytest.mark.parametrize("happened", ["aged out", "reset", "moved"])
def test_events_after_a_loss_have_blocks(open_org, happened):
    """Events are stored in blocks again after older ones expire or are deleted by a reset.

    The same is true after a move to another instance renumbers them.
    """
    org = open_org()
    org.publish(ORDERS, 100)
    LOSSES[happened](org)
    org.publish(ORDERS, 100)
    kept = 200 if happened == "moved" else 100
    org.publish(ACCOUNTS, 1)
    assert org.check(ORDERS, full_pages) == kept
    org.delete_events()
    assert len(org.read_all(ORDERS, full_pages)) == kept


def test_deleting_a_channel_deletes_its_blocks(open_org):
    """A new channel that reuses the number of a deleted one does not send that channel's events."""
    org = open_org()
    org.bus.put_channel("/data/Some__chn", [ACCOUNTS])
    org.publish(ACCOUNTS, 100)
    number = org.bus.topic("/data/Some__chn").number
    org.bus.remove_channel("/data/Some__chn")
    org.bus.put_channel("/data/Other__chn", [ACCOUNTS])
    assert org.bus.topic("/data/Other__chn").number == number
    assert org.check("/data/Other__chn", full_pages) == 0
    org.publish(ACCOUNTS, 100)
    assert org.check("/data/Other__chn", full_pages) == 100


def test_events_lost_while_a_block_is_stored_are_in_no_block(open_org, monkeypatch):
    """Events that expire while their block is being stored end up in no block."""
    org = open_org()
    org.publish(ORDERS, 99)
    put = Bus.put_block

    def late(bus: Bus, *arguments: Any) -> None:
        monkeypatch.undo()
        bus.age_out()
        put(bus, *arguments)

    monkeypatch.setattr(Bus, "put_block", late)
    org.publish(ORDERS, 1)
    assert org.blocks() == 0
    assert org.check(ORDERS, full_pages) == 0
