"""Tests of failure handling: whether to retry, how long to wait first, and when to give up."""

from __future__ import annotations

import pytest

from sfpubsub.config import Timings
from sfpubsub.errors import (
    AuthenticationError,
    ConfigurationError,
    PermissionDeniedError,
    SessionExpiredError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionBusyError,
    TopicNotFoundError,
)
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.retries import Retries, Verdict, is_final
from sfpubsub.protocol.states import Signal
from tests.protocol.scripted import NAME, failure

TIMES = Timings(backoff_initial=1.0, backoff_max=60.0, slot_initial=0.5, slot_max=15.0)
BROKEN = StreamUnavailableError("connection reset")


def retries(connection_timeout: float | None = None) -> Retries:
    """Return the `Retries` of a subscription; the timeout is in seconds, and None means no
    limit.
    """
    return Retries(NAME, TIMES, connection_timeout)


def test_consecutive_failures_increase_the_delay() -> None:
    """Each further failure, of whatever kind, doubles the delay before the stream is reopened."""
    judge = retries()

    assert judge.broken(BROKEN, 100.0, 0.5).reopen_at == 100.5
    assert judge.judge(failure(), 100.0, 0.5).reopen_at == 101.0
    assert judge.stalled(BROKEN, 100.0, 0.5).reopen_at == 102.0
    assert judge.moved(BROKEN, 100.0, 0.5).reopen_at == 104.0
    assert judge.reason == "connection reset"


def test_response_resets_all_limits() -> None:
    """A response from the service clears the last failure, the connection timeout, the time
    limit for rejected sessions, and the delay.
    """
    judge = retries(connection_timeout=9.0)
    judge.broken(BROKEN, 0.0, 1.0)
    judge.judge(failure(FailureKind.REAUTHENTICATE), 1.0, 0.5)
    judge.renewed()
    judge.responded()

    assert judge.reason is None
    assert judge.give_up_at is None
    late = judge.judge(failure(FailureKind.REAUTHENTICATE), 2 * TIMES.session_budget, 0.5)
    assert late.signal is Signal.EXPIRED
    assert judge.broken(BROKEN, 2 * TIMES.session_budget, 1.0).reopen_at == 1201.0


@pytest.mark.parametrize(
    "kind", [FailureKind.STOP, FailureKind.POSITION_REJECTED, FailureKind.TURNED_AWAY]
)
def test_permanent_failure_is_fatal(kind: FailureKind) -> None:
    """A failure that no retry can fix ends the subscription with the service's own error."""
    error = TopicNotFoundError("no such topic")

    verdict = retries().judge(failure(kind, error), 0.0, 0.5)

    assert verdict.signal is Signal.FATAL
    assert verdict.error is error


def test_access_denied_after_a_response_is_temporary() -> None:
    """If access is denied after the service has already responded, e.g. by a new proxy, it is
    retried until the connection timeout.
    """
    judge = retries(connection_timeout=30.0)
    judge.responded()
    away = failure(FailureKind.TURNED_AWAY, PermissionDeniedError("forbidden"))
    verdict = judge.judge(away, 100.0, 0.5)

    assert verdict.signal is Signal.BROKEN
    assert judge.give_up_at == 130.0
    assert str(judge.reason).startswith("forbidden; treated as temporary")


def reject_sessions(judge: Retries, now: float, until: float) -> tuple[float, int]:
    """Reject every renewed session until the time *until*, or until *judge* reports an error.

    Returns:
        The time of the last rejection, and the number of renewals.
    """
    count = 0
    expired = failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired"))
    while now < until:
        verdict = judge.judge(expired, now, 0.999)
        if verdict.error is not None:
            break
        judge.renewed()
        count += 1
        now = verdict.reopen_at + 0.01
    return now, count


def test_rejected_sessions_are_fatal_after_their_time_limit() -> None:
    """If sessions are rejected for as long as `session_budget`, the subscription ends after only a
    few sign-ins.

    The error is retryable and has the RPC id of the last rejection.
    """
    judge = retries()
    now, count = reject_sessions(judge, 100.0, 100.0 + TIMES.session_budget)
    assert now >= 100.0 + TIMES.session_budget
    assert 5 < count < 20, "the delay between sign-ins grows"

    refused = failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired", rpc_id="rpc"))
    error = judge.judge(refused, now, 0.5).error
    assert isinstance(error, SessionExpiredError)
    assert error.retryable
    assert error.rpc_id == "rpc"
    assert error.__cause__ is refused.error


def test_a_held_slot_shows_that_the_session_was_accepted() -> None:
    """Refused sessions count from the first one after the service has said that another client
    holds the managed subscription: so pages of a proxy, far apart, do not end it.
    """
    judge, step = retries(), TIMES.session_budget * 0.6
    for number in range(4):
        refused = judge.judge(failure(FailureKind.REAUTHENTICATE), 2 * number * step, 0.5)
        assert refused.error is None
        judge.renewed()
        held = judge.judge(failure(FailureKind.SLOT_HELD), (2 * number + 1) * step, 0.5)
        assert held.error is None


def test_expired_session_is_renewed_at_once() -> None:
    """An expired session is first renewed without delay; if the new session is rejected too, the
    next renewal is delayed.
    """
    judge = retries()
    assert judge.judge(failure(FailureKind.REAUTHENTICATE), 5.0, 0.5).reopen_at == 5.0
    judge.renewed()

    assert judge.judge(failure(FailureKind.REAUTHENTICATE), 6.0, 0.5).reopen_at == 6.5


