"""Tests of what applications do with a subscription, on the emulator.

Each test runs with the synchronous client and with the asyncio client.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfpubsub import FileReplayStore, ReplayStore
from sfpubsub.config import Timings
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    SubscriptionClosedError,
)
from sfpubsub.types import ReplayId, StartPosition

from ..conftest import QUICK, until
from .faces import AsyncFace, Face, numbers
from .targets import NAME, TOPIC, EmulatorTarget

Start = Callable[..., tuple[EmulatorTarget, Face]]


@pytest.fixture(params=[Face, AsyncFace], ids=lambda face: face.name)
def start(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Start]:
    """Return a function that starts an emulator and creates a client for it.

    Its arguments are the client's timings and the emulator's settings.
    """
    with contextlib.ExitStack() as stack:

        def make(timings: Timings = QUICK, **settings: Any) -> tuple[EmulatorTarget, Face]:
            options = settings.pop("client", {})
            target = EmulatorTarget(tmp_path / "data", **settings)
            stack.callback(target.close)
            face = request.param(timings=timings, **target.arguments(), **options)
            stack.callback(face.close)
            return target, face

        yield make


class CountingStore(ReplayStore):
    """A replay store in memory that records stored positions and the threads of its callers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.positions: list[ReplayId] = []
        self.attempts = 0  # calls of `set`, including those that raised
        self.threads: set[int] = set()
        self.error = error

    def get(self, topic: str) -> StartPosition | None:
        self.threads.add(threading.get_ident())
        return StartPosition.earliest()

    def set(self, topic: str, replay_id: ReplayId) -> None:
        self.threads.add(threading.get_ident())
        self.attempts += 1
        if self.error is not None:
            raise self.error
        self.positions.append(replay_id)


# How a subscription ends.


def test_next_batch_raises_after_the_end_of_the_subscription(start: Start):
    """After a subscription has ended, every call to `next_batch` raises an error.

    Before that, it returns None when its timeout has passed.
    """
    _, face = start()
    held = face.plain(TOPIC)
    assert held.next(0.01) is None
    assert not held.subscription.closed
    held.abort()
    assert held.subscription.closed
    for _ in range(2):
        with pytest.raises(SubscriptionClosedError, match="create a new subscription"):
            held.next(0.01)


