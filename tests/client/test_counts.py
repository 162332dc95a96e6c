"""What given traffic costs in requests, commits, flushes, objects and wake-ups.

These tests count operations, because times say little on a busy machine. They detect steps that are
repeated needlessly for each event.
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
from sfpubsub.transports.calls import CallDriver

from ..conformance.memory_service import MemoryService
from ..conftest import until

EVENTS = 800  # plus WINDOW, less than a subscription may hold
WINDOW = 100  # events that may be outstanding
COMMIT_PAUSE = 0.1  # seconds between two commits
STORE_PAUSE = 1.0  # seconds between two stored positions
TOPIC = "/event/Order_Event__e"
SESSION = Session("token", "https://example.my.salesforce.com", "00D000000000001AAA")


class CountingService(MemoryService):
    """An in-memory service that records every request after the opening one."""

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
    """Read events and ack the last batch.

    Stop when `EVENTS` have been read, counting the *seen* events that were read before this call.
    """
    for batch in subscription:
        for event in batch:
            assert event.value
            seen += 1
        if seen == EVENTS:
            batch.ack()  # as asking for the next one would
            break


@pytest.mark.parametrize(("size", "at_once"), [(1, 50), (10, 50), (100, 100)])
def test_number_of_requests(size, at_once):
    """The client requests more events only when half of its window is free, or when no requested
    event is outstanding.
    """
    most = 1 + (EVENTS + WINDOW) // at_once  # the first one fills the window
    service = CountingService(size)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        take_all(subscription)
        assert len(service.requests) <= most


@pytest.mark.parametrize("size", [1, 10])
def test_number_of_requests_of_a_slow_reader(size):
    """At the limit of pending events, the client does not send a request for each event that is
    read.
    """
    service, held = CountingService(size), 200
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest", max_pending_count=held) as subscription,
    ):
        until(lambda: subscription.health().pending_count > held - 50)
        take_all(subscription)
        assert len(service.requests) <= 1 + (EVENTS + WINDOW) // 50


@pytest.mark.parametrize("size", [1, 100])
def test_number_of_commits(size):
    """Acks are committed together: at most one commit per `COMMIT_PAUSE`, plus the first and the
    last.
    """
    service = CountingService(size)
    began = time.monotonic()
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe_managed("Orders") as subscription,
    ):
        take_all(subscription)
    took = time.monotonic() - began
    assert service.committed == EVENTS - 1
    # The first one, one in each pause, and the last one in the drain.
    most = 2 + took / COMMIT_PAUSE
    assert 1 <= len(service.commits) <= most
    assert len(service.requests) <= 1 + (EVENTS + WINDOW) // 50 + most


@pytest.mark.parametrize("managed", [False, True])
def test_number_of_driver_turns(managed, monkeypatch):
    """The driver takes two turns for a response: when it arrives, and when the application reads
    it.

    The second turn also acks the previous response. Each commit takes at most two more turns.
    """
    service, turns = CountingService(1), []
    apply = CallDriver._apply

    def counted(driver, happened, *what):
        turns.append(happened)
        apply(driver, happened, *what)

    monkeypatch.setattr(CallDriver, "_apply", counted)
    with PubSubClient(SESSION, transport=service) as client:
        subscription = (
            client.subscribe_managed("Orders")
            if managed
            else client.subscribe(TOPIC, replay="earliest")
        )
        with subscription:
            until(lambda: subscription.health().responses >= EVENTS)
            take_all(subscription)
            answers = len(service.commits)
            assert len(turns) <= 2 * EVENTS + 2 * answers + 10


@pytest.mark.parametrize("face", ["sync", "cancelled", "asyncio"])
def test_asking_for_a_batch_acks_at_once_even_if_none_is_ready(face):
    """Asking for the next batch acks the previous events at once, even if no batch is ready, since
    the next event may take an hour to arrive.
    """
    service = CountingService(EVENTS)

    def sync() -> None:
        with (
            PubSubClient(SESSION, transport=service) as client,
            client.subscribe_managed("Orders") as subscription,
        ):
            seen = 0
            while seen < EVENTS:
                seen += len(subscription.next_batch())
            assert subscription.health().unacked
            assert subscription.next_batch(0) is None
            assert not subscription.health().unacked

    async def aio() -> None:
        async with (
            AsyncPubSubClient(SESSION, transport=service) as client,
            client.subscribe_managed("Orders") as subscription,
        ):
            seen = 0
            while seen < EVENTS:
                seen += len(await subscription.next_batch())
            assert subscription.health().unacked
            task = asyncio.create_task(subscription.next_batch(60.0 if face == "cancelled" else 0))
            await asyncio.sleep(0)  # lets the task begin
            task.cancel()
            await asyncio.wait({task})
            assert not subscription.health().unacked

    if face == "sync":
        sync()
    else:
        asyncio.run(aio())


def test_number_of_flushes_of_a_file_store(tmp_path, monkeypatch):
    """The newest position is stored about once a second.

    Each time there are two flushes: of the file and of its directory.
    """
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
def created_events(monkeypatch):
    """Collect every `Event` object that is created."""
    found = []
    begin = Event.__init__

    def counted(self, *arguments, **options):
        found.append(self)
        begin(self, *arguments, **options)

    monkeypatch.setattr(Event, "__init__", counted)
    return found


def test_number_of_event_objects(created_events):
    """Iterating over a batch creates one object for each event; none is created before."""
    service = CountingService(100)
    with (
        PubSubClient(SESSION, transport=service) as client,
        client.subscribe(TOPIC, replay="earliest") as subscription,
    ):
        batch = subscription.next_batch()
        assert not created_events
        assert len(list(batch)) == len(created_events) == len(batch)


def test_record_batches_create_no_event_objects(created_events):
    """Arrow record batches are built from the received events without creating `Event` objects."""
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
    assert not created_events


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="only Linux counts by thread")
def test_number_of_waits_of_a_reading_thread():
    """A thread that reads events which have already arrived does not wait for another thread."""
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


def test_number_of_wake_ups_of_a_loop():
    """However many responses arrive while the loop is busy, they wake it only once."""
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


def test_ready_batches_yield_to_the_loop_at_most_once_a_millisecond():
    """Reading ready batches yields to the event loop at most once a millisecond, not once per
    batch.
    """
    service, rounds = CountingService(1), []

    async def count() -> None:
        while True:
            rounds.append(None)
            await asyncio.sleep(0)

    async def read() -> float:
        async with (
            AsyncPubSubClient(SESSION, transport=service) as client,
            client.subscribe(TOPIC, replay="earliest") as subscription,
        ):
            await subscription.next_batch()
            until(lambda: subscription.health().responses == EVENTS)
            task = asyncio.create_task(count())
            began = time.monotonic()
            for _ in range(EVENTS - 1):
                assert await subscription.next_batch() is not None
            task.cancel()
            return time.monotonic() - began

    took = asyncio.run(read())
    assert len(rounds) <= 2 + took / 1e-3