def test_strange_answer_to_a_renewal_is_temporary_after_a_response() -> None:
    """A renewal that fails without a word of the login host is retried for `session_budget`, if the
    service has ever let the stream in; otherwise, the subscription ends with the failure.
    """
    error = AuthenticationError("a page in HTML")
    strange, expired = failure(FailureKind.TURNED_AWAY, error), failure(FailureKind.REAUTHENTICATE)
    assert retries().unrenewed(strange, 0.0, 0.5).error is error
    judge = retries()
    judge.responded()
    now, tries = 100.0, 0
    while True:
        assert judge.judge(expired, now, 0.999) == Verdict(Signal.EXPIRED, now)
        verdict = judge.unrenewed(strange, now, 0.999)
        if verdict.signal is not Signal.BROKEN:
            break
        now, tries = verdict.reopen_at + 0.01, tries + 1

    assert TIMES.session_budget <= now - 100.0 < TIMES.session_budget + TIMES.backoff_max + 1
    assert 5 < tries < 20, "the delay between sign-ins grows"
    assert isinstance(verdict.error, SessionExpiredError)
    assert "a page in HTML" in str(verdict.error)
    assert verdict.error.__cause__ is error


def test_refused_renewal_is_fatal() -> None:
    """A renewal that the login host refuses with a code of its own is not retried."""
    judge = retries()
    judge.responded()
    error = AuthenticationError("revoked", error_code="invalid_grant")

    assert judge.unrenewed(failure(FailureKind.STOP, error), 0.0, 0.5).error is error


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (BROKEN, False),
        (AuthenticationError("a page in HTML"), False),
        (PermissionDeniedError("403 of a proxy"), False),
        (AuthenticationError("revoked", error_code="invalid_grant"), True),
        (SessionExpiredError("there are no credentials to get another"), True),
        (ConfigurationError("the key file is missing"), True),
    ],
)
def test_which_errors_are_final(error: SfPubSubError, final: bool) -> None:
    """An error is final only if the service or the login host named its cause by a code, or if the
    cause is on this side.
    """
    assert is_final(error) is final


def test_failing_sign_in_does_not_count_as_rejected_session() -> None:
    """If the login server is down for an hour, the time limit for rejected sessions is not used
    up.
    """
    judge = retries()
    for minute in range(60):
        verdict = judge.judge(failure(FailureKind.REAUTHENTICATE), 60.0 * minute, 0.5)
        assert verdict.signal is Signal.EXPIRED
        judge.broken(BROKEN, 60.0 * minute + 1.0, 0.5)


def test_failing_sign_in_counts_towards_the_connection_timeout() -> None:
    """Failed sign-ins count towards the connection timeout, even though the service itself can be
    reached and rejects the session.
    """
    judge = retries(connection_timeout=30.0)
    judge.broken(BROKEN, 100.0, 0.5)
    judge.judge(failure(FailureKind.REAUTHENTICATE), 110.0, 0.5)
    judge.broken(BROKEN, 111.0, 0.5)

    assert judge.give_up_at == 131.0


def test_connection_timeout_starts_at_the_first_failure() -> None:
    """The connection timeout starts at the first failure and is not extended by later ones.

    Its error quotes the last failure's message. Without a timeout, the client never gives up.
    """
    judge = retries(connection_timeout=30.0)
    assert judge.give_up_at is None
    judge.broken(BROKEN, 100.0, 0.5)
    judge.broken(BROKEN, 110.0, 0.5)

    assert judge.give_up_at == 130.0
    assert "30 s" in str(judge.given_up())
    assert "connection reset" in str(judge.given_up())
    unlimited = retries()
    unlimited.broken(BROKEN, 100.0, 0.5)
    assert unlimited.give_up_at is None


def test_held_slot_does_not_count_as_connection_failure() -> None:
    """A rejection because another client holds the managed subscription's slot stops the connection
    timeout, since it shows that the service can be reached.
    """
    judge = retries(connection_timeout=30.0)
    judge.broken(BROKEN, 100.0, 0.5)
    judge.judge(failure(FailureKind.SLOT_HELD), 110.0, 0.5)

    assert judge.give_up_at is None


def test_held_slot_is_retried_until_its_timeout() -> None:
    """While another client holds the managed subscription's slot, the stream is retried.

    After `slot_timeout`, the error is a `SubscriptionBusyError` that says what to do.
    """
    judge, held = retries(), failure(FailureKind.SLOT_HELD, SubscriptionBusyError("active"))
    assert judge.judge(held, 0.0, 0.5).reopen_at == 0.25
    verdict = judge.judge(held, TIMES.slot_timeout - 1, 0.5)
    assert verdict.signal is Signal.BUSY
    assert judge.reason == "active"

    verdict = judge.judge(held, TIMES.slot_timeout, 0.5)

    assert isinstance(verdict.error, SubscriptionBusyError)
    assert "stop that client, or try again later" in str(verdict.error)
    assert verdict.error.__cause__ is held.error


def test_outage_does_not_count_towards_the_slot_timeout() -> None:
    """The time without a connection is not counted as waiting for the managed subscription's
    slot.
    """
    judge, held = retries(), failure(FailureKind.SLOT_HELD)
    judge.judge(held, 0.0, 0.5)
    judge.broken(BROKEN, 10.0, 0.5)
    verdict = judge.judge(held, 10.0 + 2 * TIMES.slot_timeout, 0.5)
    assert verdict.signal is Signal.BUSY
    judge.broken(BROKEN, 20.0 + 2 * TIMES.slot_timeout, 0.5)

    late = judge.judge(held, 3 * TIMES.slot_timeout + 20.0, 0.5)
    assert late.signal is Signal.BUSY, "without the outages, it has waited for only 20 s"
    assert judge.judge(held, 4 * TIMES.slot_timeout, 0.5).signal is Signal.FATAL
