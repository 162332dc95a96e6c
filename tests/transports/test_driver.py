"""Tests of the driver's threads, queue and waiting; the test acts as the service."""

from __future__ import annotations

import gc
import queue
import threading
import time
from dataclasses import replace

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import (
    AuthenticationError,
    CommitError,
    SessionExpiredError,
    StreamError,
    StreamUnavailableError,
)
from sfpubsub.protocol.events import CommitAnswer, Failure, FailureKind, Response
from sfpubsub.protocol.subscription import SubscriptionProtocol
from sfpubsub.transports.alarm import AlarmClock
from sfpubsub.transports.base import Target
from sfpubsub.transports.driver import StreamDriver
from sfpubsub.transports.mailbox import Arrival
from sfpubsub.transports.memory import MemoryTransport
from sfpubsub.types import RawEvent, ReplayId, StartPosition

from ..conftest import PATIENCE, QUICK, until

EXPIRED = Failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired"))
DOWN = Failure(FailureKind.RETRY, StreamUnavailableError("down"))


def events(first: int, count: int) -> tuple[RawEvent, ...]:
    """Return consecutive events with the ids id0, id1 and so on."""
    return tuple(
        RawEvent(f"id{index}", "schema", b"xx", ReplayId(b"\x00%d" % index))
        for index in range(first, first + count)
    )


class Harness:
    """A driver over a MemoryTransport, with the gaps and renewals it reported."""

    def __init__(
        self,
        *,
        managed=True,
        limits=None,
        timings=QUICK,
        renew=None,
        on_gap=None,
        start=None,
        alarm=None,
        clock=time.monotonic,
    ):
        self.transport = MemoryTransport()
        self.alarm = alarm or AlarmClock(time.monotonic)
        self.gaps = []
        self.renewals = []
        start = None if managed else start or StartPosition.earliest()
        self.driver = StreamDriver(
            SubscriptionProtocol("Orders", start=start, limits=limits, timings=timings),
            self.transport,
            Target("Orders", managed),
            alarm=self.alarm,
            renew=renew or self.renewals.append,
            on_gap=on_gap or self.gaps.append,
            jitter=lambda: 0.5,
            clock=clock,
        )
        self.driver.start()
        self.call = self.transport.next_call()

    def next(self, timeout: float = PATIENCE) -> Arrival | None:
        """Return the next arrival without accepting it, waiting for it as a subscription does.

        Return None after the timeout or a normal end; raise the error that ended the subscription.
        """
        deadline = time.monotonic() + timeout
        while True:
            changes, over = self.driver.changes, self.driver.over
            arrival = self.driver.peek()
            if arrival is not None:
                return arrival
            if over:
                self.driver.raise_failure()
                return None
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            self.driver.wait(changes, rest)

    def take(self) -> list[str]:
        """Wait for the next batch, accept it, and return the ids of its events."""
        arrival = self.next()
        assert arrival is not None
        self.driver.accept(arrival)
        assert self.driver.peek() is not arrival
        return [event.id for event in arrival.batch.events]


@pytest.fixture
def harness():
    """Return a function that creates a Harness, and stop its driver after the test."""
    made = []

    def make(**options):
        made.append(Harness(**options))
        return made[-1]

    yield make
    for each in made:
        each.driver.abort()
        each.driver.join(PATIENCE)
        each.alarm.close()


