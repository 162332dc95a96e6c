"""Pages: made once for all streams at one place, and never of events that are no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sfpubsub.emulator.grpc import pages as module
from sfpubsub.emulator.grpc.pages import Page, Pages
from sfpubsub.emulator.org.bus import Bus
from sfpubsub.emulator.org.clock import ManualClock
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.server import EmulatorServer
from sfpubsub_grpc import pubsub_api_pb2 as pb

from .support import ACCOUNTS, CHANGES, ORDERS


@pytest.fixture
def emulator(tmp_path: Any) -> Any:
    """Not started: its bus alone is looked at."""
    made = EmulatorServer(tmp_path, clock=ManualClock(), settings=Settings(retention_s=1000.0))
    yield made
    made.stop()


def pages_of(emulator: EmulatorServer) -> tuple[Pages, Callable[[int], Page]]:
    """The pages of an emulator, and one of its first orders."""
    pages = Pages(emulator.bus, emulator.settings)
    return pages, lambda limit: pages.after(emulator.bus.topic(ORDERS), 0, limit)


def test_a_page_is_made_once(emulator):
    """Streams at the same place share it, the full and the last one; and it says what the bus
    does, on the wire too."""
    done = emulator.publish(ORDERS, [{"Order_Number__c": str(n)} for n in range(5)])
    _, first = pages_of(emulator)
    for limit in (3, 100):
        page = first(limit)
        assert first(limit) is page
        events, end = emulator.bus.read(emulator.bus.topic(ORDERS), 0, limit)
        assert (list(page.positions), page.end) == ([event.position for event in events], end)
        assert page.schemas == {events[0].schema_id: len(events)}
        for kind in (pb.FetchResponse, pb.ManagedFetchResponse):
            sent = kind.FromString(page.wire).events
            assert [item.event.payload for item in sent] == [event.payload for event in events]
            assert [item.event.id for item in sent] == [item.event_id for item in done][:limit]
            assert [item.replay_id for item in sent] == [item.replay_id for item in done][:limit]


@pytest.mark.parametrize("limit", [2, 100])
@pytest.mark.parametrize(
    ("what", "left"),
    [
        (lambda emulator: emulator.clock.jump(1001.0), 0),
        (lambda emulator: emulator.bus.age_out(), 0),
        (lambda emulator: emulator.bus.reset(), 0),
        (lambda emulator: emulator.bus.move(), 2),
    ],
    ids=["aged", "aged out", "reset", "moved"],
)
def test_lost_events_are_in_no_page(emulator, limit, what, left):
    """Whatever forgets events or gives them other positions, what was made before is not shown."""
    emulator.publish(ORDERS, [{}, {}])
    _, first = pages_of(emulator)
    before = first(limit)
    what(emulator)
    after = first(limit)
    assert len(after.positions) == left
    assert not set(after.positions) & set(before.positions)


def test_events_behind_a_page_are_seen(emulator):
    """A page that is not full ends with the next event; one that is full stays."""
    emulator.publish(ORDERS, [{}, {}])
    _, first = pages_of(emulator)
    full, last = first(2), first(3)
    emulator.publish(ORDERS, [{}, {}])
    assert first(2) is full
    assert len(first(3).positions) == 3
    assert len(last.positions) == 2


def test_an_event_that_comes_while_a_page_is_made(emulator, monkeypatch):
    """It may be in the page or not, but the next look has it."""
    emulator.publish(ORDERS, [{}])
    _, first = pages_of(emulator)
    read = Bus.read

    def late(bus: Bus, *arguments: Any) -> Any:
        found = read(bus, *arguments)
        monkeypatch.undo()
        emulator.publish(ORDERS, [{}])
        return found

    monkeypatch.setattr(Bus, "read", late)
    assert len(first(100).positions) == 1
    assert len(first(100).positions) == 2


def test_a_channel_takes_its_pages_along(emulator):
    """Another topic may get the number of a channel that was deleted, and its pages with it."""
    bus = emulator.bus
    name = "/data/Some__chn"
    bus.put_channel(name, [ACCOUNTS])
    emulator.publish(ACCOUNTS, [{}])
    pages = Pages(bus, emulator.settings)
    channel = bus.topic(name)
    assert len(pages.after(channel, 0, 1).positions) == 1
    bus.remove_channel(name)
    bus.put_channel("/data/Other__chn", [ACCOUNTS])
    other = bus.topic("/data/Other__chn")
    assert other.number == channel.number
    assert not pages.after(other, 0, 1).positions


def test_pages_take_bounded_memory(emulator, monkeypatch):
    """Those not used for longest go first."""
    monkeypatch.setattr(module, "_KEPT_BYTES", 4 * module._PAGE_OVERHEAD_BYTES)
    emulator.publish(ORDERS, [{}] * 10)
    pages, first = pages_of(emulator)
    topic = emulator.bus.topic(ORDERS)
    kept = first(1)
    for position in range(1, 10):
        pages.after(topic, position, 1)
        assert first(1) is kept
    assert len(pages._kept) == 3
    assert pages._bytes == sum(module._size(item.page) for item in pages._kept.values())


def test_a_page_fits_into_a_response(tmp_path):
    """No more than the setting says, at least one event, and such a page counts as full."""
    with EmulatorServer(tmp_path, settings=Settings(response_bytes=500)) as emulator:
        emulator.publish(ACCOUNTS, [{}] * 4)
        pages = Pages(emulator.bus, emulator.settings)
        topic = emulator.bus.topic(CHANGES)
        page = pages.after(topic, 0, 100)
        assert 0 < len(page.positions) < 4
        emulator.publish(ORDERS, [{}])  # the tip moves
        assert pages.after(topic, 0, 100) is page
