"""Tests of plain subscriptions, whose positions are stored by the application or not at all."""

from __future__ import annotations

import pytest

from sfpubsub.errors import ReplayIdRejectedError, SessionExpiredError, StreamUnavailableError
from sfpubsub.protocol.commands import Finish, OpenStream, ReportGap, Wake
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import State
from sfpubsub.types import Gap, StartPosition
from tests.protocol.scripted import (
    NAME,
    Script,
    commits,
    events,
    failure,
    keepalive,
    of,
    rid,
    streaming,
)

EARLIEST, LATEST = StartPosition.earliest(), StartPosition.latest()
REFUSED = Failure(
    FailureKind.POSITION_REJECTED,
    ReplayIdRejectedError("corrupted", error_code="replayid.corrupted", rpc_id="rpc-5"),
)


def test_first_request_has_the_start_position() -> None:
    """The first request contains the given start position."""
    assert Script(LATEST).start() == [OpenStream(1, 10, LATEST)]


def test_position_given_at_start_overrides_the_initial_one() -> None:
    """A position passed to `start` overrides the one given at creation, even after a reconnect."""
    script = Script(LATEST)
    assert script.start(EARLIEST) == [OpenStream(1, 10, EARLIEST)]
    script.end(failure())

    assert script.reopen().start == EARLIEST


def test_reconnect_resumes_after_the_last_event() -> None:
    """A new stream begins after the last received event, whether acked or not."""
    script = streaming(LATEST)
    script.respond(events(5, 6))

    assert script.reopen().start == StartPosition.after(rid(6))


def test_reconnect_resumes_after_a_keepalive() -> None:
    """A new stream resumes after the last keepalive, even if no event has arrived.

    Otherwise, the position of an idle stream would expire.
    """
    script = streaming(LATEST)
    script.respond(keepalive(9))

    assert script.reopen().start == StartPosition.after(rid(9))


def test_drop_before_a_position_at_latest_is_reported_once() -> None:
    """If a stream from LATEST drops before it has received a position, it is reopened at LATEST,
    and only the first such drop reports a gap.
    """
    script = Script(LATEST)
    script.start()

    assert script.end(failure()) == [ReportGap(Gap("unanchored", NAME))]
    assert of(OpenStream, script.wait(1.0)) == [OpenStream(2, 10, LATEST)]
    assert of(ReportGap, script.end(failure())) == []


@pytest.mark.parametrize(
    "why",
    [
        Failure(FailureKind.REAUTHENTICATE, SessionExpiredError("a stale token")),
        Failure(FailureKind.RETRY, StreamUnavailableError("refused"), is_unheard=True),
    ],
    ids=["stale token", "no connection"],
)
def test_start_at_latest_that_never_opened_lost_nothing(why: Failure) -> None:
    """A start from LATEST that the service never accepted has not begun, so it reports no gap; a
    drop after it was opened does.
    """
    script = Script(LATEST)
    script.start()
    for _ in range(3):
        script.end(why)
        if script.protocol.state is State.RENEWING:
            script.did(script.protocol.session_renewed(script.now))
        script.wait(20.0)
    assert script.gaps == []
    assert script.protocol.state is State.OPENING

    script.wait(40.0)
    script.end(why if why.kind is FailureKind.REAUTHENTICATE else failure())
    assert script.gaps == [Gap("unanchored", NAME)]


def test_rejected_position_ends_the_subscription_by_default() -> None:
    """A rejected position reports a gap and ends the subscription with an error that contains the
    gap and says what to do, since resuming elsewhere would skip events.
    """
    script = Script(StartPosition.after(rid(7)))
    script.start()
    script.end(REFUSED)

    gap = Gap("rejected", NAME, rid(7), error_code="replayid.corrupted", rpc_id="rpc-5")
    assert script.gaps == [gap]
    assert script.finish is not None
    error = script.finish.error
    assert isinstance(error, ReplayIdRejectedError)
    assert "start at latest or earliest" in str(error)
    assert error.gap == gap
    assert error.error_code == "replayid.corrupted"
    assert error.__cause__ is REFUSED.error


def test_rejected_position_continues_at_the_fallback() -> None:
    """With a fallback, a rejected position reports a gap, and after a delay the next stream begins
    at the fallback.
    """
    script = Script(StartPosition.after(rid(7)), fallback=EARLIEST)
    script.start()
    assert [gap.gap.reason for gap in of(ReportGap, script.end(REFUSED))] == ["rejected"]
    assert script.protocol.state is State.WAITING

    assert script.wait(1.0) == [OpenStream(2, 10, EARLIEST)]
    assert script.finish is None


def test_rejected_position_of_a_managed_subscription_is_fatal() -> None:
    """A rejected position ends a managed subscription with the service's error.

    No other position is known to resume from.
    """
    script = streaming()
    script.end(REFUSED)

    assert script.finish == Finish(REFUSED.error)


def test_plain_subscription_commits_nothing() -> None:
    """A plain subscription never sends a commit, since the service stores no position for it."""
    script = streaming(EARLIEST)
    script.read(events(2))

    assert commits(script.ack(2)) == []
    assert commits(script.wait(200.0)) == []


def test_storable_returns_each_acked_position_once() -> None:
    """A position is returned for storing only if every event up to it is acked, and only once."""
    script = streaming(EARLIEST)
    assert script.protocol.storable() == rid(1)
    script.read(events(2, 3, 4))
    script.ack(3)
    assert script.protocol.storable() is None
    script.ack(2)

    assert script.protocol.storable() == rid(3)
    assert script.protocol.storable() is None


def test_storable_includes_keepalives() -> None:
    """A keepalive wakes the application to store the keepalive's position.

    That position is available once all earlier events are acked.
    """
    script = streaming(EARLIEST)
    script.read(events(2))
    assert of(Wake, script.respond(keepalive(8)))
    assert script.protocol.storable() == rid(1)
    script.ack(2)

    assert script.protocol.storable() == rid(8)


def test_acked_position_is_storable_after_reconnect_and_abort() -> None:
    """If an event is acked after a reconnect, its position can still be stored after an abort."""
    script = streaming(EARLIEST)
    script.read(events(2))
    script.reopen()
    script.ack(2)
    script.did(script.protocol.abort())

    assert script.protocol.storable() == rid(2)


def test_managed_subscription_has_nothing_to_store() -> None:
    """A managed subscription never returns a position to store, since the service stores it."""
    script = streaming()
    script.respond(keepalive(5))

    assert script.protocol.storable() is None


def test_untracked_subscription_ignores_acks() -> None:
    """Without a position store, acks are ignored and no events are kept in the ledger."""
    script = streaming(EARLIEST, tracked=False)
    script.read(events(2, 3))

    assert script.ack(2) == []
    assert script.protocol.storable() is None
    assert script.protocol.health().unacked == 0
    assert not script.protocol._ledger.holds_events


def test_drain_half_closes_and_leaves_the_position_storable() -> None:
    """Draining a plain subscription half-closes at once, and the acked position can still be stored
    afterwards.
    """
    script = streaming(EARLIEST)
    script.read(events(2))
    script.ack(2)
    script.drain()
    assert script.protocol.state is State.CLOSING
    script.end(None)

    assert script.finish == Finish(None)
    assert script.protocol.storable() == rid(2)


def test_a_gap_that_the_application_found_is_reported_like_its_own() -> None:
    """A gap that the application found, such as an expired position, is reported and counted."""
    script = streaming(LATEST)
    gap = Gap("expired", NAME)

    assert script.protocol.report_gap(gap) == [ReportGap(gap)]
    assert script.protocol.health().gaps == (gap,)
