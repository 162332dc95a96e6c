"""The end: orderly from every state, bounded in time, and honest about what was not committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sfpubsub.errors import CommitError
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


def broken(why: Failure | None = None) -> Script:
    """Two events are acked, none is committed, and the stream is gone."""
    script = streaming()
    script.read(events(2, 3))
    script.ack(2, 3)
    script.end(why or failure())
    return script


def paused() -> Script:
    """An event is acked while a commit is out, and the stream is given up."""
    script = streaming(limits=Limits(max_bytes=10))
    script.read(events(2))
    script.read(events(3))
    script.respond(events(4, 5, size=10))
    script.ack(2, 3)
    assert script.protocol.state is State.PAUSED
    return script


@pytest.mark.parametrize("make", [broken, paused], ids=["waiting", "paused"])
def test_draining_without_a_stream_opens_one_for_what_is_acked(make: Callable[[], Script]) -> None:
    """It comes again on it, is committed, and that is all that it is for."""
    script = make()
    assert script.drain() == [Discard(), OpenStream(2, 2, None)]
    (request,) = commits(script.respond(events(2, 3)))
    assert request.replay_id == rid(3)
    assert script.respond(answer(request)) == [HalfClose(2)]
    assert script.end(None) == [Finish(None)]
    assert script.gaps == []


def test_draining_while_a_session_is_fetched_waits_for_it() -> None:
    """The stream for the last commit needs one."""
    script = broken(failure(FailureKind.REAUTHENTICATE))
    assert script.drain() == [Discard()]
    assert script.protocol.state is State.SAVING
    (opened,) = script._did(script.protocol.session_renewed(script.now))
    assert opened == OpenStream(2, 2, None)
    (request,) = commits(script.respond(events(2, 3)))
    script.respond(answer(request))

    assert script.end(None) == [Finish(None)]


def test_a_session_that_cannot_be_fetched_ends_it() -> None:
    """At once, or when the time is over; what comes again is said."""
    down = broken(failure(FailureKind.REAUTHENTICATE))
    down.drain()
    down._did(down.protocol.renewal_failed(failure(), down.now, 0.5))
    slow = broken(failure(FailureKind.REAUTHENTICATE))
    slow.drain()
    slow.wait(10.0)
    for script in (down, slow):
        assert script.finish is not None
        assert isinstance(script.finish.error, CommitError)
        assert "2 acked events" in str(script.finish.error)
    wrong = broken(failure(FailureKind.REAUTHENTICATE))
    wrong.drain()
    refused = failure(FailureKind.STOP)
    wrong._did(wrong.protocol.renewal_failed(refused, wrong.now, 0.5))

    assert wrong.finish == Finish(refused.error)


def test_the_stream_for_the_last_commit_is_opened_once() -> None:
    """What it fails with ends the subscription; it is bounded in time as well."""
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


def test_draining_while_opening_again_waits_for_what_is_acked() -> None:
    """The call that is on its way shows it."""
    script = broken()
    script.wait(1.0)
    assert script.protocol.state is State.OPENING
    assert script.drain() == [Discard()]
    (request,) = commits(script.respond(events(2, 3, 4)))

    assert request.replay_id == rid(3)
    assert script.delivered == [2, 3]


def test_draining_in_the_middle_of_a_redelivery_waits_for_its_rest() -> None:
    """Half of what is acked has been seen on this stream."""
    script = broken()
    script.wait(1.0)
    (request,) = commits(script.respond(events(2)))
    script.drain()
    assert commits(script.respond(answer(request))) == []
    assert script.protocol.state is State.DRAINING
    (request,) = commits(script.respond(events(3)))

    assert request.replay_id == rid(3)


@pytest.mark.parametrize("first", [events(9), keepalive(9)], ids=["another-event", "keepalive"])
def test_what_does_not_come_again_is_not_waited_for(first: Response) -> None:
    """Known events come first; behind another one, or with none at all, there are no more."""
    script = broken()
    script.drain()
    assert script.respond(first)[-1] == HalfClose(2)
    script.respond(events(2, 3))
    script.end(None)

    assert script.finish is not None
    assert isinstance(script.finish.error, CommitError)


def test_what_comes_behind_a_dropped_event_is_not_committed_over_it() -> None:
    """A service that moved the subscription sends 9 first: 3 would pass it."""
    script = broken()
    script.drain()
    commands = script.respond(events(9, 2, 3))

    assert commits(commands) == []


def test_more_than_a_window_is_asked_for_as_it_comes() -> None:
    """A last stream may need more than one request to show what is acked."""
    script = streaming()
    numbers = list(range(2, 162))
    script.read(events(*numbers))
    script.protocol.acked(1, 160, script.now)
    script.end(failure())
    assert of(OpenStream, script.drain())[0].num_requested == 100
    out = script.respond(events(*numbers[:100], pending=0))
    assert credit(out) == 100
    (request,) = commits(out)
    script.respond(events(*numbers[100:], pending=40))
    (request,) = commits(script.respond(answer(request)))

    assert request.replay_id == rid(161)


def test_draining_without_a_stream_and_without_acks_is_the_end() -> None:
    """There is nothing to commit."""
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
