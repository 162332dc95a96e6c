"""Credit on a whole subscription: returned on receipt, held without room, kept alive."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits, Timings
from sfpubsub.errors import StreamStalledError
from sfpubsub.protocol.commands import CancelStream, OpenStream, SendRequest
from sfpubsub.protocol.states import State
from sfpubsub.types import StartPosition
from tests.protocol.scripted import (
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


def test_the_first_request_asks_for_some_and_commits_nothing() -> None:
    """The size of events is not known yet; a commit in the first request is refused."""
    script = Script()

    assert script.start() == [OpenStream(1, 10, None)]
    assert script.protocol.health().outstanding == 10


def test_small_events_open_the_whole_window_at_once() -> None:
    """From the first response on; the next stream begins with all of it."""
    script = streaming(EARLIEST)
    assert credit(script.respond(events(2, pending=9))) == 91
    assert script.protocol.health().outstanding == 100

    assert script.reopen().num_requested == 100


def test_large_events_are_asked_for_as_they_fit() -> None:
    """What waits to be read and what is on its way stay within the bound."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=1000))
    script.respond(events(2, size=50, pending=0))
    assert script.protocol.health().outstanding == 19
    script.respond(events(*range(3, 14), size=50, pending=8))
    assert script.protocol.health().outstanding == 8, "600 bytes wait, and 400 are on their way"
    for _ in range(2):
        script.take()

    assert script.protocol.health().outstanding == 20


def test_credit_is_returned_on_receipt() -> None:
    """A slow handler does not hold back the stream while there is room."""
    script = streaming(EARLIEST)
    script.respond(events(2, pending=9))

    assert credit(script.respond(events(*range(3, 53), pending=50))) == 50
    assert script.protocol.health().outstanding == 100


def test_credit_is_held_while_the_queue_is_full_and_returned_with_room() -> None:
    """Memory is bounded by events."""
    script = streaming(EARLIEST, limits=Limits(max_pending_count=60))
    assert credit(script.respond(events(*range(2, 62), pending=40))) == 0

    assert credit(script.take()) == 60


def test_a_held_stream_is_kept_open_by_one_credit() -> None:
    """The service closes a stream that has nothing pending for 60 s."""
    script = streaming(EARLIEST, limits=Limits(max_pending_count=100))
    script.respond(events(*range(2, 102), pending=0))

    assert script.wait(49.9) == []
    assert script.wait(0.2) == [SendRequest(1, 1)]
    assert script.wait(100.0) == []


def test_commit_answers_do_not_put_off_the_reserve() -> None:
    """Whether commits count for the 60 s is unknown, so they do not."""
    script = streaming(limits=Limits(max_pending_count=40))
    script.respond(events(2, pending=99))
    script.respond(events(*range(3, 102), pending=0))
    script.take()
    script.wait(30.0)
    (request,) = commits(script.ack(2))
    script.respond(answer(request))

    assert credit(script.wait(19.0)) == 0
    assert credit(script.wait(2.0)) == 1


def test_a_silent_stream_is_opened_again() -> None:
    """Keepalive interval plus margin without a message: the connection is dead."""
    script = streaming(EARLIEST)
    script.wait(299.9)
    commands = script.wait(0.2)

    assert commands == [CancelStream(1)]
    assert script.protocol.state is State.WAITING
    assert "no message" in str(script.protocol.health().reason)
    assert of(OpenStream, script.wait(1.0))


def test_a_call_that_brings_nothing_is_opened_again() -> None:
    """Also before its first response."""
    script = Script(EARLIEST)
    script.start()

    assert script.wait(301.0)[0] == CancelStream(1)
    assert script.stream == 2


