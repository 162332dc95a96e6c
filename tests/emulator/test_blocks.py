"""Blocks: what is sent is made when it is published, and says what the log says, always."""

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
    """The bus of an emulator that is not started, and the pages that streams get of it."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.emulator = EmulatorServer(directory, clock=ManualClock(), settings=settings)
        self.bus = self.emulator.bus
        self.pages = Pages(self.bus, settings)

    def publish(self, name: str, count: int, size: int = 20) -> None:
        schema_id = self.bus.topic(name).schema_id
        self.bus.append(name, [Draft(b"x" * size, schema_id) for _ in range(count)])

    def blocks(self) -> int:
        with closing(sqlite3.connect(self.emulator.data_dir / "blocks.sqlite3")) as database:
            return int(database.execute("SELECT count(*) FROM blocks").fetchone()[0])

    def without_rows(self) -> None:
        """Empty the log behind the back of the blocks, and have no pages left."""
        self.emulator._store.run("DELETE FROM events")
        self.pages = Pages(self.bus, self.emulator.settings)

    def read_all(self, name: str, limits: Callable[[], int], start: int = 0) -> list[Any]:
        """What a stream sends, page by page, each checked against the log."""
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
        """Compare what is sent with the log, event by event; how many there are."""
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
    """Open the data directory, as a start of the emulator does; the one before is closed."""
    opened: list[Org] = []

    def open_it(settings: Settings = SETTINGS) -> Org:
        for org in opened:
            org.emulator.stop()
        opened.append(Org(tmp_path / "data", settings))
        return opened[-1]

    yield open_it
    opened[-1].emulator.stop()


def whole() -> int:
    return 100


def test_what_was_published_is_read_from_blocks(open_org):
    """Published by whatever calls, after a start too: a hundred events are one row, and neither the
    rows of events nor their messages are touched again."""
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
    org.without_rows()
    assert len(org.read_all(ORDERS, whole)) == 400


def test_an_older_data_directory_goes_on(open_org):
    """One without blocks is read as before; what is published then has blocks made of the old
    events too, some at each call."""
    org = open_org()
    org.publish(ORDERS, 1000)
    org.emulator.stop()
    for file in org.emulator.data_dir.glob("blocks.*"):
        file.unlink()
    org = open_org()
    assert org.check(ORDERS, whole) == 1000
    for made in (2, 4, 6, 8, 10, 10):
        org.publish(ORDERS, 1)
        assert org.blocks() == made
    assert org.check(ORDERS, whole) == 1006


@pytest.mark.parametrize("changed", [{"replay_id_bytes": 8}, {"change_event_ids": False}])
def test_other_settings_have_other_blocks(open_org, changed):
    """After a start with another form of events none is sent in the old one, nor after one back."""
    org = open_org()
    for settings in (Settings(**changed), SETTINGS, Settings(**changed)):
        org.publish(ACCOUNTS, 150)
        assert org.check(ACCOUNTS, whole) == org.check(CHANGES, whole)
        org = open_org(settings)
    assert org.check(ACCOUNTS, whole) == 450


LOSSES: dict[str, Callable[[Org], None]] = {
    "aged": lambda org: org.emulator.clock.jump(600.0),
    "aged out": lambda org: org.bus.age_out(),
    "aged out in a block": lambda org: org.bus.age_out(org.bus.ids.mint(org.bus.tip() - 30)),
    "reset": lambda org: org.bus.reset(),
    "moved": lambda org: org.bus.move(),
}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_blocks_say_what_the_log_says(open_org, seed):
    """Events of several topics, schemas and sizes, read from anywhere by any number, between losses
    and starts: each page has what the log has."""
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


def test_blocks_that_a_kill_has_left(open_org):
    """Between the change of the log and that of the blocks: they are not looked at."""
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
    assert org.check(ORDERS, whole) == 50


def test_large_events_have_no_blocks(open_org):
    """They would take their room on disk once more; those behind them have blocks again."""
    org = open_org()
    org.publish(ORDERS, 100, module._LARGEST_BYTES // 100)
    assert org.blocks() == 0
    org.publish(ORDERS, 100)
    assert org.blocks() == 1
    assert org.check(ORDERS, whole) == 200


@pytest.mark.parametrize("happened", ["aged out", "reset", "moved"])
def test_there_are_blocks_after_a_loss(open_org, happened):
    """From the first event behind what was lost."""
    org = open_org()
    org.publish(ORDERS, 100)
    LOSSES[happened](org)
    org.publish(ORDERS, 100)
    kept = 200 if happened == "moved" else 100
    org.publish(ACCOUNTS, 1)
    assert org.check(ORDERS, whole) == kept
    org.without_rows()
    assert len(org.read_all(ORDERS, whole)) == kept


def test_a_channel_takes_its_blocks_along(open_org):
    """Another topic may get the number of a channel that was deleted, and none of its events."""
    org = open_org()
    org.bus.put_channel("/data/Some__chn", [ACCOUNTS])
    org.publish(ACCOUNTS, 100)
    number = org.bus.topic("/data/Some__chn").number
    org.bus.remove_channel("/data/Some__chn")
    org.bus.put_channel("/data/Other__chn", [ACCOUNTS])
    assert org.bus.topic("/data/Other__chn").number == number
    assert org.check("/data/Other__chn", whole) == 0
    org.publish(ACCOUNTS, 100)
    assert org.check("/data/Other__chn", whole) == 100


def test_events_lost_while_a_block_is_made_are_in_none(open_org, monkeypatch):
    """Between the read of the events and the block that they go into."""
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
    assert org.check(ORDERS, whole) == 0
