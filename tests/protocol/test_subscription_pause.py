"""Tests of `pause` and `resume`: no more events are requested, and everything else continues."""

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
    """Pause the subscription; return the resulting commands."""
    return script.did(script.protocol.pause(script.now))


def resume(script: Script) -> list:
    """Resume the subscription; return the resulting commands."""
    return script.did(script.protocol.resume(script.now))


def test_paused_subscription_requests_no_events() -> None:
    """After a pause, only the single event that keeps the stream open is requested; events
    requested earlier still arrive.
    """
    script = streaming(EARLIEST)
    assert pause(script) == []
    assert script.protocol.health().state == "streaming"
    assert script.protocol.health().reason == "paused by the application"
    assert credit(script.read(events(*range(2, 12), pending=0))) == 0

    assert script.wait(50.0) == [SendRequest(1, 1)]


def test_resume_requests_events_again() -> None:
    """Resuming requests as many events as there is room for, and clears the reason."""
    script = streaming(EARLIEST)
    pause(script)
    script.read(events(*range(2, 12), pending=0))

    assert credit(resume(script)) == 100
    assert script.protocol.health().reason is None


def test_repeated_pause_and_resume_do_nothing() -> None:
    """A second `pause` or `resume` in a row does nothing."""
    script = streaming(EARLIEST)
    script.read(events(2, pending=9))
    assert pause(script) == pause(script) == []

    assert resume(script) == resume(script) == []


def test_commits_continue_while_paused() -> None:
    """Acked positions are still committed during a pause, one commit at a time."""
    script = streaming()
    script.read(events(2, 3))
    pause(script)
    (request,) = commits(script.ack(2))
    script.respond(answer(request))
    assert script.protocol.health().committed == rid(2)

    assert [request.replay_id for request in commits(script.ack(3))] == [rid(3)]


def test_paused_stream_is_reopened_with_one_credit() -> None:
    """A stream that fails during a pause is reopened with a request for one event.

    This keeps the managed subscription's slot. Until then, the health report's reason is the
    failure.
    """
    script = streaming()
    script.read(events(2))
    pause(script)
    script.end(failure())
    assert script.protocol.health().reason == "connection reset"
    (opened,) = of(OpenStream, script.wait(1.0))

    assert opened.num_requested == 1


def test_redeliveries_during_a_pause_are_requested_at_once() -> None:
    """After a reconnect, the redelivery of acked events is requested at once, although the
    application has paused: only then can they be committed. No other event is requested.
    """
    script = streaming()
    script.read(events(*range(2, 42)))
    script.ack(*range(2, 22))
    pause(script)
    script.end(failure())
    (opened,) = of(OpenStream, script.wait(1.0))
    assert opened.num_requested == 20
    (request,) = commits(script.respond(events(*range(2, 22), pending=0)))
    assert request.replay_id == rid(21)
    script.respond(answer(request))
    assert script.protocol.health().outstanding == 0

    seqs = script.seqs[22], script.seqs[41]
    assert credit(script.did(script.protocol.acked(*seqs, script.now))) == 20
    (request,) = commits(script.respond(events(*range(22, 42), pending=0)))
    assert request.replay_id == rid(41)
    script.respond(answer(request))
    assert script.wait(49.0) == []


def test_redeliveries_are_requested_while_max_unacked_is_reached() -> None:
    """Acked events are redelivered and committed at full pace although their number leaves no room
    for others.
    """
    script = streaming(limits=Limits(max_unacked=40))
    script.read(events(*range(2, 42), pending=0))
    script.ack(*range(2, 42))
    script.end(failure())
    (opened,) = of(OpenStream, script.wait(1.0))
    assert opened.num_requested == 40
    (request,) = commits(script.respond(events(*range(2, 42), pending=0)))

    assert request.replay_id == rid(41)


def test_error_takes_precedence_over_a_pause() -> None:
    """A paused subscription that fails reports its error as the reason, not the pause."""
    script = streaming(EARLIEST, limits=Limits(max_bytes=10))
    script.read(events(2))
    script.respond(events(3, 4, size=10))
    pause(script)
    assert script.protocol.state is State.PAUSED
    script.did(script.protocol.crashed(StreamError("a fault")))

    assert script.protocol.health().reason == "a fault"


def test_pause_before_start_and_after_end() -> None:
    """If a subscription is paused before it starts, its stream opens with a request for one event.

    After its end, `pause` and `resume` do nothing.
    """
    script = Script(EARLIEST)
    assert pause(script) == []
    assert script.start() == [OpenStream(1, 1, EARLIEST)]
    script.did(script.protocol.abort())

    assert pause(script) == resume(script) == []
    assert script.protocol.state is State.CLOSED
