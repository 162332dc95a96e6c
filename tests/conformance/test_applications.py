"""What applications do with a subscription: a table, for both faces, on the emulator."""

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
    """Make an emulator with settings, and a client of either face."""
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
    """Keeps positions in memory; counts its calls, and remembers their threads."""

    def __init__(self, error: Exception | None = None) -> None:
        self.positions: list[ReplayId] = []
        self.threads: set[int] = set()
        self.error = error

    def get(self, topic: str) -> StartPosition | None:
        self.threads.add(threading.get_ident())
        return StartPosition.earliest()

    def set(self, topic: str, replay_id: ReplayId) -> None:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        self.positions.append(replay_id)


# The end.


def test_a_closed_subscription_cannot_be_taken_for_a_quiet_one(start: Start):
    """A loop that polls hears of the end; None means that the time was up, and nothing else."""
    _, face = start()
    held = face.plain(TOPIC)
    assert held.next(0.01) is None
    assert not held.subscription.closed
    held.abort()
    assert held.subscription.closed
    for _ in range(2):
        with pytest.raises(SubscriptionClosedError, match="create a new subscription"):
            held.next(0.01)


def test_whoever_waits_hears_of_a_drain(start: Start):
    """next_batch without a timeout ends when another thread or task drains."""
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
    """The protocol of iterators: what is at its end stays there."""
    target, face = start()
    target.publish(2)
    held = face.managed(NAME)
    assert held.collect(2) == [0, 1]
    held.close()
    held.close()
    for _ in range(2):
        assert held.all_events() == []


def test_close_commits_what_was_acked_and_can_be_repeated(start: Start):
    """As leaving the with block."""
    target, face = start()
    target.publish(3)
    held = face.managed(NAME, ack="manual")
    held.batch().ack()
    held.close()
    held.close()
    assert target.committed() == 2
    assert held.subscription.closed


def test_a_failure_that_was_told_is_not_raised_again_by_close(start: Start):
    """And one that nobody has heard of is."""
    target, face = start()
    target.publish(1)
    told, untold = (
        face.plain(TOPIC, replay=ReplayId(b"?")),
        face.plain(TOPIC, replay=ReplayId(b"?")),
    )
    with pytest.raises(Exception, match="latest or earliest"):
        told.next()
    told.close()
    until(lambda: untold.subscription.closed, "the failure")
    with pytest.raises(Exception, match="latest or earliest"):
        untold.close()
    untold.close()


def test_an_abandoned_subscription_warns_and_ends(start: Start):
    """`for batch in …: break` must not hold the managed slot for ever."""
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
    assert len(batch) == 2  # which is still in the application's hands
    # The slot is free: another one gets the events, long before any timeout.
    assert numbers(face.managed(NAME).batch()) == [0, 1]


def test_an_abandoned_subscription_ends_where_warnings_are_errors(start: Start):
    """As in many test suites; then Python can only print what __del__ raised."""
    _, face = start()
    held = face.managed(NAME)
    driver = held.subscription._delivery.driver
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        hook, sys.unraisablehook = sys.unraisablehook, lambda _unraisable: None
        stack.callback(setattr, sys, "unraisablehook", hook)
        warnings.simplefilter("error")
        face.forget(held)
        del held
        gc.collect()
        until(lambda: driver.over, "the end")


def test_a_subscription_whose_client_was_closed_does_not_warn(start: Start):
    """The client has ended it: nobody forgot anything."""
    _, face = start()
    held = face.plain(TOPIC)
    face.call(face.client.close)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        face.forget(held)
        del held
        gc.collect()


def test_a_wrong_argument_leaves_nothing_open(start: Start):
    """Everything is checked before a stream is made."""
    _, face = start()
    before = threading.active_count()
    for kind in (face.plain, face.managed):
        with pytest.raises(ConfigurationError, match="'auto' or 'manual'"):
            kind("/event/Order_Event__e", ack="bad")
        with pytest.raises(ValueError, match="max_bytes must be at least 1"):
            kind("/event/Order_Event__e", max_bytes=0)
    assert threading.active_count() <= before
    assert face.client._connection._drivers == set()


# Events, acks, commits.


def test_events_one_by_one(start: Start):
    """Asking for the next event acks the one before, so the one in hand comes again."""
    target, face = start(events_per_response=4)
    target.publish(10)
    held = face.managed(NAME)
    assert [int(event.value["Order_Number__c"]) for event in held.some_events(7)] == list(range(7))
    held.drain()
    assert target.committed() == 5  # number 6 was in hand
    assert face.managed(NAME).collect(4) == [6, 7, 8, 9]


def test_leaving_the_events_of_a_batch_loses_none(start: Start):
    """What is behind the event in hand is handed out next, and not acked before."""
    target, face = start(events_per_response=5)
    target.publish(10)
    held = face.managed(NAME)
    seen = [int(event.value["Order_Number__c"]) for event in held.some_events(3)]
    seen += numbers(held.batch())
    assert seen == [0, 1, 2, 3, 4]
    held.drain()
    assert target.committed() == 2  # asked for more, so number 2 is done; 3 and 4 were in hand
    assert face.managed(NAME).collect(7) == [3, 4, 5, 6, 7, 8, 9]


def test_commit_among_events_commits_what_was_seen(start: Start):
    """And not the rest of the response."""
    target, face = start(events_per_response=5)
    target.publish(5)
    held = face.managed(NAME)
    assert face.commit_at(held.subscription, 1) == target.replay_id(1)
    assert target.committed() == 1
    held.abort()
    assert face.managed(NAME).collect(3) == [2, 3, 4]


