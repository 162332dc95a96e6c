"""Tests of the credit (requested events) of whole subscriptions, and of stalled streams."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import CommitError, StreamStalledError
from sfpubsub.protocol.commands import CancelStream, OpenStream, SendRequest
from sfpubsub.protocol.states import State
from sfpubsub.types import StartPosition
from tests.protocol.scripted import (
    TIMES,
    Script,
    answer,
    commits,
    credit,
    events,
    keepalive,
    of,
    rid,
    settle,
    streaming,
)

EARLIEST = StartPosition.earliest()


def test_first_request_asks_for_ten_events() -> None:
    """The first request asks for ten events, whose size is still unknown, and contains no commit,
    which the service would reject.
    """
    script = Script()

    assert script.start() == [OpenStream(1, 10, None)]
    assert script.protocol.health().outstanding == 10


def test_small_events_raise_the_credit_to_100() -> None:
    """Once the first response has shown that events are small, credit is raised to 100, and the
    next stream begins with 100.
    """
    script = streaming(EARLIEST)
    assert credit(script.respond(events(2, pending=9))) == 91
    assert script.protocol.health().outstanding == 100

    assert script.reopen().num_requested == 100


def test_stream_that_fails_before_its_first_response_is_followed_by_a_small_request() -> None:
    """If a stream fails before its first response, the next one begins with ten events, because the
    response may have been too large to be received.
    """
    script = streaming(EARLIEST)
    script.respond(events(2, pending=9))
    assert script.reopen().num_requested == 100

    assert script.reopen().num_requested == 10


def test_credit_for_large_events_fits_into_memory() -> None:
    """Waiting events and requested ones together stay within `max_bytes`; reading makes room for
    more.
    """
    script = streaming(EARLIEST, limits=Limits(max_bytes=1000))
    script.respond(events(2, size=50, pending=0))
    assert script.protocol.health().outstanding == 19
    script.respond(events(*range(3, 14), size=50, pending=8))
    assert script.protocol.health().outstanding == 8, "600 bytes wait, and 400 are requested"
    for _ in range(2):
        script.take()

    assert script.protocol.health().outstanding == 20


def test_credit_is_renewed_on_receipt() -> None:
    """When 50 events arrive and there is room, the client at once requests 50 more, even before the
    application reads them.
    """
    script = streaming(EARLIEST)
    script.respond(events(2, pending=9))

    assert credit(script.respond(events(*range(3, 53), pending=50))) == 50
    assert script.protocol.health().outstanding == 100


def test_credit_is_withheld_while_the_queue_is_full() -> None:
    """No events are requested while the queue is full; reading it makes room for new requests."""
    script = streaming(EARLIEST, limits=Limits(max_pending_count=60))
    assert credit(script.respond(events(*range(2, 62), pending=40))) == 0

    assert credit(script.take()) == 60


def test_one_event_is_requested_to_keep_a_full_stream_open() -> None:
    """While the queue is full, one event is requested after 50 s, because the service closes a
    stream with no pending request for 60 s.
    """
    script = streaming(EARLIEST, limits=Limits(max_pending_count=100))
    script.respond(events(*range(2, 102), pending=0))

    assert script.wait(49.9) == []
    assert script.wait(0.2) == [SendRequest(1, 1)]
    assert script.wait(100.0) == []


def test_commit_answers_do_not_delay_the_single_credit() -> None:
    """After 50 s, one event is requested to keep a full stream open.

    A commit and the response to it do not restart this time, since the service may not count them
    as activity.
    """
    script = streaming(limits=Limits(max_pending_count=40))
    script.respond(events(2, pending=99))
    script.respond(events(*range(3, 102), pending=0))
    script.take()
    script.wait(30.0)
    (request,) = commits(script.ack(2))
    script.respond(answer(request))

    assert credit(script.wait(19.0)) == 0
    assert credit(script.wait(2.0)) == 1


def test_silent_stream_is_reopened() -> None:
    """A stream without any message for 300 s is cancelled, a reason is reported, and another
    stream is opened.
    """
    script = streaming(EARLIEST)
    script.wait(299.9)
    commands = script.wait(0.2)

    assert commands == [CancelStream(1)]
    assert script.protocol.state is State.WAITING
    assert "no message" in str(script.protocol.health().reason)
    assert of(OpenStream, script.wait(1.0))


def test_stream_without_a_first_response_is_reopened() -> None:
    """A stream that receives no response at all is cancelled and reopened after 300 s."""
    script = Script(EARLIEST)
    script.start()

    assert script.wait(301.0)[0] == CancelStream(1)
    assert script.stream == 2


def test_stream_without_credit_is_not_considered_silent() -> None:
    """Without requested events the service sends nothing, so a stream can count as silent only
    after the single event that keeps it open has been requested.
    """
    script = streaming(EARLIEST, limits=Limits(max_pending_count=100))
    script.respond(events(*range(2, 102), pending=0))
    script.wait(50.0)
    assert of(CancelStream, script.wait(270.0)) == [], (
        "a keepalive may arrive 270 s after the single event was requested"
    )

    script.respond(keepalive(200, pending=1))
    assert script.protocol.state is State.STREAMING


def test_stream_pauses_at_twice_the_byte_limit() -> None:
    """If waiting events reach twice `max_bytes`, the stream is closed until reading has made room,
    and then resumes after the last position.
    """
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.read(events(2))
    assert script.protocol.health().outstanding == 9
    script.respond(events(3, size=10))
    assert script.respond(events(4, size=10))[-1] == CancelStream(1)
    assert script.protocol.state is State.PAUSED
    assert "20 bytes" in str(script.protocol.health().reason)
    assert script.protocol.deadline() is None, "only a read by the application can resume it"
    assert script.take() == [], "still full"

    (opened,) = of(OpenStream, script.take())
    assert opened.start == StartPosition.after(rid(4))
    assert opened.num_requested == 1


def test_stream_without_pending_credit_is_not_paused() -> None:
    """A stream whose credit is used up stays open even over the byte limit, since it can send
    nothing more.
    """
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.respond(events(2, size=30, pending=0))

    assert script.protocol.state is State.STREAMING
    assert script.protocol.health().outstanding == 0


def test_acked_events_are_committed_before_a_pause() -> None:
    """Before a stream is closed for lack of memory, acked events are committed; a redelivery would
    count against the org's allocation.
    """
    script = streaming(limits=Limits(max_bytes=10))
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.read(events(3))
    script.ack(3)
    assert of(CancelStream, script.respond(events(4, 5, size=10))) == []
    (request,) = commits(script.respond(answer(request)))
    assert request.replay_id == rid(3)
    commands = script.respond(answer(request))

    assert of(CancelStream, commands) == [CancelStream(1)]
    assert script.protocol.health().committed == rid(3)


def test_commit_before_a_pause_skips_the_commit_pause() -> None:
    """The commit before a stream is closed for lack of memory is sent at once, without waiting for
    `commit_pause`.
    """
    script = streaming(limits=Limits(max_bytes=10), timings=Timings(commit_pause=60.0))
    script.read(events(2))
    assert script.ack(2) == []
    commands = script.respond(events(3, 4, size=10))
    assert of(CancelStream, commands) == []
    (request,) = commits(commands)
    assert request.replay_id == rid(2)

    assert of(CancelStream, script.respond(answer(request))) == [CancelStream(1)]


def test_paused_subscription_reopens_despite_missing_acks() -> None:
    """A subscription paused for lack of memory reopens once all events have been read, even if
    missing acks leave no room.
    """
    script = streaming(limits=Limits(max_bytes=10, max_unacked=4))
    script.read(events(2))
    script.respond(events(3, 4, size=10))
    assert script.protocol.state is State.PAUSED

    assert of(OpenStream, script.take()) == [OpenStream(2, 1, None)]


@pytest.mark.parametrize("limits", [Limits(max_unacked=3), Limits(max_unacked=3, max_bytes=2)])
def test_missing_acks_end_the_subscription_with_an_error(limits: Limits) -> None:
    """If more events than `max_unacked` stay unacked for about 300 s, the subscription ends with
    `StreamStalledError`.
    """
    script = streaming(limits=limits)
    script.read(events(2, 3, 4, 5))
    for now in range(5):
        script.wait(49.0)
        if script.protocol.state is State.STREAMING:
            script.respond(keepalive(100 + now))
    script.wait(56.0)

    assert script.finish is not None
    assert isinstance(script.finish.error, StreamStalledError)
    assert "4 events" in str(script.finish.error)


def test_credit_is_limited_by_max_unacked() -> None:
    """No more than `max_unacked` events are requested. If no commit is needed, each ack makes room
    for another.
    """
    script = streaming(EARLIEST, limits=Limits(max_unacked=4))
    assert script.protocol.health().outstanding == 4
    script.read(events(2, 3, 4, 5, pending=0))
    assert script.protocol.health().outstanding == 0
    script.wait(49.0)

    assert credit(script.ack(2, 3)) == 1 + 1


def test_unconfirmed_commits_limit_the_credit() -> None:
    """Acked events whose commit is not confirmed count towards `max_unacked`, because their
    positions are kept; the confirmation makes room again.
    """
    script = streaming(limits=Limits(max_unacked=4))
    script.read(events(2, 3, 4, 5, pending=0))
    (request,) = commits(script.ack(2))
    assert credit(script.ack(3, 4, 5)) == 0
    assert script.protocol.health().unacked == 0

    assert credit(script.respond(answer(request))) == 1


def test_commits_that_fail_end_the_subscription_and_missing_acks_do_not() -> None:
    """While all events are acked and commits fail, no more than `max_unacked` events are kept, and
    the commit budget ends the subscription, never the time limit for acks.
    """
    script = streaming(limits=Limits(max_unacked=4))
    number = 1
    while script.finish is None:
        number += 1
        script.read(events(number, pending=0))
        out = script.ack(number)
        for request in commits(out):
            out += script.respond(answer(request, "the store is down"))
        while script.finish is None and not script.protocol.health().outstanding:
            for request in commits(script.wait(10.0)):
                script.respond(answer(request, "the store is down"))

    assert isinstance(script.finish.error, CommitError)
    # Single events that keep the stream open were requested every 50 s.
    assert number <= 1 + 4 + TIMES.commit_budget / TIMES.reserve + 1


def test_one_missing_ack_stops_the_credit_and_is_reported() -> None:
    """If one event is never acked, events behind it that are acked count towards `max_unacked`,
    because their positions are kept; after 300 s an error reports the missing ack.
    """
    script = streaming(limits=Limits(max_unacked=4))
    script.read(events(2, 3, 4, 5, pending=0))
    assert credit(script.ack(3, 4, 5)) == 0
    for number in range(6, 20):
        script.wait(50.0)
        if script.finish is not None:
            break
        script.read(events(number, pending=0))
        script.ack(number)

    assert script.finish is not None
    assert isinstance(script.finish.error, StreamStalledError)
    assert "1 of the last 10 events" in str(script.finish.error)


def test_slow_handler_within_the_limit_does_not_stall() -> None:
    """A handler that spends an hour on no more than `max_unacked` events neither counts as stalled
    nor causes the stream to be reopened.
    """
    script = streaming(EARLIEST, limits=Limits(max_unacked=4))
    script.read(events(2, 3, 4, 5, pending=0))
    for number in range(60):
        script.wait(60.0)
        script.respond(keepalive(100 + number, pending=1))

    assert script.finish is None
    assert script.stream == 1


def test_ack_restarts_the_time_until_a_stall() -> None:
    """A worker that acks one event within 300 s gets another 300 s before the subscription counts
    as stalled.
    """
    script = streaming(limits=Limits(max_unacked=2))
    script.read(events(2, 3, 4, 5))
    script.wait(290.0)
    script.ack(2)
    settle(script)
    script.respond(keepalive(90))
    script.wait(290.0)

    assert script.finish is None