def test_drain_ends_next_batch_in_another_thread(start: Start):
    """A waiting `next_batch` raises an error as soon as another thread drains the subscription."""
    _, face = start()
    held = face.plain(TOPIC)
    ended: list[BaseException] = []

    def wait() -> None:
        with contextlib.suppress(SubscriptionClosedError):
            held.next(30.0)
            return
        ended.append(SubscriptionClosedError("heard"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: held.health().state in ("opening", "streaming"), "the stream")
    held.drain()
    waiting.join(20.0)
    assert len(ended) == 1


def test_iterating_over_a_closed_subscription_is_an_empty_loop(start: Start):
    """Repeatedly iterating over a closed subscription yields no events and raises no error."""
    target, face = start()
    target.publish(2)
    held = face.managed(NAME)
    assert held.collect(2) == [0, 1]
    held.drain()
    held.drain()
    for _ in range(2):
        assert held.all_events() == []


def test_drain_commits_acked_events_and_can_be_repeated(start: Start):
    """`drain` commits the acked events, as leaving the `with` block does.

    A second call has no effect.
    """
    target, face = start()
    target.publish(3)
    held = face.managed(NAME, ack="manual")
    held.batch().ack()
    held.drain()
    held.drain()
    assert target.committed() == 2
    assert held.subscription.closed


def test_drain_raises_only_a_failure_that_was_not_raised_before(start: Start):
    """`drain` raises the failure that ended a subscription unless another call has raised it."""
    target, face = start()
    target.publish(1)
    told, untold = (
        face.plain(TOPIC, replay=ReplayId(b"?")),
        face.plain(TOPIC, replay=ReplayId(b"?")),
    )
    with pytest.raises(Exception, match="latest or earliest"):
        told.next()
    told.drain()
    until(lambda: untold.subscription.closed, "the failure")
    with pytest.raises(Exception, match="latest or earliest"):
        untold.drain()
    untold.drain()


def test_an_abandoned_subscription_warns_and_ends(start: Start):
    """A garbage-collected subscription warns and ends, which releases its managed slot.

    Otherwise, `for batch in ...: break` would hold the slot until the client is closed.
    """
    target, face = start()
    target.publish(2)
    held = face.managed(NAME)
    batch = held.batch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        face.forget(held)
        del held
        gc.collect()
        until(lambda: caught, "the warning")
    assert [each.category for each in caught] == [ResourceWarning]
    assert NAME in str(caught[0].message)
    assert len(batch) == 2  # the application can still use the batch
    # The slot is free: another subscription gets the events long before any timeout.
    assert numbers(face.managed(NAME).batch()) == [0, 1]


def test_an_abandoned_subscription_ends_where_warnings_are_errors(start: Start):
    """A garbage-collected subscription ends even if the application turns warnings into errors.

    Test suites often do so; Python can only print an exception that `__del__` raises.
    """
    target, face = start()
    target.publish(2)
    held = face.managed(NAME)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        hook, sys.unraisablehook = sys.unraisablehook, lambda _unraisable: None
        stack.callback(setattr, sys, "unraisablehook", hook)
        warnings.simplefilter("error")
        face.forget(held)
        del held
        gc.collect()
        # The slot is free: another subscription gets the events long before any timeout.
        assert numbers(face.managed(NAME).batch()) == [0, 1]


def test_a_subscription_whose_client_was_closed_does_not_warn(start: Start):
    """Closing the client ends its subscriptions, so collecting one later causes no warning."""
    _, face = start()
    held = face.plain(TOPIC)
    face.call(face.client.close)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        face.forget(held)
        del held
        gc.collect()


def test_a_wrong_argument_leaves_nothing_open(start: Start):
    """A wrong argument is rejected before a thread or a stream is created."""
    _, face = start()
    before = threading.active_count()
    for kind in (face.plain, face.managed):
        with pytest.raises(ConfigurationError, match="'auto' or 'manual'"):
            kind("/event/Order_Event__e", ack="bad")
        with pytest.raises(ValueError, match="max_bytes must be at least 1"):
            kind("/event/Order_Event__e", max_bytes=0)
    assert threading.active_count() <= before


# Events, acks, commits.


def test_iteration_acks_an_event_when_the_next_is_requested(start: Start):
    """`events` acks an event when the next one is requested.

    An event that was being handled at a `break` is therefore delivered again.
    """
    target, face = start(events_per_response=4)
    target.publish(10)
    held = face.managed(NAME)
    assert [int(event.value["Order_Number__c"]) for event in held.next_events(7)] == list(range(7))
    held.drain()
    assert target.committed() == 5  # event 6 was still being handled
    assert face.managed(NAME).collect(4) == [6, 7, 8, 9]


def test_next_batch_returns_the_rest_of_a_batch_after_a_break(start: Start):
    """`next_batch` returns the rest of a batch that a loop over `events` left early.

    The rest is not acked until the next batch is requested.
    """
    target, face = start(events_per_response=5)
    target.publish(10)
    held = face.managed(NAME)
    seen = [int(event.value["Order_Number__c"]) for event in held.next_events(3)]
    seen += numbers(held.batch())
    assert seen == [0, 1, 2, 3, 4]
    held.drain()
    assert target.committed() == 2  # event 2 is done; 3 and 4 were still being handled
    assert face.managed(NAME).collect(7) == [3, 4, 5, 6, 7, 8, 9]


def test_commit_while_iterating_commits_the_current_event(start: Start):
    """While iterating, `commit` commits up to the current event, not to the end of its batch."""
    target, face = start(events_per_response=5)
    target.publish(5)
    held = face.managed(NAME)
    assert face.commit_at(held.subscription, 1) == target.replay_id(1)
    assert target.committed() == 1
    held.abort()
    assert face.managed(NAME).collect(3) == [2, 3, 4]


def test_commit_includes_the_current_batch(start: Start):
    """With `ack="auto"`, `commit` includes the batch that `next_batch` returned last."""
    target, face = start(events_per_response=5)
    target.publish(10)
    held = face.managed(NAME)
    batch = held.batch()
    assert held.commit().replay_id == batch.last_replay_id
    assert target.committed() == 4
    held.next()
    assert target.committed() == 4


def test_a_paused_subscription_keeps_its_stream(start: Start):
    """A paused subscription delivers nothing and keeps its stream beyond the service's idle limit.

    After `resume` every event arrives exactly once.
    """
    target, face = start(
        Timings(backoff_initial=0.02, backoff_max=0.1, reserve=0.1),
        idle_close_s=2.0,  # below the pause of 2.5 s, with a margin for a busy machine
        events_per_response=10,
    )
    held = face.managed(NAME)
    target.publish(5)
    seen = held.collect(5)
    held.subscription.pause()
    target.publish(300)
    assert held.next(2.5) is None
    assert "paused" in (held.health().reason or "")
    assert held.health().pending_count < 200  # the requested events and the reserve
    held.subscription.resume()
    seen += held.collect(300)
    assert seen == list(range(305))
    assert held.health().reconnects == 0


def test_datetimes_option_converts_event_values_only(start: Start):
    """With `datetimes=True`, `event.value` contains datetime objects.

    The event's JSON form and its `event_time` do not change.
    """
    target, face = start(client={"datetimes": True})
    target.publish(1)
    (event,) = face.plain(TOPIC, replay="earliest").batch()
    created = event.value["CreatedDate"]
    assert created.tzinfo is not None
    assert event.event_time == round(created.timestamp() * 1000)
    assert f'"CreatedDate":{event.event_time}' in event.to_json().replace(" ", "")
    assert event.facts_and_json() == (event.event_time, None, event.to_json())


# Schemas and stores.


def test_polling_does_not_shorten_the_backoff_of_a_missing_schema(start: Start):
    """Short `next_batch` calls do not shorten the backoff between requests for a missing schema.

    The backoff belongs to the subscription, not to the single call.
    """
    target, face = start(Timings(backoff_initial=0.4, backoff_max=3.2))
    target.publish(1)
    target.plan("refuse", times=1000, rpc="GetSchema", status="UNAVAILABLE")
    held = face.plain(TOPIC, replay="earliest")
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert held.next(0.05) is None
    assert held.health().state == "waiting_for_schema"
    (fault,) = target.faults.report()
    assert 1 <= fault["happened"] <= 12


def test_acks_are_stored_together(start: Start, tmp_path: Any):
    """The store is not called for every ack: 200 acks cause fewer than 40 calls.

    Still, the last position is stored.
    """
    target, face = start(events_per_response=50)
    target.publish(200)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    seen = 0
    while seen < 200:
        for event in held.batch():
            event.ack()
            seen += 1
    held.drain()
    assert store.positions[-1] == target.replay_id(199)
    assert len(store.positions) < 40


def test_the_event_loop_never_calls_the_store(start: Start, tmp_path: Any):
    """The asyncio client calls the store in threads, as writing may block the event loop.

    Closing the subscription stores the last acked position.
    """
    target, face = start(events_per_response=3)
    target.publish(6)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    first, second = held.batch(), held.batch()
    first.ack()
    assert held.next(0.05) is None
    assert store.positions[-1] == target.replay_id(2)
    second.ack()
    held.drain()
    assert store.positions[-1] == target.replay_id(5)
    if face.name == "asyncio":
        assert face.loop_thread not in store.threads


def test_a_failing_store_does_not_hide_the_applications_exception(start: Start):
    """An exception in the `with` block reaches the caller even if the store fails."""
    target, face = start()
    target.publish(2)
    held = face.plain(TOPIC, replay_store=CountingStore(OSError("disk full")), ack="manual")
    held.batch()
    with pytest.raises(KeyError, match="of the application"):
        held.fail_inside(KeyError("of the application"))


def test_replay_applies_only_to_topics_that_the_store_lacks(start: Start, tmp_path: Any):
    """`replay` is used only for topics without a position in the store."""
    target, face = start()
    target.publish(4)
    with FileReplayStore(tmp_path / "positions.json") as store:
        held = face.plain(TOPIC, replay="earliest", replay_store=store)
        assert held.collect(4) == [0, 1, 2, 3]
        held.next(0.01)
        held.drain()
        target.publish(1)
        again = face.plain(TOPIC, replay="earliest", replay_store=store)
        assert again.collect(1) == [4]
        again.drain()


@pytest.mark.parametrize("store", ["positions.json", object()])
def test_objects_that_are_not_stores_are_rejected(start: Start, store: Any):
    """`replay_store` rejects an object without a store's methods before a stream is opened."""
    _, face = start()
    with pytest.raises(ConfigurationError, match="is not a replay store"):
        face.plain(TOPIC, replay_store=store)


def test_an_ack_after_close_stores_nothing(start: Start):
    """An ack after `close` does not change the stored position.

    The store may be closed by then, or a new subscription may have stored a later position.
    """
    target, face = start(events_per_response=1)
    target.publish(2)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    first, second = held.batch(), held.batch()
    first.ack()
    held.drain()
    attempts = store.attempts
    store.error = OSError("the store is closed")
    second.ack()
    assert store.positions[-1] == target.replay_id(0)
    assert store.attempts == attempts


def test_two_stores_are_rejected(start: Start):
    """Passing one store as `replay` and another as `replay_store` is rejected as ambiguous."""
    _, face = start()
    with pytest.raises(ConfigurationError, match="both stores"):
        face.plain(TOPIC, replay={}, replay_store={})


def test_drain_raises_an_error_in_a_forked_child(start: Start):
    """Calling `drain` in a forked child raises an error.

    Otherwise it would wait for threads that exist only in the parent.
    """
    import os

    _, face = start()
    held = face.plain(TOPIC)
    reader, writer = os.pipe()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads
        child = os.fork()
    if child == 0:  # pragma: no cover  # coverage does not see the child
        gc.disable()  # gRPC aborts if a child frees channels of other tests
        said = "no LocalProtocolError"
        try:
            drained = held.subscription.drain()
            if asyncio.iscoroutine(drained):
                drained.send(None)
        except LocalProtocolError as error:
            said = str(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert b"create a new client after the fork" in os.read(reader, 1000)
    os.close(reader)
