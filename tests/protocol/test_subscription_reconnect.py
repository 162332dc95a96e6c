"""Streams come and go; no event is lost or doubled and no position invented."""

from __future__ import annotations

import pytest

from sfpubsub.config import Timings
from sfpubsub.errors import (
    LocalProtocolError,
    ReplayIdRejectedError,
    SessionExpiredError,
    StreamUnavailableError,
    SubscriptionBusyError,
)
from sfpubsub.protocol.commands import Finish, OpenStream, RenewSession, ReportGap
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import Gap, StartPosition
from tests.protocol.scripted import (
    NAME,
    Script,
    answer,
    commits,
    events,
    failure,
    keepalive,
    of,
    rid,
    settle,
    streaming,
)

EARLIEST, LATEST = StartPosition.earliest(), StartPosition.latest()


def acked(*numbers: int) -> Script:
    """A managed subscription that has read events, acked them all, and got no answer."""
    script = streaming()
    script.read(events(*numbers))
    script.ack(*numbers)
    return script


@pytest.mark.parametrize("why", [failure(), None], ids=["broken", "ended-with-ok"])
def test_a_stream_that_ends_is_opened_again(why: object) -> None:
    """After a random delay, which grows until a response comes."""
    script = streaming()
    assert script.end(why) == []
    assert script.protocol.state is State.WAITING
    assert script.protocol.health().reason

    assert script.wait(0.5) == [OpenStream(2, 10, None)]
    script.end(why)
    assert script.wait(0.9) == []
    assert of(OpenStream, script.wait(0.2))
    script.respond(keepalive(2))
    assert script.protocol.health().reason is None
    assert script.protocol.health().reconnects == 2


def test_redelivered_events_are_committed_and_not_delivered_again() -> None:
    """They are known, and seen on the new stream."""
    script = acked(2, 3)
    script.reopen()
    assert commits(script.wait(5.0)) == [], "not seen on this stream yet"

    (request,) = commits(script.respond(events(2, 3)))
    assert request.replay_id == rid(3)
    assert script.delivered == [2, 3]
    assert script.protocol.health().redelivered == 2
    assert script.gaps == []


def test_a_partly_redelivered_prefix_is_committed_as_far_as_it_came() -> None:
    """Position 3 is acked, but this stream has shown only 2."""
    script = acked(2, 3)
    script.reopen()

    assert [request.replay_id for request in commits(script.respond(events(2)))] == [rid(2)]


def test_an_unacked_redelivery_blocks() -> None:
    """Acked out of order before the drop: 3 is not committed over 2 after it."""
    script = streaming()
    script.read(events(2, 3))
    script.ack(3)
    script.reopen()
    assert commits(script.respond(events(2, 3, 4))) == []

    assert script.delivered == [2, 3, 4]
    assert [request.replay_id for request in commits(script.ack(2))] == [rid(3)]


def test_a_commit_without_answer_may_have_been_carried_out() -> None:
    """The new stream begins behind it: that is no gap, and answers its caller."""
    script = acked(2)
    script.read(events(3))
    ticket, _ = script.commit()
    script.reopen()
    script.respond(events(3))

    assert script.gaps == []
    assert script.settled[ticket].replay_id == rid(2)  # type: ignore[attr-defined]
    assert script.settled[ticket].process_time is None  # type: ignore[attr-defined]
    assert script.protocol.health().committed == rid(2)
    assert script.delivered == [2, 3]


def test_a_commit_given_up_may_have_been_carried_out() -> None:
    """Also one that timed out before the stream broke."""
    script = acked(2)
    script.read(events(3, 4))
    script.ack(3)
    (newer,) = commits(script.wait(31.0))
    assert newer.replay_id == rid(3)
    script.reopen()
    script.respond(events(3))

    assert script.gaps == []
    assert script.protocol.health().committed == rid(2)


def test_the_newest_of_several_lost_commits_may_have_been_carried_out() -> None:
    """Two gave no answer; the stream that begins behind the second settles both."""
    script = acked(2)
    script.read(events(3, 4))
    script.ack(3)
    (newer,) = commits(script.wait(31.0))
    assert newer.replay_id == rid(3)
    script.reopen()
    script.respond(events(4))

    assert script.gaps == []
    assert script.protocol.health().committed == rid(3)


