"""Tests of draining and aborting: last commits, time limits, and errors about uncommitted acks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sfpubsub.errors import AuthenticationError, CommitError
from sfpubsub.protocol.commands import CancelStream, Discard, Finish, HalfClose, OpenStream
from sfpubsub.protocol.events import Failure, FailureKind, Response
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


def test_drain_commits_then_half_closes() -> None:
    """Draining drops unread batches, commits what is acked, half-closes the stream after the
    response to the commit, and finishes when the stream ends.
    """
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


def test_drain_without_acks_half_closes_at_once() -> None:
    """Without anything to commit, draining half-closes the stream at once."""
    assert streaming().drain() == [Discard(), HalfClose(1)]


def test_events_received_while_draining_are_not_committed() -> None:
    """Events that arrive during draining are neither delivered nor committed, and no further ones
    are requested.
    """
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


def test_acks_while_draining_are_committed() -> None:
    """An event that is acked during draining is committed too."""
    script = streaming()
    script.read(events(2, 3))
    (request,) = commits(script.ack(2))
    script.drain()
    assert script.ack(3) == []
    (request,) = commits(script.respond(answer(request)))
    ticket, _ = script.commit()
    script.respond(answer(request))

    assert script.settled[ticket] == CommitReceipt(rid(3), 1234)


def test_drain_retries_a_rejected_commit_once() -> None:
    """Draining sends a rejected position again; if it is rejected again, the subscription ends with
    `CommitError`, which reports the number of acked events and the reason.
    """
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


def test_drain_waits_ten_seconds_for_a_commit_answer() -> None:
    """Draining waits 10 s for the response to a commit, half-closes the stream, and cancels it if
    it does not end.

    The caller of `commit` gets the same error as the subscription.
    """
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


def test_commit_answer_after_the_half_close_is_accepted() -> None:
    """A response to a commit that arrives after the half-close confirms the commit, so the
    subscription ends without an error.
    """
    script = streaming()
    script.read(events(2))
    (request,) = commits(script.ack(2))
    script.drain()
    script.wait(10.0)
    assert script.respond(answer(request)) == []
    script.end(None)

    assert script.finish == Finish(None)


@pytest.mark.parametrize("why", [failure(), None, failure(FailureKind.STOP)])
def test_stream_end_while_draining_is_a_commit_error(why: object) -> None:
    """If the stream ends before the response to the last commit, the subscription ends with
    `CommitError`.
    """
    script = streaming()
    script.read(events(2))
    script.ack(2)
    script.drain()
    script.end(why)

    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)


def test_drain_before_the_first_response_half_closes() -> None:
    """Draining half-closes a stream that has not responded yet, because the service may already
    have accepted it.
    """
    script = Script()
    script.start()

    assert script.drain() == [Discard(), HalfClose(1)]
    assert script.respond(keepalive(1)) == []
    assert script.end(None) == [Finish(None)]


def test_drain_before_the_start_finishes() -> None:
    """Draining a subscription that was not started ends it without a stream."""
    assert Script().drain() == [Discard(), Finish(None)]


def broken(why: Failure | None = None) -> Script:
    """Return a Script whose stream has failed, with two events acked but not committed."""
    script = streaming()
    script.read(events(2, 3))
    script.ack(2, 3)
    script.end(why or failure())
    return script


def paused() -> Script:
    """Return a Script with two acked events and one commit in flight, whose stream was closed to
    limit memory.
    """
    script = streaming(limits=Limits(max_bytes=10))
    script.read(events(2))
    script.read(events(3))
    script.respond(events(4, 5, size=10))
    script.ack(2, 3)
    assert script.protocol.state is State.PAUSED
    return script


@pytest.mark.parametrize("make", [broken, paused], ids=["waiting", "paused"])
def test_drain_without_a_stream_opens_one_to_commit(make: Callable[[], Script]) -> None:
    """If no stream is open, draining opens one on which only the acked events are redelivered,
    commits them, and then half-closes it.
    """
    script = make()
    assert script.drain() == [Discard(), OpenStream(2, 2, None)]
    (request,) = commits(script.respond(events(2, 3)))
    assert request.replay_id == rid(3)
    assert script.respond(answer(request)) == [HalfClose(2)]
    assert script.end(None) == [Finish(None)]
    assert script.gaps == []


def test_drain_waits_for_a_session_to_commit() -> None:
    """If the session is being renewed, draining waits for the renewal, opens a stream, and commits
    what is acked.
    """
    script = broken(failure(FailureKind.REAUTHENTICATE))
    assert script.drain() == [Discard()]
    assert script.protocol.state is State.SAVING
    (opened,) = script.did(script.protocol.session_renewed(script.now))
    assert opened == OpenStream(2, 2, None)
    (request,) = commits(script.respond(events(2, 3)))
    script.respond(answer(request))

    assert script.end(None) == [Finish(None)]


def test_drain_ends_if_no_session_is_available() -> None:
    """Draining ends with `CommitError` if signing in fails temporarily or takes over 10 s, and with
    the sign-in's own error if it fails permanently.
    """
    down = broken(failure(FailureKind.REAUTHENTICATE))
    down.drain()
    down.did(down.protocol.renewal_failed(failure(), down.now, 0.5))
    slow = broken(failure(FailureKind.REAUTHENTICATE))
    slow.drain()
    slow.wait(10.0)
    strange = broken(failure(FailureKind.REAUTHENTICATE))
    strange.drain()
    page = failure(FailureKind.TURNED_AWAY, AuthenticationError("a page in HTML"))
    strange.did(strange.protocol.renewal_failed(page, strange.now, 0.5))
    for script in (down, slow, strange):
        assert script.finish is not None
        assert isinstance(script.finish.error, CommitError)
        assert "2 acked events" in str(script.finish.error)
    wrong = broken(failure(FailureKind.REAUTHENTICATE))
    wrong.drain()
    refused = failure(FailureKind.STOP)
    wrong.did(wrong.protocol.renewal_failed(refused, wrong.now, 0.5))

    assert wrong.finish == Finish(refused.error)


def test_drain_opens_a_stream_only_once() -> None:
    """If the stream opened for the last commit fails, or receives nothing for 10 s, the
    subscription ends with `CommitError`.
    """
    script = broken()
    script.drain()
    script.end(failure())
    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)
    silent = broken()
    silent.drain()
    assert silent.wait(10.0) == [HalfClose(2)]
    silent.wait(5.0)

    assert silent.finish is not None
    assert isinstance(silent.finish.error, CommitError)


def test_drain_while_reopening_waits_for_redelivery() -> None:
    """If a stream is already being reopened, draining waits until it redelivers the acked events,
    and then commits them.
    """
    script = broken()
    script.wait(1.0)
    assert script.protocol.state is State.OPENING
    assert script.drain() == [Discard()]
    (request,) = commits(script.respond(events(2, 3, 4)))

    assert request.replay_id == rid(3)
    assert script.delivered == [2, 3]


def test_drain_waits_for_the_rest_of_a_redelivery() -> None:
    """If only some of the acked events have been redelivered and committed, draining waits for the
    others.
    """
    script = broken()
    script.wait(1.0)
    (request,) = commits(script.respond(events(2)))
    script.drain()
    assert commits(script.respond(answer(request))) == []
    assert script.protocol.state is State.DRAINING
    (request,) = commits(script.respond(events(3)))

    assert request.replay_id == rid(3)


@pytest.mark.parametrize("first", [events(9), keepalive(9)], ids=["another-event", "keepalive"])
def test_drain_ends_if_acked_events_are_not_redelivered(first: Response) -> None:
    """If the stream begins with another event or a keepalive, acked events will not be redelivered,
    so draining ends at once with `CommitError`.
    """
    script = broken()
    script.drain()
    assert script.respond(first)[-1] == HalfClose(2)
    script.respond(events(2, 3))
    script.end(None)

    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)


def test_drain_does_not_commit_past_an_undelivered_event() -> None:
    """If undelivered event 9 arrives before the acked events 2 and 3 are redelivered, nothing is
    committed, because position 3 would skip event 9.
    """
    script = broken()
    script.drain()
    commands = script.respond(events(9, 2, 3))

    assert commits(commands) == []


def test_drain_requests_more_than_100_events_in_parts() -> None:
    """If more than 100 acked events must be redelivered for the last commit, they are requested in
    several parts.
    """
    script = streaming()
    numbers = list(range(2, 162))
    script.read(events(*numbers))
    script.protocol.acked(1, 160, script.now)
    script.end(failure())
    assert of(OpenStream, script.drain())[0].num_requested == 100
    out = script.respond(events(*numbers[:100], pending=0))
    assert credit(out) == 60
    (request,) = commits(out)
    script.respond(events(*numbers[100:], pending=0))
    (request,) = commits(script.respond(answer(request)))

    assert request.replay_id == rid(161)


def test_drain_without_a_stream_or_acks_finishes() -> None:
    """Draining without a stream and without uncommitted acks ends the subscription at once."""
    for why in (failure(), failure(FailureKind.REAUTHENTICATE)):
        script = streaming()
        script.read(events(2))
        script.end(why)
        assert script.drain() == [Discard(), Finish(None)]
    script = streaming(limits=Limits(max_bytes=10))
    script.read(events(2))
    script.respond(events(3, 4, size=10))
    assert script.protocol.state is State.PAUSED

    assert script.drain() == [Discard(), Finish(None)]


def test_second_drain_does_nothing() -> None:
    """A second `drain` does nothing, neither during draining nor after the end."""
    script = streaming()
    script.drain()
    assert script.drain() == []
    script.end(None)

    assert script.drain() == []


def test_abort_ends_at_once() -> None:
    """An abort cancels the stream, drops unread batches, raises `CommitError` in callers that wait
    for a commit, and ends the subscription. A second abort does nothing.
    """
    script = streaming()
    script.read(events(2))
    script.respond(events(3))
    script.ack(2)
    ticket, _ = script.commit()
    commands = script.did(script.protocol.abort())

    assert commands[0] == CancelStream(1)
    assert of(Discard, commands)
    assert commands[-1] == Finish(None)
    assert isinstance(script.settled[ticket], CommitError)
    assert script.protocol.abort() == []


def test_abort_without_a_stream_only_finishes() -> None:
    """Between two streams, an abort ends the subscription without a stream to cancel."""
    script = streaming()
    script.end(failure())

    assert script.did(script.protocol.abort()) == [Discard(), Finish(None)]


def test_acks_after_the_end_are_ignored() -> None:
    """After the end, an ack from a late worker has no effect and raises no error."""
    script = streaming()
    script.read(events(2))
    script.did(script.protocol.abort())

    assert script.ack(2) == []
