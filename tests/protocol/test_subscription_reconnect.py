"""Tests of reconnects: no event is lost or delivered twice, and no position is invented."""

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
from sfpubsub.protocol.commands import (
    Finish,
    OpenStream,
    RenewSession,
    ReportGap,
    ReportOutage,
)
from sfpubsub.protocol.events import Failure, FailureKind
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
    """Return a managed subscription that has read and acked the events at positions *numbers*.

    The commit of these acks is in flight.
    """
    script = streaming()
    script.read(events(*numbers))
    script.ack(*numbers)
    return script


@pytest.mark.parametrize("why", [failure(), None], ids=["broken", "ended-with-ok"])
def test_ended_stream_is_reopened_after_a_delay(why: object) -> None:
    """A stream that ends, even with OK, is reopened after a random delay, which grows until a
    response arrives.
    """
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


def test_redelivered_events_are_committed_but_not_delivered() -> None:
    """Acked events are committed once the new stream has redelivered them, and are not delivered
    again.
    """
    script = acked(2, 3)
    script.reopen()
    assert commits(script.wait(5.0)) == [], "not sent on this stream yet"

    (request,) = commits(script.respond(events(2, 3)))
    assert request.replay_id == rid(3)
    assert script.delivered == [2, 3]
    assert script.protocol.health().redelivered == 2
    assert script.gaps == []


def test_partly_redelivered_acks_are_committed_in_part() -> None:
    """If the new stream has redelivered only the first of two acked events, only the position of
    that event is committed.
    """
    script = acked(2, 3)
    script.reopen()

    assert [request.replay_id for request in commits(script.respond(events(2)))] == [rid(2)]


def test_unacked_redelivery_blocks_the_commit() -> None:
    """An event acked out of order before a reconnect is committed only after the earlier event is
    acked.
    """
    script = streaming()
    script.read(events(2, 3))
    script.ack(3)
    script.reopen()
    assert commits(script.respond(events(2, 3, 4))) == []

    assert script.delivered == [2, 3, 4]
    assert [request.replay_id for request in commits(script.ack(2))] == [rid(3)]


def test_unanswered_commit_may_have_taken_effect() -> None:
    """If the new stream begins right after the position of an unanswered commit, that commit counts
    as confirmed: its caller gets a result, and no gap is reported.
    """
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


def test_timed_out_commit_may_have_taken_effect() -> None:
    """If the new stream begins right after the position of a commit that timed out, that commit
    counts as confirmed, and no gap is reported.
    """
    script = acked(2)
    script.read(events(3, 4))
    script.ack(3)
    (newer,) = commits(script.wait(31.0))
    assert newer.replay_id == rid(3)
    script.reopen()
    script.respond(events(3))

    assert script.gaps == []
    assert script.protocol.health().committed == rid(2)


def test_newest_of_several_lost_commits_may_have_taken_effect() -> None:
    """If the new stream begins right after the position of the second of two unanswered commits,
    that commit counts as confirmed, and no gap is reported.
    """
    script = acked(2)
    script.read(events(3, 4))
    script.ack(3)
    (newer,) = commits(script.wait(31.0))
    assert newer.replay_id == rid(3)
    script.reopen()
    script.respond(events(4))

    assert script.gaps == []
    assert script.protocol.health().committed == rid(3)


def test_stream_that_begins_elsewhere_reports_a_gap() -> None:
    """If the first event of a new stream does not follow the confirmed position, a gap is reported,
    and delivery continues.
    """
    script = acked(2, 3)
    settle(script)
    settle(script)
    script.read(events(4))
    script.reopen()
    (gap,) = of(ReportGap, script.respond(events(9)))

    assert gap.gap == Gap("repositioned", NAME, rid(3), rid(9), rpc_id="rpc-9")
    assert script.delivered == [2, 3, 4, 9]
    assert script.protocol.health().gaps == (gap.gap,)


def test_old_position_is_not_committed_after_a_gap() -> None:
    """If the service moved the subscription back, the old commit is not repeated, because it would
    skip the redelivered events.
    """
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


def test_messages_of_an_old_stream_are_ignored() -> None:
    """A response or failure of an earlier stream changes nothing."""
    script = streaming()
    script.reopen()
    script.respond(keepalive(5))
    before = script.protocol.health()

    assert script.respond(events(7), stream=1) == []
    assert script.protocol.ended(1, failure(FailureKind.STOP), script.now, 0.5) == []
    assert script.protocol.health() == before


def test_messages_of_an_ended_stream_are_ignored_while_waiting() -> None:
    """A response or failure of an ended stream is ignored even before the next stream is opened."""
    script = streaming()
    script.end(failure())

    assert script.respond(events(7)) == []
    assert script.end(failure()) == []