def test_a_stream_that_begins_elsewhere_reports_a_gap() -> None:
    """The service moved the subscription: it says so, and goes on."""
    script = acked(2, 3)
    settle(script)
    settle(script)
    script.read(events(4))
    script.reopen()
    (gap,) = of(ReportGap, script.respond(events(9)))

    assert gap.gap == Gap("repositioned", NAME, rid(3), rid(9), rpc_id="rpc-9")
    assert script.delivered == [2, 3, 4, 9]
    assert script.protocol.health().gaps == (gap.gap,)


def test_the_old_position_is_not_repeated_behind_a_move() -> None:
    """It would pass over the events that the service sends again."""
    script = streaming()
    script.read(events(5))
    script.reopen()
    script.respond(events(2))
    sent = []
    for number in range(20):
        sent += commits(script.wait(200.0))
        script.respond(keepalive(10 + number))

    assert sent == []
    assert script.gaps


def test_what_an_old_stream_still_says_is_ignored() -> None:
    """Words of a call that was given up change nothing."""
    script = streaming()
    script.reopen()
    script.respond(keepalive(5))
    before = script.protocol.health()

    assert script.respond(events(7), stream=1) == []
    assert script.protocol.ended(1, failure(FailureKind.STOP), script.now, 0.5) == []
    assert script.protocol.health() == before


def test_words_of_a_dead_stream_are_ignored_while_waiting() -> None:
    """Also before the next stream is there."""
    script = streaming()
    script.end(failure())

    assert script.respond(events(7)) == []
    assert script.end(failure()) == []


def test_an_expired_session_is_renewed() -> None:
    """At once, and the stream goes on at its position."""
    script = streaming(EARLIEST)
    assert script.end(failure(FailureKind.REAUTHENTICATE)) == [RenewSession()]
    assert script.protocol.state is State.RENEWING
    assert script.protocol.deadline() is None

    (opened,) = script._did(script.protocol.session_renewed(script.now))
    assert opened == OpenStream(2, 10, StartPosition.after(rid(1)))


def test_sessions_that_are_refused_end_the_subscription_only_after_their_time() -> None:
    """Each sign-in worked: a change of permission may need minutes to reach the service."""
    script = streaming()
    expired = failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired"))
    opened = 0
    while script.finish is None:
        if script.protocol.state is State.RENEWING:
            script._did(script.protocol.session_renewed(script.now))
        elif script.protocol.state is State.WAITING:
            script.wait(0.1)
        else:
            opened += 1
            script.end(expired)

    assert 600.0 <= script.now - 1000.0 < 700.0
    assert 5 < opened < 40
    assert isinstance(script.finish.error, SessionExpiredError)
    assert script.finish.error.retryable
    assert script.finish.error.__cause__ is expired.error


def test_a_login_that_is_down_is_tried_again() -> None:
    """As a broken connection, and as often."""
    script = streaming()
    for _ in range(10):
        script.end(failure(FailureKind.REAUTHENTICATE))
        script._did(script.protocol.renewal_failed(failure(), script.now, 0.5))
        assert script.protocol.state is State.WAITING
        assert of(OpenStream, script.wait(60.0))

    assert script.finish is None


def test_a_login_that_is_refused_ends_the_subscription() -> None:
    """Wrong credentials do not become right."""
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    refused = failure(FailureKind.STOP)
    script._did(script.protocol.renewal_failed(refused, script.now, 0.5))

    assert script.finish == Finish(refused.error)


def test_a_late_word_about_a_session_is_ignored() -> None:
    """The subscription was ended meanwhile."""
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    script._did(script.protocol.abort())

    assert script.protocol.session_renewed(script.now) == []
    assert script.protocol.renewal_failed(failure(), script.now, 0.5) == []


def test_a_quiet_stream_that_was_opened_again_is_not_given_up() -> None:
    """An idle topic's first response may be a keepalive, later than the connection timeout."""
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(200.0)

    assert script.protocol.state is State.OPENING
    assert script.finish is None


@pytest.mark.parametrize(("idle", "is_over"), [(69.0, True), (70.0, False)])
def test_healthy_idle_time_is_no_outage(idle: float, is_over: bool) -> None:
    """A stream that was open for `Timings.steady`, and for as long as a dead connection takes to
    show, starts the time anew, though it has brought nothing."""
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(1.0)
    script.wait(idle)
    script.end(failure())
    script.wait(0.0)

    assert (script.finish is not None) is is_over


def test_the_connection_timeout_ends_it() -> None:
    """No earlier, and with the last failure in the message."""
    script = streaming(connection_timeout=100.0)
    script.end(failure())
    while script.finish is None and script.now < 1099.0:
        script.wait(1.0)
        script.end(failure())
    assert script.finish is None
    script.wait(2.0)

    assert script.finish is not None
    assert isinstance(script.finish.error, StreamUnavailableError)
    assert "connection reset" in str(script.finish.error)


