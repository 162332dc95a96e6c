"""The driver: threads, queue and waiting, against a service that does what the test says."""

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
    return tuple(
        RawEvent(f"id{index}", "schema", b"xx", ReplayId(b"\x00%d" % index))
        for index in range(first, first + count)
    )


class Harness:
    """A driver over a MemoryTransport."""

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
        """Wait for the next arrival as a face does; raise what ended the subscription."""
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
        arrival = self.next()
        assert arrival is not None
        self.driver.accept(arrival)
        assert self.driver.peek() is not arrival
        return [event.id for event in arrival.batch.events]


@pytest.fixture
def harness():
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
    """One queue item a response; credit goes back while nobody has read yet."""
    h = harness()
    for first in (0, 50):
        h.call.respond(Response(events(first, 50), pending=50 - first // 2))
    assert h.call.next_request().num_requested == 100
    assert h.take() == [f"id{index}" for index in range(50)]
    assert h.take()[0] == "id50"


def test_a_full_queue_stops_the_credit_until_it_is_read(harness):
    """Back-pressure reaches the stream, and reading releases it."""
    h = harness(limits=Limits(max_pending_count=60))
    h.call.respond(Response(events(0, 100), pending=0))
    with pytest.raises(queue.Empty):
        h.call.next_request(timeout=0.05)
    h.take()
    assert h.call.next_request().num_requested == 60


def test_waiting_returns_none_after_its_timeout(harness):
    """Waiting is bounded by the caller."""
    h = harness()
    assert h.next(0.01) is None
    assert not h.driver.over


def test_a_batch_stays_the_next_one_until_it_is_accepted(harness):
    """Whoever is interrupted between looking and taking loses nothing, and takes it once."""
    h = harness()
    h.call.respond(Response(events(0, 3), pending=97))
    first = h.next()
    assert h.next() is first
    assert h.driver.health().pending_count == 3
    h.driver.accept(first)
    h.driver.accept(first)
    assert h.driver.health().pending_count == 0
    assert h.driver.peek() is None


def test_a_callback_that_raises_takes_no_thread_with_it(harness, caplog):
    """on_gap is the application's: its mistake is logged, and the stream goes on."""
    h = harness(managed=False, on_gap=lambda gap: 1 / 0, start=StartPosition.latest())
    h.call.end(DOWN)
    second = h.transport.next_call()
    second.respond(Response(events(0, 1), pending=99))
    assert h.take() == ["id0"]
    assert "the on_gap callback of Orders raised" in caplog.text


def test_what_was_received_is_handed_out_before_the_failure(harness):
    """A failure does not swallow events that had arrived, where their position is ours to keep."""
    h = harness(managed=False)
    h.call.respond(Response(events(0, 1), pending=99))
    h.call.end(Failure(FailureKind.STOP, StreamError("the end")))
    until(lambda: h.driver.over)
    assert h.take() == ["id0"]
    with pytest.raises(StreamError, match="the end"):
        h.next()


def test_a_broken_stream_is_opened_again(harness):
    """The alarm opens the next stream; responses of the old one no longer count."""
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
    """Counts how often a deadline is set."""

    sets = 0

    def set(self, *deadline):
        self.sets += 1
        super().set(*deadline)


def test_a_deadline_that_moves_back_with_each_response_costs_no_alarm(harness):
    """Its lock, and the thread that it wakes, are not for each response."""
    h = harness(alarm=CountedAlarm(time.monotonic), start=StartPosition.earliest(), managed=False)
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    before = h.alarm.sets
    for first in range(1, 90):
        h.call.respond(Response(events(first, 1), pending=99))
        h.take()
    assert h.alarm.sets == before


def test_a_deadline_that_has_moved_back_is_kept_all_the_same(harness):
    """The alarm that was set first rings in vain, and is set again for the silence that counts."""
    silence = 2.5  # so long that a busy machine does not make it by itself
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


def test_an_expired_session_is_renewed_and_the_stream_goes_on(harness):
    """The renewal runs beside the stream, never under the lock."""
    h = harness()
    h.call.end(EXPIRED)
    second = h.transport.next_call()
    assert len(h.renewals) == 1
    second.respond(Response(events(0, 1), pending=99))
    assert h.take() == ["id0"]


def test_a_session_that_cannot_be_renewed_ends_the_subscription(harness):
    """The application reads why."""

    def renew(_headers):
        raise AuthenticationError("no credentials")

    h = harness(renew=renew)
    h.call.end(EXPIRED)
    with pytest.raises(AuthenticationError, match="no credentials"):
        h.next()


def test_a_fault_of_ours_ends_the_subscription_instead_of_silencing_it(harness, caplog):
    """U2: a thread that dies takes the subscription with it, loudly."""
    h = harness()
    h.transport.open_stream = None  # the next stream cannot even be called
    h.call.end(DOWN)
    with pytest.raises(StreamError, match="internal error"):
        h.next()
    assert "internal error on Orders" in caplog.text


def test_a_commit_waits_for_its_answer(harness):
    """And gets what the service said."""
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
    """The caller's timeout passes; the subscription goes on."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    h.driver.ack(1, 1)
    with pytest.raises(CommitError, match="not confirmed within"):
        h.driver.commit(0.01)
    assert not h.driver.over


def test_a_drain_half_closes_and_waits_for_the_end(harness):
    """In order: half-close, the service's end, then the end for everyone who waits."""
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


def test_a_drain_before_the_first_response_ends_as_well(harness):
    """A service that never answers cannot hold the application."""
    h = harness(timings=Timings(close_timeout=0.05))
    h.driver.drain()
    assert h.call.cancelled or h.call.next_request() is None


def test_an_abort_wakes_everyone(harness):
    """A thread that waits for events, and one that waits for a commit, are let go."""
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


def test_acks_after_the_end_change_nothing(harness):
    """Workers may finish late."""
    h = harness()
    h.call.respond(Response(events(0, 1), pending=99))
    h.take()
    h.driver.abort()
    h.driver.ack(1, 1)


def test_nothing_of_a_subscription_stays_behind(harness):
    """Threads of ended calls end."""
    h = harness()
    h.driver.abort()
    h.driver.join(PATIENCE)
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("sfpubsub-read")]


class CountedClock:
    """Steady time that counts how often it was asked: once for each turn of the recipe."""

    asked = 0

    def __call__(self):
        self.asked += 1
        return time.monotonic()


@pytest.mark.parametrize("managed", [False, True])
def test_a_response_takes_two_turns_of_the_recipe_and_no_wake_up(harness, managed):
    """One when it comes and one when it is taken, one more for its ack; nobody waits, so no bell.

    A turn is a lock, a look for deadlines and for what to send; a wake-up is a switch of threads.
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
    assert clock.asked - before == 40 * (3 if managed else 2)