def test_expired_session_is_renewed_and_the_stream_reopened() -> None:
    """An expired session is renewed at once, and the stream is then reopened after the last
    position.
    """
    script = streaming(EARLIEST)
    assert script.end(failure(FailureKind.REAUTHENTICATE)) == [RenewSession()]
    assert script.protocol.state is State.RENEWING

    (opened,) = script.did(script.protocol.session_renewed(script.now))
    assert opened == OpenStream(2, 10, StartPosition.after(rid(1)))


def test_subscription_ends_after_ten_minutes_of_rejected_sessions() -> None:
    """If the service keeps rejecting renewed sessions, the subscription ends after 600 s.

    It retries that long because new permissions may take minutes to apply; the final error is
    retryable.
    """
    script = streaming()
    expired = failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired"))
    opened = 0
    while script.finish is None:
        if script.protocol.state is State.RENEWING:
            script.did(script.protocol.session_renewed(script.now))
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


def test_failing_sign_in_is_retried_like_a_connection() -> None:
    """A sign-in that fails temporarily is retried with the usual delay, and does not end the
    subscription.
    """
    script = streaming()
    for _ in range(10):
        script.end(failure(FailureKind.REAUTHENTICATE))
        script.did(script.protocol.renewal_failed(failure(), script.now, 0.5))
        assert script.protocol.state is State.WAITING
        assert of(OpenStream, script.wait(60.0))

    assert script.finish is None


def test_rejected_sign_in_ends_the_subscription() -> None:
    """A sign-in that fails for good, e.g. with wrong credentials, ends the subscription with its
    error.
    """
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    refused = failure(FailureKind.STOP)
    script.did(script.protocol.renewal_failed(refused, script.now, 0.5))

    assert script.finish == Finish(refused.error)


def test_sign_in_result_after_the_end_is_ignored() -> None:
    """A sign-in result that arrives after the end, whether success or failure, is ignored."""
    script = streaming()
    script.end(failure(FailureKind.REAUTHENTICATE))
    script.did(script.protocol.abort())

    assert script.protocol.session_renewed(script.now) == []
    assert script.protocol.renewal_failed(failure(), script.now, 0.5) == []


def test_outage_is_reported_while_it_lasts_and_when_it_is_over() -> None:
    """A break that is over at the first attempt is reported with its length; failed attempts are a
    warning, which is repeated whether a delay or an attempt is in progress.
    """
    script = streaming()
    script.end(failure())
    assert script.protocol.down_since == script.now
    script.wait(1.0)
    (short,) = of(ReportOutage, script.respond(keepalive(2)))
    assert not short.is_warning
    assert "after 1.0 s" in short.text
    assert script.protocol.down_since is None

    began = script.now
    out = script.end(failure())
    while script.now < began + 1000.0:
        out += script.wait(0.1)
        if script.protocol.state is State.OPENING:
            script.wait(7.0)
            out += script.end(failure())
    reports = of(ReportOutage, out)
    assert [report.is_warning for report in reports] == [True] * 4
    assert [report.text.split("for ")[1].split(" ")[1][:3] for report in reports] == [
        "s,",
        "s,",
        "min",
        "min",
    ]
    script.wait(60.0)
    (end,) = of(ReportOutage, script.respond(keepalive(3)))
    assert end.is_warning
    assert "connection reset" in end.text


def test_outage_of_an_idle_stream_is_over_when_the_stream_counts_as_healthy() -> None:
    """If nothing is published, the end of an outage is reported once the stream has been open for
    70 s, with the time until it was opened.
    """
    script = streaming()
    script.end(failure())
    script.wait(0.5)
    (end,) = of(ReportOutage, script.wait(70.0))

    assert not end.is_warning
    assert "after 0.5 s" in end.text


def test_subscription_that_ends_during_an_outage_reports_nothing_more() -> None:
    """A closed subscription is not in an outage."""
    script = streaming()
    script.end(failure())
    script.did(script.protocol.abort())

    assert script.protocol.down_since is None
    assert script.protocol.deadline() is None


def test_first_attempt_that_takes_long_to_fail_is_a_warning() -> None:
    """If the first connection attempt fails after 20 s, the outage began with the attempt, and the
    warning comes at once.
    """
    script = Script()
    script.start()
    script.wait(20.0)
    timed_out = Failure(FailureKind.RETRY, StreamUnavailableError("timed out"), is_unheard=True)
    (report,) = of(ReportOutage, script.end(timed_out))

    assert report.is_warning
    assert "for 20.0 s, after 1 failed attempt," in report.text


def test_reopened_quiet_stream_does_not_time_out() -> None:
    """A reopened stream without a response does not use up the connection timeout, since an idle
    topic may send only keepalives.
    """
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(200.0)

    assert script.protocol.state is State.OPENING
    assert script.finish is None


