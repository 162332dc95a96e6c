"""What a given traffic costs in requests, commits, flushes, objects and wake-ups.

Counted, because a clock says little on a busy machine: what is done once too often for each event
is what makes a client slow.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time

import pytest

from sfpubsub import AsyncPubSubClient, PubSubClient, Session
from sfpubsub.avro.arrow import record_batches
from sfpubsub.client.batch import Event
from sfpubsub.stores.file_replay_store import FileReplayStore

from ..conformance.memory_service import MemoryService
from ..conftest import until

EVENTS = 800  # with a window more, fewer than a subscription holds: credit is not short
WINDOW = 100  # events that may be outstanding
COMMIT_PAUSE = 0.1  # seconds between two commits
STORE_PAUSE = 1.0  # seconds between two positions that are stored
TOPIC = "/event/Order_Event__e"
SESSION = Session("token", "https://example.my.salesforce.com", "00D000000000001AAA")


class CountingService(MemoryService):
    """Keeps the requests that follow the opening one."""

    def __init__(self, size: int) -> None:
        super().__init__(events_per_response=size)
        self.requests = []
        self.append(EVENTS)

    def open_stream(self, target, opening):
        call = super().open_stream(target, opening)
        send = call.send

        def counted(request):
            self.requests.append(request)
            send(request)

        call.send = counted
        return call

    @property
    def commits(self):
        return [request for request in self.requests if request.commit is not None]


def take_all(subscription, seen=0):
    """Read every value."""
    for batch in subscription:
        for event in batch:
            assert event.value
            seen += 1
        if seen == EVENTS:
            batch.ack()  # as asking for the next one would
            break


@pytest.mark.parametrize(("size", "at_once"), [(1, 50), (10, 50), (100, 100)])
def test_requests_for_events(size, at_once):
    """More events are asked for when half a window is owed, or nothing is outstanding."""
    most = 1 + (EVENTS + WINDOW) // at_once  # the first one fills the window
    service = CountingService(size)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        take_all(subscription)
        assert len(service.requests) <= most


@pytest.mark.parametrize("size", [1, 10])
def test_requests_of_a_reader_that_is_behind(size):
    """With as much received as may be, a request does not go for each event that is read."""
    service, held = CountingService(size), 200
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest", max_pending_count=held) as subscription,
    ):
        until(lambda: subscription.health().pending_count > held - 50)
        take_all(subscription)
        assert len(service.requests) <= 1 + (EVENTS + WINDOW) // 50


@pytest.mark.parametrize("size", [1, 100])
def test_commits_for_events(size):
    """A commit says what was acked meanwhile, and rides with a request for events if it can."""
    service = CountingService(size)
    began = time.monotonic()
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe_managed("Orders") as subscription,
    ):
        take_all(subscription)
    took = time.monotonic() - began
    assert service.committed == EVENTS - 1
    # The first one, one a pause, and the last one when the subscription drains.
    most = 2 + took / COMMIT_PAUSE
    assert 1 <= len(service.commits) <= most
    assert len(service.requests) <= 1 + (EVENTS + WINDOW) // 50 + most


def test_flushes_of_a_file_store(tmp_path, monkeypatch):
    """The newest position is stored from time to time, by two flushes: of a file and its name."""
    service, flushed = CountingService(1), []
    sync = os.fsync
    with (
        FileReplayStore(tmp_path / "positions", default="earliest") as store,
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay=store) as subscription,
    ):
        subscription.next_batch()
        until(lambda: subscription.health().responses == EVENTS)  # a reader that is never idle
        monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(fd), sync(fd))[1])
        began = time.monotonic()
        take_all(subscription, seen=1)
    took = time.monotonic() - began
    monkeypatch.undo()
    assert 2 <= len(flushed) <= 2 * (3 + took / STORE_PAUSE)
    [stored] = json.loads((tmp_path / "positions").read_text())["positions"].values()
    assert stored == service.mint(EVENTS - 1).hex()


@pytest.fixture
def made(monkeypatch):
    """Every `Event` object that is made."""
    found = []
    begin = Event.__init__

    def counted(self, *arguments, **options):
        found.append(self)
        begin(self, *arguments, **options)

    monkeypatch.setattr(Event, "__init__", counted)
    return found


def test_objects_for_events(made):
    """Whoever goes through a batch has an object for each event, made then and once."""
    service = CountingService(100)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        batch = subscription.next_batch()
        assert not made
        assert len(list(batch)) == len(made) == len(batch)


def test_objects_for_arrow_data(made):
    """Record batches are made of what was received, without an object for an event."""
    service = CountingService(100)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        rows = 0
        for batch in subscription:
            rows += sum(part.num_rows for part in record_batches(batch))
            if rows == EVENTS:
                break
    assert not made


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="only Linux counts by thread")
def test_wake_ups_of_a_reader():
    """A thread that reads what has come already goes through it without waiting for another."""
    service = CountingService(1)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        subscription.next_batch()
        until(lambda: subscription.health().responses == EVENTS)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        take_all(subscription, seen=1)
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert waits <= EVENTS / 10  # a few for locks, on a busy machine


def test_wake_ups_of_a_loop():
    """What comes while the loop is busy wakes it once, however many responses that are."""
    service, calls = CountingService(1), []
    held = EVENTS - WINDOW  # received while the loop is busy

    async def read() -> None:
        loop = asyncio.get_running_loop()
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(*arguments, **options):
            calls.append(arguments)
            return call_soon_threadsafe(*arguments, **options)

        loop.call_soon_threadsafe = counted
        seen = 0
        async with (
            AsyncPubSubClient(SESSION, transport=service) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            async for batch in subscription:
                if not seen:
                    until(lambda: subscription.health().responses >= held)
                seen += len(batch)
                if seen == held:
                    break

    asyncio.run(read())
    assert len(calls) <= 20  # the start, the first event, what came meanwhile, the end