def test_responses_reach_the_application_in_order(harness):
    """Each response becomes one batch, in order.

    More events are requested before any batch is read.
    """
    h = harness()
    for first in (0, 50):
        h.call.respond(Response(events(first, 50), pending=50 - first // 2))
    assert h.call.next_request().num_requested == 100
    assert h.take() == [f"id{index}" for index in range(50)]
    assert h.take()[0] == "id50"


def test_no_events_are_requested_while_the_queue_is_full(harness):
    """No more events are requested while the queue is full; reading a batch resumes the
    requests.
    """
    h = harness(limits=Limits(max_pending_count=60))
    h.call.respond(Response(events(0, 100), pending=0))
    with pytest.raises(queue.Empty):
        h.call.next_request(timeout=0.05)
    h.take()
    assert h.call.next_request().num_requested == 60


def test_waiting_returns_none_after_its_timeout(harness):
    """Waiting for a batch ends after the caller's timeout, and the subscription continues."""
    h = harness()
    assert h.next(0.01) is None
    assert not h.driver.over


def test_a_batch_stays_first_in_the_queue_until_accepted(harness):
    """A batch stays first in the queue until accepted, so an interrupted reader loses nothing.

    Accepting it again has no effect.
    """
    h = harness()
    h.call.respond(Response(events(0, 3), pending=97))
    first = h.next()
    assert h.next() is first
    assert h.driver.health().pending_count == 3
    h.driver.accept(first)
    h.driver.accept(first)
    assert h.driver.health().pending_count == 0
    assert h.driver.peek() is None


def test_an_on_gap_callback_that_raises_does_not_end_the_stream(harness, caplog):
    """If the application's on_gap callback raises, the error is logged and events continue to
    arrive.
    """
    h = harness(managed=False, on_gap=lambda gap: 1 / 0, start=StartPosition.latest())
    h.call.end(DOWN)
    second = h.transport.next_call()
    second.respond(Response(events(0, 1), pending=99))
    assert h.take() == ["id0"]
    assert "the on_gap callback of Orders raised" in caplog.text


def test_received_events_are_delivered_before_a_failure(harness):
    """In a plain subscription, events that arrived before a failure are delivered first."""
    h = harness(managed=False)
    h.call.respond(Response(events(0, 1), pending=99))
    h.call.end(Failure(FailureKind.STOP, StreamError("the end")))
    until(lambda: h.driver.over)
    assert h.take() == ["id0"]
    with pytest.raises(StreamError, match="the end"):
        h.next()


def test_a_broken_stream_is_reopened(harness):
    """After a break, a new stream is opened, and a repeated event is counted as redelivered."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.call.end(DOWN)
    second = h.transport.next_call()
    assert second.opening.stream == 2
    second.respond(Response(events(0, 2), pending=98))
    assert h.take() == ["id0"]
    assert h.take() == ["id1"]
    assert h.driver.health().redelivered == 1


class CountedAlarm(AlarmClock):
    """An AlarmClock that counts how often a deadline is set."""

    sets = 0

    def set(self, *deadline):
        self.sets += 1
        super().set(*deadline)


def test_a_response_that_postpones_a_deadline_does_not_set_the_alarm(harness):
    """Each response postpones the silence deadline without setting the alarm again.

    That would cost a lock, and perhaps a wake-up, for each response.
    """
    h = harness(alarm=CountedAlarm(time.monotonic), start=StartPosition.earliest(), managed=False)
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    before = h.alarm.sets
    for first in range(1, 90):
        h.call.respond(Response(events(first, 1), pending=99))
        h.take()
    assert h.alarm.sets == before


def test_a_postponed_deadline_is_met(harness):
    """The stream is reopened only after a full period of silence since the last response."""
    silence = 2.5  # long enough not to pass by chance on a busy machine
    timings = replace(QUICK, keepalive=silence, keepalive_margin=0.0)
    h = harness(timings=timings, managed=False)
    for first in range(3):
        h.call.respond(Response(events(first, 1), pending=99))
        h.take()
        last = time.monotonic()
        threading.Event().wait(0.1)
    assert h.transport.next_call() is not h.call
    assert time.monotonic() >= last + silence
    until(lambda: h.call.cancelled)


def test_an_expired_session_is_renewed_and_the_stream_resumes(harness):
    """An expired session is renewed once, and the next stream delivers events."""
    h = harness()
    h.call.end(EXPIRED)
    second = h.transport.next_call()
    assert len(h.renewals) == 1
    second.respond(Response(events(0, 1), pending=99))
    assert h.take() == ["id0"]


def test_a_session_that_cannot_be_renewed_ends_the_subscription(harness):
    """If a session cannot be renewed, the application receives the error of the renewal."""

    def renew(_headers):
        raise AuthenticationError("no credentials")

    h = harness(renew=renew)
    h.call.end(EXPIRED)
    with pytest.raises(AuthenticationError, match="no credentials"):
        h.next()


def test_an_internal_error_is_raised_and_logged(harness, caplog):
    """If a bug makes a driver thread fail, the reader receives an error, which is also logged."""
    h = harness()
    h.transport.open_stream = None  # opening the next stream fails with a TypeError
    h.call.end(DOWN)
    with pytest.raises(StreamError, match="internal error"):
        h.next()
    assert "Orders: internal error" in caplog.text


def test_a_commit_waits_for_its_answer(harness):
    """commit() waits for the service's response and returns a receipt with its contents."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    assert h.call.next_request().num_requested == 91
    h.driver.ack(1, 1)
    request = h.call.next_request()
    assert bytes(request.commit.replay_id) == b"\x000"
    answer = CommitAnswer(request.commit.request_id, request.commit.replay_id, None, 42)
    threading.Timer(0.01, lambda: h.call.respond(Response(commit=answer))).start()
    receipt = h.driver.commit(PATIENCE)
    assert receipt.process_time == 42


def test_an_unanswered_commit_is_an_error_for_its_caller_only(harness):
    """If a commit is not confirmed in time, commit() raises, but the subscription continues."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    h.driver.ack(1, 1)
    with pytest.raises(CommitError, match="not confirmed within"):
        h.driver.commit(0.01)
    assert not h.driver.over


def test_a_drain_half_closes_the_stream_and_waits_for_its_end(harness):
    """drain() half-closes the stream, and the subscription is over once the service ends it."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    until(lambda: h.driver.health().state == "streaming")
    waiter = threading.Thread(target=h.driver.drain)
    waiter.start()
    assert h.call.next_request().num_requested == 91
    assert h.call.next_request() is None
    h.call.end()
    waiter.join(PATIENCE)
    assert h.driver.over
    assert h.next() is None


def test_a_drain_ends_without_any_response(harness):
    """drain() ends after close_timeout even if the service never responds."""
    h = harness(timings=Timings(close_timeout=0.05))
    h.driver.drain()
    assert h.call.cancelled or h.call.next_request() is None


def test_an_abort_wakes_all_waiting_threads(harness):
    """abort() wakes a thread that waits for events and one that waits for a commit."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    h.driver.ack(1, 1)
    outcomes = queue.SimpleQueue()

    def commit():
        try:
            h.driver.commit(PATIENCE)
        except CommitError as error:
            outcomes.put(str(error))

    threads = [
        threading.Thread(target=commit),
        threading.Thread(target=lambda: outcomes.put(h.next())),
    ]
    for thread in threads:
        thread.start()
    until(lambda: h.driver._tickets)
    h.driver.abort()
    for thread in threads:
        thread.join(PATIENCE)
    assert h.call.cancelled
    assert {outcomes.get(), outcomes.get()} == {
        None,
        "the subscription Orders was closed before the commit was answered",
    }


def test_acks_after_the_end_are_ignored(harness):
    """Workers may ack events after the subscription has ended without causing an error."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    h.driver.abort()
    h.driver.ack(1, 1)


def test_an_aborted_subscription_leaves_no_threads(harness):
    """No reader thread is left after abort() and join()."""
    h = harness()
    h.driver.abort()
    h.driver.join(PATIENCE)
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("sfpubsub-read")]


class CountedClock:
    """A monotonic clock that counts its calls.

    The driver calls it once whenever it takes its lock to look for due deadlines and for messages
    to send.
    """

    asked = 0

    def __call__(self):
        self.asked += 1
        return time.monotonic()


@pytest.mark.parametrize("managed", [False, True])
def test_a_response_is_at_most_three_inputs(harness, managed):
    """A response is one input of the protocol; so is its delivery and, in a managed subscription,
    its ack.

    If no thread is waiting, none is woken.
    """
    clock = CountedClock()
    h = harness(managed=managed, clock=clock, start=None if managed else StartPosition.earliest())
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    before = clock.asked
    for first in range(1, 41):
        h.driver._received(1, Response(events(first, 1), pending=99))
        assert not h.driver._mailbox._waiting
        h.driver.accept(h.driver.peek())
        if managed:
            h.driver.ack(first + 1, first + 1)
    h.driver.health()  # is an input itself, after all others
    assert clock.asked - before <= 40 * (3 if managed else 2) + 2