@pytest.mark.parametrize(("idle", "is_over"), [(69.0, True), (70.0, False)])
def test_healthy_idle_stream_restarts_the_connection_timeout(idle: float, is_over: bool) -> None:
    """A failure after 70 s on an open stream without a response starts a new connection timeout.

    After 69 s, the old timeout still applies, because the connection is not yet known to work.
    """
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(1.0)
    script.wait(idle)
    script.end(failure())
    script.wait(0.0)

    assert (script.finish is not None) is is_over


def test_subscription_ends_at_the_connection_timeout() -> None:
    """Consecutive failures end the subscription at the connection timeout, not earlier, with an
    error that quotes the last failure.
    """
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


def test_held_slot_is_retried_beyond_the_connection_timeout() -> None:
    """While another client holds the managed subscription's only slot, the stream is retried
    without using up the connection timeout.
    """
    script = streaming(connection_timeout=10.0)
    for _ in range(20):
        script.end(failure(FailureKind.SLOT_HELD))
        assert of(OpenStream, script.wait(15.0))
    script.respond(keepalive(4))

    assert script.protocol.state is State.STREAMING


def test_second_start_raises() -> None:
    """Starting a subscription twice, or after it has ended, raises an error."""
    script = Script()
    script.start()
    with pytest.raises(LocalProtocolError):
        script.start()
    ended = Script()
    ended.protocol.abort()
    with pytest.raises(LocalProtocolError):
        ended.protocol.start(0.0)


def test_driver_crash_ends_the_subscription_once() -> None:
    """A crash of the code that drives the protocol ends the subscription with the crash's error; a
    second report is ignored.
    """
    script = streaming()
    error = ReplayIdRejectedError("any")
    script.did(script.protocol.crashed(error))

    assert script.finish == Finish(error)
    assert script.protocol.crashed(error) == []


def test_early_timer_call_does_nothing() -> None:
    """A timer call before the deadline does nothing."""
    script = streaming()

    assert script.protocol.timer(script.now, 0.5) == []


def test_commit_response_on_the_next_stream_is_ignored() -> None:
    """A response to a commit is accepted only on the stream that sent the request."""
    script = acked(2)
    script.reopen()
    script.respond(answer("1-2", replay_id=rid(2)))

    assert script.protocol.health().committed == rid(1)


def test_idle_stream_with_pings_ends_an_outage() -> None:
    """A stream that stays open for 70 s, with answered pings, ends the outage, so a later failure
    starts a new timeout of 60 s.
    """
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    opened = of(OpenStream, script.wait(0.5))
    assert opened
    script.wait(70.0)
    script.end(failure())
    script.wait(59.0)

    assert script.finish is None


def test_stream_that_fails_its_first_ping_does_not_end_the_outage() -> None:
    """A stream that fails after 61 s does not restart the connection timeout.

    It may have been dead from the start, because only an unanswered ping reveals a dead connection.
    """
    script = streaming(connection_timeout=60.0)
    script.end(failure())
    script.wait(0.5)
    script.wait(61.0)  # 20 s to connect, and 41 s until the ping fails
    script.end(failure())
    script.wait(0.0)

    assert script.finish is not None


def test_outage_without_pings_ends_only_with_a_response() -> None:
    """Without pings an open stream may be a dead connection, so only a response restarts the
    connection timeout.
    """
    script = streaming(connection_timeout=60.0, timings=Timings(ping_interval=0.0))
    script.end(failure())
    script.wait(100.0)
    script.end(failure())
    script.wait(0.0)

    assert script.finish is not None


def test_slot_reason_is_cleared_once_the_slot_is_obtained() -> None:
    """After 70 s on a new stream, `health` no longer says that another client holds the slot.

    No response is needed, because a rejection would have arrived long before then.
    """
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
def test_unread_events_after_a_fatal_failure(start: StartPosition | None) -> None:
    """A fatal failure drops a managed subscription's unread events, which will be redelivered; a
    plain subscription keeps them.
    """
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
def test_gap_only_if_the_failed_stream_may_have_begun(
    kind: FailureKind, after: float, gaps: int
) -> None:
    """If a managed subscription's first stream fails, a gap is reported only if the service may
    have accepted that stream.

    It did not if another client held the slot, or if the session was rejected within 30 s.
    """
    script = Script()
    script.start()
    script.wait(after)
    script.end(failure(kind))
    if kind is FailureKind.REAUTHENTICATE:
        script.did(script.protocol.session_renewed(script.now))
    else:
        script.wait(1.0)
    script.respond(events(7))

    assert len(script.gaps) == gaps