def test_the_watchdog_rests_while_nothing_is_outstanding() -> None:
    """Without credit the service sends nothing; its time begins with the reserve."""
    script = streaming(EARLIEST, limits=Limits(max_pending_count=100))
    script.respond(events(*range(2, 102), pending=0))
    script.wait(50.0)
    assert of(CancelStream, script.wait(270.0)) == [], "a keepalive may take 270 s from the reserve"

    script.respond(keepalive(200, pending=1))
    assert script.protocol.state is State.STREAMING


def test_twice_the_bytes_close_the_stream_until_there_is_room() -> None:
    """Memory is bounded also when events suddenly grow; the stream goes on from its position."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.read(events(2))
    assert script.protocol.health().outstanding == 9
    script.respond(events(3, size=10))
    assert script.respond(events(4, size=10))[-1] == CancelStream(1)
    assert script.protocol.state is State.PAUSED
    assert "20 bytes" in str(script.protocol.health().reason)
    assert script.protocol.deadline() is None, "nobody is waited for but the application"
    assert script.take() == [], "still full"

    (opened,) = of(OpenStream, script.take())
    assert opened.start == StartPosition.after(rid(4))
    assert opened.num_requested == 1


def test_a_stream_that_owes_nothing_is_not_closed() -> None:
    """All that was asked for has come: closing it would only bring it again."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.respond(events(2, size=30, pending=0))

    assert script.protocol.state is State.STREAMING
    assert script.protocol.health().outstanding == 0


def test_what_is_acked_is_committed_before_a_stream_is_closed() -> None:
    """Or it would be delivered again, at the cost of the org's allocation."""
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


def test_a_stream_about_to_be_closed_does_not_wait_to_commit() -> None:
    """The distance between commits is no reason to have events delivered again."""
    script = streaming(limits=Limits(max_bytes=10), timings=Timings(commit_pause=60.0))
    script.read(events(2))
    assert script.ack(2) == []
    commands = script.respond(events(3, 4, size=10))
    assert of(CancelStream, commands) == []
    (request,) = commits(commands)
    assert request.replay_id == rid(2)

    assert of(CancelStream, script.respond(answer(request))) == [CancelStream(1)]


def test_a_paused_subscription_opens_again_for_its_acks() -> None:
    """With everything read there is room for bytes; missing acks are no reason to stay away."""
    script = streaming(limits=Limits(max_bytes=10, max_unacked=4))
    script.read(events(2))
    script.respond(events(3, 4, size=10))
    assert script.protocol.state is State.PAUSED

    assert of(OpenStream, script.take()) == [OpenStream(2, 1, None)]


@pytest.mark.parametrize("limits", [Limits(max_unacked=3), Limits(max_unacked=3, max_bytes=2)])
def test_acks_that_never_come_are_an_error(limits: Limits) -> None:
    """Standing still in silence is worse, also while paused."""
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


def test_no_more_is_asked_for_than_may_be_unacked() -> None:
    """Less than a response: the application gets so many, and acks make room for the next."""
    script = streaming(limits=Limits(max_unacked=4))
    assert script.protocol.health().outstanding == 4
    script.read(events(2, 3, 4, 5, pending=0))
    assert script.protocol.health().outstanding == 0
    script.wait(49.0)

    assert credit(script.ack(2, 3)) == 1 + 1


def test_a_slow_handler_that_breaks_no_rule_is_no_stall() -> None:
    """It has what it was given, and takes an hour over it; acks come when it asks for more."""
    script = streaming(EARLIEST, limits=Limits(max_unacked=4))
    script.read(events(2, 3, 4, 5, pending=0))
    for number in range(60):
        script.wait(60.0)
        script.respond(keepalive(100 + number, pending=1))

    assert script.finish is None
    assert script.stream == 1


def test_an_ack_starts_the_time_to_the_stall_again() -> None:
    """A slow worker is not a dead one."""
    script = streaming(limits=Limits(max_unacked=2))
    script.read(events(2, 3, 4, 5))
    script.wait(290.0)
    script.ack(2)
    settle(script)
    script.respond(keepalive(90))
    script.wait(290.0)

    assert script.finish is None