def test_commit_takes_the_batch_in_hand(start: Start):
    """With ack="auto", in the loop, where the batch is done when commit is called."""
    target, face = start(events_per_response=5)
    target.publish(10)
    held = face.managed(NAME)
    batch = held.batch()
    assert held.commit().replay_id == batch.last_replay_id
    assert target.committed() == 4
    held.next()
    assert target.committed() == 4


def test_a_pause_keeps_the_stream_and_hands_out_nothing(start: Start):
    """For longer than the service's idle rule; then everything comes, once."""
    target, face = start(
        Timings(backoff_initial=0.02, backoff_max=0.1, reserve=0.1),
        idle_close_s=2.0,  # the rest is what a loaded machine may be late by
        events_per_response=10,
    )
    held = face.managed(NAME)
    target.publish(5)
    seen = held.collect(5)
    held.subscription.pause()
    target.publish(300)
    assert held.next(2.5) is None
    assert "paused" in (held.health().reason or "")
    assert held.health().pending_count < 200  # what was outstanding, and the reserve
    held.subscription.resume()
    seen += held.collect(300)
    assert seen == list(range(305))
    assert held.health().reconnects == 0


def test_datetimes_on_request(start: Start):
    """event.value has datetime objects; the JSON form and the event's time stay as they are."""
    target, face = start(client={"datetimes": True})
    target.publish(1)
    (event,) = face.plain(TOPIC, replay="earliest").batch()
    created = event.value["CreatedDate"]
    assert created.tzinfo is not None
    assert event.event_time == round(created.timestamp() * 1000)
    assert f'"CreatedDate":{event.event_time}' in event.to_json().replace(" ", "")
    assert event.facts_and_json() == (event.event_time, None, event.to_json())


# Schemas and stores.


def test_polling_does_not_ask_for_a_missing_schema_more_often(start: Start):
    """next_batch(0.05), again and again: the backoff is the subscription's, not the call's."""
    target, face = start(Timings(backoff_initial=0.4, backoff_max=3.2))
    target.publish(1)
    target.plan("refuse", times=1000, rpc="GetSchema", status="UNAVAILABLE")
    held = face.plain(TOPIC, replay="earliest")
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert held.next(0.05) is None
    assert held.health().state == "waiting_for_schema"
    (fault,) = target._plan.report()
    assert 1 <= fault["happened"] <= 12


def test_acks_are_stored_together(start: Start, tmp_path: Any):
    """A hundred acks are not a hundred flushes; the last one is stored all the same."""
    target, face = start(events_per_response=50)
    target.publish(200)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    seen = 0
    while seen < 200:
        for event in held.batch():
            event.ack()
            seen += 1
    held.close()
    assert store.positions[-1] == target.replay_id(199)
    assert len(store.positions) < 40


def test_a_file_is_never_written_in_the_loop(start: Start, tmp_path: Any):
    """The loop serves everybody, and a flush may take long. The last one is that of a drain."""
    target, face = start(events_per_response=3)
    target.publish(6)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    first, second = held.batch(), held.batch()
    first.ack()
    assert held.next(0.05) is None
    assert store.positions[-1] == target.replay_id(2)
    second.ack()
    held.close()
    assert store.positions[-1] == target.replay_id(5)
    if face.name == "asyncio":
        assert face.loop_thread not in store.threads


def test_a_failing_store_does_not_hide_what_went_wrong_first(start: Start):
    """Whatever a store raises on the way out, the handler's exception is what the caller sees."""
    target, face = start()
    target.publish(2)
    held = face.plain(TOPIC, replay_store=CountingStore(OSError("disk full")), ack="manual")
    held.batch()
    with pytest.raises(KeyError, match="of the application"):
        held.fail_inside(KeyError("of the application"))


def test_the_start_goes_with_the_store(start: Start, tmp_path: Any):
    """replay is for topics that the store does not know."""
    target, face = start()
    target.publish(4)
    with FileReplayStore(tmp_path / "positions.json") as store:
        held = face.plain(TOPIC, replay="earliest", replay_store=store)
        assert held.collect(4) == [0, 1, 2, 3]
        held.next(0.01)
        held.close()
        target.publish(1)
        again = face.plain(TOPIC, replay="earliest", replay_store=store)
        assert again.collect(1) == [4]
        again.close()


@pytest.mark.parametrize("store", ["positions.json", object()])
def test_what_is_no_store_is_refused(start: Start, store: Any):
    """A duck that cannot swim would be asked for ever."""
    _, face = start()
    with pytest.raises(ConfigurationError, match="is not a replay store"):
        face.plain(TOPIC, replay_store=store)


def test_an_ack_that_comes_late_moves_no_store(start: Start):
    """The next subscription may have gone further; and the store may be closed by now."""
    target, face = start(events_per_response=1)
    target.publish(2)
    store = CountingStore()
    held = face.plain(TOPIC, replay_store=store, ack="manual")
    first, second = held.batch(), held.batch()
    first.ack()
    held.close()
    store.error = OSError("the store is closed")
    second.ack()
    assert store.positions[-1] == target.replay_id(0)


def test_two_stores_are_refused(start: Start):
    """Nobody could say which one holds."""
    _, face = start()
    with pytest.raises(ConfigurationError, match="both stores"):
        face.plain(TOPIC, replay={}, replay_store={})


def test_a_child_of_a_fork_is_told(start: Start):
    """It has none of the threads: an error at once, where drain would wait for ever."""
    import os

    _, face = start()
    held = face.plain(TOPIC)
    reader, writer = os.pipe()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork of a process with threads
        child = os.fork()
    if child == 0:  # pragma: no cover  # in the child, which coverage does not see
        gc.disable()  # gRPC aborts where channels of other tests are freed in a child
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
