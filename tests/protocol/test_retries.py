"""Budgets: what is tried again, when, and for how long."""

from __future__ import annotations

import pytest

from sfpubsub.config import Timings
from sfpubsub.errors import (
    PermissionDeniedError,
    SessionExpiredError,
    StreamUnavailableError,
    SubscriptionBusyError,
    TopicNotFoundError,
)
from sfpubsub.protocol.events import FailureKind
from sfpubsub.protocol.retries import Retries
from sfpubsub.protocol.states import Signal
from tests.protocol.scripted import NAME, failure

TIMES = Timings(backoff_initial=1.0, backoff_max=60.0, slot_initial=0.5, slot_max=15.0)
BROKEN = StreamUnavailableError("connection reset")


def retries(connection_timeout: float | None = None) -> Retries:
    return Retries(NAME, TIMES, connection_timeout)


def test_a_broken_stream_is_opened_again_after_a_growing_delay() -> None:
    """Failures in a row wait longer each."""
    judge = retries()

    assert judge.broken(BROKEN, 100.0, 0.5).reopen_at == 100.5
    assert judge.judge(failure(), 100.0, 0.5).reopen_at == 101.0
    assert judge.stalled(BROKEN, 100.0, 0.5).reopen_at == 102.0
    assert judge.moved(BROKEN, 100.0, 0.5).reopen_at == 104.0
    assert judge.reason == "connection reset"


def test_a_response_refills_every_budget() -> None:
    """And forgets the reason."""
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
def test_what_no_retry_mends_is_fatal(kind: FailureKind) -> None:
    """The service's own error ends the subscription."""
    error = TopicNotFoundError("no such topic")

    verdict = retries().judge(failure(kind, error), 0.0, 0.5)

    assert verdict.signal is Signal.FATAL
    assert verdict.error is error


def test_what_turns_away_in_mid_life_is_on_the_way() -> None:
    """A new proxy answers for a service that has let this subscription in before."""
    judge = retries(connection_timeout=30.0)
    judge.responded()
    away = failure(FailureKind.TURNED_AWAY, PermissionDeniedError("forbidden"))
    verdict = judge.judge(away, 100.0, 0.5)

    assert verdict.signal is Signal.BROKEN
    assert judge.give_up_at == 130.0
    assert str(judge.reason).startswith("forbidden; treated as temporary")


def shut_out(judge: Retries, now: float, until: float) -> tuple[float, int]:
    """Fetch sessions that are refused, up to a time; return when the last came, and how many."""
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


def test_sessions_that_are_refused_for_too_long_are_given_up() -> None:
    """Wrong org or missing scope: time enough for a change of permission, and then an error."""
    judge = retries()
    now, count = shut_out(judge, 100.0, 100.0 + TIMES.session_budget)
    assert now >= 100.0 + TIMES.session_budget
    assert 5 < count < 20, "with more and more time between sign-ins"

    refused = failure(FailureKind.REAUTHENTICATE, SessionExpiredError("expired", rpc_id="rpc"))
    error = judge.judge(refused, now, 0.5).error
    assert isinstance(error, SessionExpiredError)
    assert error.retryable
    assert error.rpc_id == "rpc"
    assert error.__cause__ is refused.error


def test_an_expired_session_is_renewed_at_once() -> None:
    """The usual end of a session costs no delay; only what is refused anew does."""
    judge = retries()
    assert judge.judge(failure(FailureKind.REAUTHENTICATE), 5.0, 0.5).reopen_at == 5.0
    judge.renewed()

    assert judge.judge(failure(FailureKind.REAUTHENTICATE), 6.0, 0.5).reopen_at == 6.5


def test_a_login_that_is_down_costs_no_budget_of_sessions() -> None:
    """A login server that is down for an hour must not end a subscription."""
    judge = retries()
    for minute in range(60):
        verdict = judge.judge(failure(FailureKind.REAUTHENTICATE), 60.0 * minute, 0.5)
        assert verdict.signal is Signal.EXPIRED
        judge.broken(BROKEN, 60.0 * minute + 1.0, 0.5)


def test_a_login_that_is_down_is_an_outage() -> None:
    """The connection timeout runs through it, though the service answers with a refusal."""
    judge = retries(connection_timeout=30.0)
    judge.broken(BROKEN, 100.0, 0.5)
    judge.judge(failure(FailureKind.REAUTHENTICATE), 110.0, 0.5)
    judge.broken(BROKEN, 111.0, 0.5)

    assert judge.give_up_at == 131.0


def test_the_connection_timeout_runs_from_the_first_failure() -> None:
    """However often it is tried meanwhile; without a timeout it is tried for ever."""
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


def test_waiting_for_the_slot_does_not_count_as_connection_failure() -> None:
    """The service answers; only the slot is missing."""
    judge = retries(connection_timeout=30.0)
    judge.broken(BROKEN, 100.0, 0.5)
    judge.judge(failure(FailureKind.SLOT_HELD), 110.0, 0.5)

    assert judge.give_up_at is None


def test_a_held_slot_is_asked_for_until_its_timeout() -> None:
    """Delays of its own, short at first; then an error that says what to do."""
    judge, held = retries(), failure(FailureKind.SLOT_HELD, SubscriptionBusyError("active"))
    assert judge.judge(held, 0.0, 0.5).reopen_at == 0.25
    verdict = judge.judge(held, TIMES.slot_timeout - 1, 0.5)
    assert verdict.signal is Signal.BUSY
    assert judge.reason == "active"

    verdict = judge.judge(held, TIMES.slot_timeout, 0.5)

    assert isinstance(verdict.error, SubscriptionBusyError)
    assert verdict.error.__cause__ is held.error


def test_an_outage_is_no_waiting_for_the_slot() -> None:
    """Half an hour without a network must not use up the time for the slot."""
    judge, held = retries(), failure(FailureKind.SLOT_HELD)
    judge.judge(held, 0.0, 0.5)
    judge.broken(BROKEN, 10.0, 0.5)
    verdict = judge.judge(held, 10.0 + 2 * TIMES.slot_timeout, 0.5)
    assert verdict.signal is Signal.BUSY
    judge.broken(BROKEN, 20.0 + 2 * TIMES.slot_timeout, 0.5)

    late = judge.judge(held, 3 * TIMES.slot_timeout + 20.0, 0.5)
    assert late.signal is Signal.BUSY, "20 s of waiting so far"
    assert judge.judge(held, 4 * TIMES.slot_timeout, 0.5).signal is Signal.FATAL
