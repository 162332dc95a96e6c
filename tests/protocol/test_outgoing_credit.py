"""Credit on a whole subscription: returned on receipt, held without room, kept alive."""

from __future__ import annotations

import pytest

from sfpubsub.config import Limits
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
    settle,
    streaming,
)

EARLIEST = StartPosition.earliest()


def test_the_first_request_asks_for_the_window_and_commits_nothing() -> None:
    """The service refuses a commit in the first request."""
    script = Script()

    assert script.start() == [OpenStream(1, 100, None)]
    assert script.protocol.health().outstanding == 100


def test_credit_is_returned_on_receipt() -> None:
    """A slow handler does not hold back the stream while there is room."""
    script = streaming(EARLIEST)

    assert credit(script.respond(events(*range(2, 52), pending=50))) == 50
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
    """Memory is bounded by bytes; the stream goes on from its position."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.respond(events(2, size=10))
    assert script.respond(events(3, size=10))[-1] == CancelStream(1)
    assert script.protocol.state is State.PAUSED
    assert "20 bytes" in str(script.protocol.health().reason)
    assert script.take() == [], "still full"

    (opened,) = of(OpenStream, script.take())
    assert opened.start is not None
    assert opened.num_requested == 100


def test_a_paused_subscription_opens_again_when_the_last_acks_make_room() -> None:
    """With everything read, only an ack can tell that there is room."""
    script = streaming(limits=Limits(max_bytes=2, max_unacked=3))
    script.respond(events(2, 3, 4, 5))
    assert script.protocol.state is State.PAUSED
    assert script.take() == []

    assert of(OpenStream, script.ack(2, 3)) == [OpenStream(2, 100, None)]


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


def test_max_unacked_holds_credit_and_an_ack_returns_it() -> None:
    """The number of events in the hands of workers is bounded."""
    script = streaming(limits=Limits(max_unacked=10))
    script.read(events(*range(2, 12), pending=90))
    assert credit(script.respond(events(*range(12, 82), pending=20))) == 0

    assert credit(script.ack(2)) == 80
    assert script.protocol.health().unacked == 9


def test_an_ack_starts_the_time_to_the_stall_again() -> None:
    """A slow worker is not a dead one."""
    script = streaming(limits=Limits(max_unacked=2))
    script.read(events(2, 3, 4))
    script.wait(290.0)
    script.ack(2)
    settle(script)
    script.respond(keepalive(90))
    script.wait(290.0)

    assert script.finish is None
