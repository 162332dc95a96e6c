"""Tests of pages, which are runs of encoded events that streams at the same position share."""

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
    """An emulator that is not started, because the tests use only its bus."""
    made = EmulatorServer(tmp_path, clock=ManualClock(), settings=Settings(retention_s=1000.0))
    yield made
    made.stop()


def pages_of(emulator: EmulatorServer) -> tuple[Pages, Callable[[int], Page]]:
    """Return an emulator's page cache, and a function that returns the first page of orders.

    The function's argument is the maximum number of events in the page.
    """
    pages = Pages(emulator.bus, emulator.settings)
    return pages, lambda limit: pages.after(emulator.bus.topic(ORDERS), 0, limit)


def test_streams_share_a_page(emulator):
    """Streams at the same position share one page, whether or not it is full.

    The page and its encoded form contain the same events as the bus.
    """
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
def test_lost_events_are_not_in_any_page(emulator, limit, what, left):
    """If a page's events have expired, been deleted or moved, the page is not reused."""
    emulator.publish(ORDERS, [{}, {}])
    _, first = pages_of(emulator)
    before = first(limit)
    what(emulator)
    after = first(limit)
    assert len(after.positions) == left
    assert not set(after.positions) & set(before.positions)


def test_incomplete_page_is_replaced(emulator):
    """A page that is not full is replaced after new events arrive; a full one is kept."""
    emulator.publish(ORDERS, [{}, {}])
    _, first = pages_of(emulator)
    full, last = first(2), first(3)
    emulator.publish(ORDERS, [{}, {}])
    assert first(2) is full
    assert len(first(3).positions) == 3
    assert len(last.positions) == 2


def test_event_published_while_a_page_is_created(emulator, monkeypatch):
    """An event that is published while a page is created is missing from that page, but the next
    request for the page includes it.
    """
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


def test_deleted_channel_removes_its_pages(emulator):
    """Deleting a channel also removes its pages, because a new channel may reuse its number."""
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


def test_cache_is_bounded(emulator, monkeypatch):
    """The cache has a limited size, and drops the pages that have gone unused the longest."""
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


def test_page_size_is_bounded(tmp_path):
    """A page contains at least one event, and no more bytes than `response_bytes` allows.

    A page that has reached this limit counts as full, so it is kept when new events arrive.
    """
    with EmulatorServer(tmp_path, settings=Settings(response_bytes=500)) as emulator:
        emulator.publish(ACCOUNTS, [{}] * 4)
        pages = Pages(emulator.bus, emulator.settings)
        topic = emulator.bus.topic(CHANGES)
        page = pages.after(topic, 0, 100)
        assert 0 < len(page.positions) < 4
        emulator.publish(ORDERS, [{}])  # the latest position moves
        assert pages.after(topic, 0, 100) is page