def test_a_held_slot_is_waited_for() -> None:
    """Without touching the connection timeout."""
    script = streaming(connection_timeout=10.0)
    for _ in range(20):
        script.end(failure(FailureKind.SLOT_HELD))
        assert of(OpenStream, script.wait(15.0))
    script.respond(keepalive(4))

    assert script.protocol.state is State.STREAMING


def test_starting_twice_is_refused() -> None:
    """And so is starting after the end: nobody would end that call."""
    script = Script()
    script.start()
    with pytest.raises(LocalProtocolError):
        script.start()
    ended = Script()
    ended.protocol.abort()
    with pytest.raises(LocalProtocolError):
        ended.protocol.start(0.0)


def test_a_driver_that_crashes_ends_the_subscription() -> None:
    """With its error, and its call cancelled; once."""
    script = streaming()
    error = ReplayIdRejectedError("any")
    script._did(script.protocol.crashed(error))

    assert script.finish == Finish(error)
    assert script.protocol.crashed(error) == []


def test_a_ring_that_is_too_early_does_nothing() -> None:
    """The timer may be late or early; only what is due is done."""
    script = streaming()

    assert script.protocol.timer(script.now, 0.5) == []


def test_an_answer_on_the_next_stream_is_not_believed() -> None:
    """Answers come only on the stream of their request."""
    script = acked(2)
    script.reopen()
    script.respond(answer("1-2", replay_id=rid(2)))

    assert script.protocol.health().committed == rid(1)


def test_a_good_idle_stream_ends_an_outage() -> None:
    """Reset, 70 s of an idle stream whose pings were answered, reset: that is no outage of 70 s."""
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    opened = of(OpenStream, script.wait(0.5))
    assert opened
    script.wait(70.0)
    script.end(failure())
    script.wait(59.0)

    assert script.finish is None


def test_a_stream_that_died_at_once_ends_no_outage() -> None:
    """A network that swallows everything once connected shows only when a ping is not answered."""
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(0.5)
    script.wait(61.0)  # 20 to connect, and 41 until the ping
    script.end(failure())
    script.wait(0.0)

    assert script.finish is not None


def test_without_pings_only_a_response_ends_an_outage() -> None:
    """Nothing else tells a good stream from a dead connection."""
    script = streaming(connection_timeout=60.0, timings=Timings(ping_interval=0.0))
    script.end(failure())
    script.wait(100.0)
    script.end(failure())
    script.wait(0.0)

    assert script.finish is not None


def test_a_slot_that_was_obtained_is_no_reason_any_more() -> None:
    """On an idle subscription no event tells of it, and a refusal would have come long since."""
    script = streaming()
    held = failure(FailureKind.SLOT_HELD, SubscriptionBusyError("another stream is active"))
    script.end(held)
    assert script.protocol.health().reason == "another stream is active"
    script.wait(1.0)
    reason = script.protocol.health().reason
    assert reason == "reconnecting after: another stream is active"
    script.wait(70.0)

    assert script.protocol.state is State.OPENING
    assert script.protocol.health().reason is None


@pytest.mark.parametrize("start", [None, EARLIEST], ids=["managed", "plain"])
def test_what_waits_to_be_read_when_a_subscription_fails(start: StartPosition | None) -> None:
    """Managed: it comes again, as none of it can be committed. Plain: it was received for good."""
    script = streaming(start)
    script.respond(events(2, 3))
    script.end(failure(FailureKind.STOP))

    assert len(script.inbox) == (start is not None)
    assert script.protocol.health().pending_count == (0 if start is None else 2)


@pytest.mark.parametrize(
    ("kind", "after", "gaps"),
    [
        (FailureKind.SLOT_HELD, 0.0, 0),
        (FailureKind.REAUTHENTICATE, 11.0, 0),
        (FailureKind.REAUTHENTICATE, 31.0, 1),
        (FailureKind.RETRY, 0.0, 1),
    ],
)
def test_a_stream_that_was_refused_has_lost_nothing(
    kind: FailureKind, after: float, gaps: int
) -> None:
    """It never began. One that lived for a while may have, at LATEST; a broken one as well."""
    script = Script()
    script.start()
    script.wait(after)
    script.end(failure(kind))
    if kind is FailureKind.REAUTHENTICATE:
        script._did(script.protocol.session_renewed(script.now))
    else:
        script.wait(1.0)
    script.respond(events(7))

    assert len(script.gaps) == gaps
