"""The application asks for a pause: no more events, and everything else goes on."""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.errors import StreamError
from sfpubsub.protocol.commands import OpenStream, SendRequest
from sfpubsub.protocol.states import State
from sfpubsub.types import StartPosition
from tests.protocol.scripted import (
    Script,
    answer,
    commits,
    credit,
    events,
    failure,
    of,
    rid,
    streaming,
)

EARLIEST = StartPosition.earliest()


def pause(script: Script) -> list:
    return script._did(script.protocol.pause(script.now))


def resume(script: Script) -> list:
    return script._did(script.protocol.resume(script.now))


def test_a_paused_subscription_asks_for_no_more() -> None:
    """What was asked for still comes; then only the one that keeps the stream open."""
    script = streaming(EARLIEST)
    assert pause(script) == []
    assert script.protocol.health().state == "streaming"
    assert script.protocol.health().reason == "paused by the application"
    assert credit(script.read(events(*range(2, 12), pending=0))) == 0

    assert script.wait(50.0) == [SendRequest(1, 1)]


def test_resuming_asks_for_what_there_is_room_for() -> None:
    """And says nothing of a pause any more."""
    script = streaming(EARLIEST)
    pause(script)
    script.read(events(*range(2, 12), pending=0))

    assert credit(resume(script)) == 100
    assert script.protocol.health().reason is None


def test_pausing_and_resuming_twice_changes_nothing() -> None:
    """Whoever is not sure may say it again."""
    script = streaming(EARLIEST)
    script.read(events(2, pending=9))
    assert pause(script) == pause(script) == []

    assert resume(script) == resume(script) == []


def test_commits_go_on_while_paused() -> None:
    """What is acked is committed, or it would come again."""
    script = streaming()
    script.read(events(2, 3))
    pause(script)
    (request,) = commits(script.ack(2))
    script.respond(answer(request))
    assert script.protocol.health().committed == rid(2)

    assert [request.replay_id for request in commits(script.ack(3))] == [rid(3)]


def test_a_stream_that_breaks_while_paused_is_opened_with_one_credit() -> None:
    """A managed subscription keeps its slot, and the reason of the failure is told first."""
    script = streaming()
    script.read(events(2))
    pause(script)
    script.end(failure())
    assert script.protocol.health().reason == "connection reset"
    (opened,) = of(OpenStream, script.wait(1.0))

    assert opened.num_requested == 1


def test_a_failure_is_told_rather_than_a_pause() -> None:
    """Of a subscription that has ended, only the error counts."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.read(events(2))
    script.respond(events(3, 4, size=10))
    pause(script)
    assert script.protocol.state is State.PAUSED
    script._did(script.protocol.crashed(StreamError("a fault")))

    assert script.protocol.health().reason == "a fault"


def test_pausing_before_the_start_and_after_the_end_does_no_harm() -> None:
    """It begins paused; and nothing follows the end."""
    script = Script(EARLIEST)
    assert pause(script) == []
    assert script.start() == [OpenStream(1, 1, EARLIEST)]
    script._did(script.protocol.abort())

    assert pause(script) == resume(script) == []
    assert script.protocol.state is State.CLOSED
