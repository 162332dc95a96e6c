"""The end: orderly from every state, bounded in time, and honest about what was not committed."""

from __future__ import annotations

import pytest

from sfpubsub.errors import CommitError
from sfpubsub.protocol.commands import CancelStream, Discard, Finish, HalfClose
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import CommitReceipt
from tests.protocol.scripted import (
    Limits,
    Script,
    answer,
    commits,
    credit,
    events,
    failure,
    keepalive,
    of,
    rid,
    streaming,
)


def test_draining_commits_waits_and_half_closes() -> None:
    """Commit what is acked, wait for the answer, half-close, await the end."""
    script = streaming()
    script.read(events(2, 3))
    script.respond(events(4))
    (request,) = commits(script.ack(2))
    script.ack(3)
    assert script.drain() == [Discard()]
    assert script.protocol.health().pending_count == 0
    (request,) = commits(script.respond(answer(request)))
    assert request.replay_id == rid(3)
    assert script.respond(answer(request)) == [HalfClose(1)]
    assert script.protocol.state is State.CLOSING

    assert script.end(None) == [Finish(None)]
    assert script.protocol.deadline() is None


def test_draining_without_anything_acked_half_closes_at_once() -> None:
    """There is nothing to wait for."""
    assert streaming().drain() == [Discard(), HalfClose(1)]


def test_what_comes_while_draining_is_not_passed() -> None:
    """Events that nobody will read are not committed; no credit is asked for."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.drain()
    assert script.respond(events(*range(3, 70))) == []
    commands = script.respond(answer(request))

    assert commits(commands) == []
    assert credit(commands) == 0
    assert script.delivered == [2]
    assert script.protocol.health().committed == rid(2)


def test_acks_that_come_while_draining_are_committed() -> None:
    """A worker that finishes meanwhile has not worked for nothing."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    script.drain()
    assert script.ack(3) == []
    (request,) = commits(script.respond(answer(request)))
    ticket, _ = script.commit()
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(3), 1234)


def test_a_refused_position_is_tried_once_more_in_the_end() -> None:
    """There will be no later one; refused again, it is said."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.respond(answer(request, "not yet"))
    (request,) = commits(script.drain())
    assert script.respond(answer(request, "not yet"))[-1] == HalfClose(1)
    script.end(None)

    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)
    assert "1 acked events" in str(script.finish.error)
    assert "not yet" in str(script.finish.error)


def test_an_answer_that_does_not_come_is_waited_for_ten_seconds() -> None:
    """Then the call is half-closed, and cancelled when it does not end; the caller is told."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    ticket, _ = script.commit()
    script.drain()
    assert script.wait(9.9) == []
    assert script.wait(0.2) == [HalfClose(1)]
    commands = script.wait(5.0)

    assert commands[0] == CancelStream(1)
    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)
    assert script.settled[ticket] is script.finish.error


def test_an_answer_while_closing_still_counts() -> None:
    """It came before the end of the stream."""
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.drain()
    script.wait(10.0)
    assert script.respond(answer(request)) == []
    script.end(None)

    assert script.finish == Finish(None)


@pytest.mark.parametrize("why", [failure(), None, failure(FailureKind.STOP)])
def test_a_stream_that_ends_while_draining_ends_the_subscription(why: object) -> None:
    """It is not opened again for a last commit; what comes again is said."""
    script = streaming()
    script.read(events(2))
    script.ack(2)
    script.drain()
    script.end(why)

    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)


def test_draining_before_the_first_response_half_closes() -> None:
    """The call may have been accepted."""
    script = Script()
    script.start()

    assert script.drain() == [Discard(), HalfClose(1)]
    assert script.respond(keepalive(1)) == []
    assert script.end(None) == [Finish(None)]


def test_draining_before_the_start_is_the_end() -> None:
    """Nothing was opened."""
    assert Script().drain() == [Discard(), Finish(None)]


def test_draining_without_a_stream_is_the_end() -> None:
    """While waiting, renewing or paused there is nobody to tell; what comes again is said."""
    waiting, renewing = streaming(), streaming()
    paused = streaming(limits=Limits(max_bytes=10))
    for script in (waiting, renewing):
        script.read(events(2))
        script.ack(2)
    waiting.end(failure())
    renewing.end(failure(FailureKind.REAUTHENTICATE))
    paused.read(events(2))
    paused.respond(events(3, 4, size=10))
    assert paused.protocol.state is State.PAUSED
    for script in (waiting, renewing, paused):
        script.drain()
        assert script.protocol.state is State.CLOSED
        assert script.finish is not None

    assert isinstance(waiting.finish.error, CommitError)  # type: ignore[union-attr]
    assert paused.finish == Finish(None)


def test_draining_twice_changes_nothing() -> None:
    """Nor does draining after the end."""
    script = streaming()
    script.drain()
    assert script.drain() == []
    script.end(None)

    assert script.drain() == []


def test_abort_ends_at_once() -> None:
    """The call is cancelled, what is unread is dropped, callers are answered; once."""
    script = streaming()
    script.read(events(2))
    script.respond(events(3))
    script.ack(2)
    ticket, _ = script.commit()
    commands = script._did(script.protocol.abort())

    assert commands[0] == CancelStream(1)
    assert of(Discard, commands)
    assert commands[-1] == Finish(None)
    assert isinstance(script.settled[ticket], CommitError)
    assert script.protocol.abort() == []


def test_abort_without_a_stream_cancels_nothing() -> None:
    """There is no call."""
    script = streaming()
    script.end(failure())

    assert script._did(script.protocol.abort()) == [Discard(), Finish(None)]


def test_acks_after_the_end_change_nothing() -> None:
    """A worker may be late."""
    script = streaming()
    script.read(events(2))
    script._did(script.protocol.abort())

    assert script.ack(2) == []
