"""Decide what to do when a stream ends: when to retry, or with which error to give up.

Each budget limits the time for which one kind of failure may last. The first response on a stream
resets all budgets. Opening a stream does not: otherwise, a service that accepts calls and then
fails them would be retried forever. A stream without a response resets them only after it has been
open for so long that a dead connection would have been detected.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sfpubsub.backoff import Backoff
from sfpubsub.config import Timings
from sfpubsub.errors import (
    ConfigurationError,
    LocalProtocolError,
    SessionExpiredError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionBusyError,
)
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import Signal


def is_final(error: SfPubSubError) -> bool:
    """Return whether an error that ended a unary call or a sign-in cannot be cured by a retry.

    It is if the service or the login host named the cause by a code of its own, or if the cause is
    on this side. Anything else, such as a page in HTML or a status without a code, may come from an
    intermediary, or be a fault of the login host that passes.
    """
    if error.retryable:
        return False
    ours = (ConfigurationError, LocalProtocolError, SessionExpiredError)
    return error.error_code is not None or isinstance(error, ours)


class _Trouble(enum.Enum):
    DOWN = "the service or the network is down"
    BUSY = "the managed subscription is used by another connection"
    SHUT_OUT = "the service refuses sessions"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a subscription or publisher reacts to a failure."""

    signal: Signal
    reopen_at: float = 0.0
    """Earliest time to open the next stream; for EXPIRED, a new session is needed as well."""
    error: SfPubSubError | None = None
    """For FATAL, the error that ends the subscription or publisher."""


class Retries:
    """Retry budgets of a subscription or publisher. Not thread-safe; the driver serialises calls.

    Args:
        name: The topic, or the managed subscription's name or id.
        timings: Intervals, delays and timeouts; see `Timings`.
        connection_timeout: How long an outage may last, in seconds; None means forever.
    """

    def __init__(self, name: str, timings: Timings, connection_timeout: float | None) -> None:
        self._name = name
        self._timings = timings
        self._connection_timeout = connection_timeout
        self._backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._slot = Backoff(timings.slot_initial, timings.slot_max)
        # The time between two failures counts towards the first failure's kind, so that an outage
        # does not count as waiting for the slot, and vice versa.
        self._last: tuple[_Trouble, float] | None = None
        self._spent = dict.fromkeys(_Trouble, 0.0)
        self._renewed = False  # whether a session was fetched since the last response
        self._let_in = False  # whether the service has ever sent a response
        self.reason: str | None = None
        """The last failure; None once a stream works again."""

    def responded(self) -> None:
        """Record a response from the service, and reset all retry budgets."""
        self._let_in = True
        self.recovered()

    def recovered(self) -> None:
        """Reset all retry budgets, as after the end of an outage."""
        self._backoff.reset()
        self._slot.reset()
        self._last = None
        self._spent = dict.fromkeys(_Trouble, 0.0)
        self._renewed = False
        self.reason = None

    def renewed(self) -> None:
        """Record that a session was fetched."""
        self._renewed = True

    def broken(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Handle a transport failure, or a transient failure of the service."""
        return self._later(Signal.BROKEN, error, now, jitter)

    def stalled(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Handle a stream that was silent for too long."""
        return self._later(Signal.STALLED, error, now, jitter)

    def unrenewed(self, failure: Failure, now: float, jitter: float) -> Verdict:
        """Record a failure to obtain a new session, and return how to react.

        Args:
            failure: The failure. TURNED_AWAY means that the login host gave no reason of its own.
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
        """
        if failure.kind is FailureKind.RETRY:
            return self.broken(failure.error, now, jitter)
        if failure.kind is not FailureKind.TURNED_AWAY or not self._let_in:
            return Verdict(Signal.FATAL, error=failure.error)
        if self._count(_Trouble.SHUT_OUT, failure.error, now) < self._timings.session_budget:
            return Verdict(Signal.BROKEN, now + self._backoff.next(jitter))
        error = SessionExpiredError(
            f"no new session for {self._name} was obtained for "
            f"{self._timings.session_budget:g} s; the last failure: {failure.error}",
            retryable=True,
        )
        error.__cause__ = failure.error
        return Verdict(Signal.FATAL, error=error)

    def moved(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Handle a rejected position that was replaced by the fallback."""
        self.reason = str(error)
        return Verdict(Signal.MOVED, now + self._backoff.next(jitter))

    def judge(self, failure: Failure, now: float, jitter: float) -> Verdict:
        """Record how a stream ended, and return how to react.

        Args:
            failure: How the stream ended.
            now: The current time, in seconds.
            jitter: A uniform random number in [0, 1).
        """
        if failure.kind is FailureKind.RETRY:
            return self.broken(failure.error, now, jitter)
        if failure.kind is FailureKind.TURNED_AWAY and self._let_in:
            # The refusal does not come from the service itself, which has answered before, so it is
            # treated as a temporary fault of an intermediary.
            verdict = self.broken(failure.error, now, jitter)
            self.reason = f"{failure.error}; treated as temporary: the service answered before"
            return verdict
        if failure.kind is FailureKind.SLOT_HELD:
            return self._busy(failure.error, now, jitter)
        if failure.kind is FailureKind.REAUTHENTICATE:
            return self._shut_out(failure.error, now, jitter)
        return Verdict(Signal.FATAL, error=failure.error)

    @property
    def give_up_at(self) -> float | None:
        """When to give up because the current outage has lasted too long.

        None if there is no outage, or if outages may last forever.
        """
        if self._connection_timeout is None or self._last is None:
            return None
        trouble, since = self._last
        if trouble is not _Trouble.DOWN:
            return None
        return since + self._connection_timeout - self._spent[trouble]

    def given_up(self) -> StreamUnavailableError:
        """Return the error for an outage that has lasted too long."""
        return StreamUnavailableError(
            f"no connection to {self._name} for {self._connection_timeout:g} s; the last failure: "
            f"{self.reason}"
        )

    def _count(self, trouble: _Trouble, error: SfPubSubError, now: float) -> float:
        """Record a failure; return how long failures of its kind have lasted, in seconds."""
        if self._last is not None:
            before, at = self._last
            self._spent[before] += now - at
        self._last = (trouble, now)
        self.reason = str(error)
        return self._spent[trouble]

    def _later(self, signal: Signal, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        self._count(_Trouble.DOWN, error, now)
        return Verdict(signal, now + self._backoff.next(jitter))

    def _busy(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        spent = self._count(_Trouble.BUSY, error, now)
        # The service answers, and has accepted the session; only the slot is occupied.
        self._spent[_Trouble.DOWN] = self._spent[_Trouble.SHUT_OUT] = 0.0
        if spent < self._timings.slot_timeout:
            return Verdict(Signal.BUSY, now + self._slot.next(jitter))
        busy = SubscriptionBusyError(
            f"{self._name} was held by another client for {self._timings.slot_timeout:.0f} s: stop "
            f"that client, or try again later",
            error_code=error.error_code,
            rpc_id=error.rpc_id,
        )
        busy.__cause__ = error
        return Verdict(Signal.FATAL, error=busy)

    def _shut_out(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        spent = self._count(_Trouble.SHUT_OUT, error, now)
        # If no session could be fetched since the last response, `unrenewed` decides.
        if spent < self._timings.session_budget or not self._renewed:
            # An expired session is renewed immediately. If a session is refused although it was
            # just fetched, it may need time to reach all servers, so the delay increases.
            delay = self._backoff.next(jitter) if self._renewed else 0.0
            return Verdict(Signal.EXPIRED, now + delay)
        refused = SessionExpiredError(
            f"every session for {self._name} was refused for {self._timings.session_budget:g} s, "
            f"though signing in worked; the last refusal: {error}",
            retryable=True,
            error_code=error.error_code,
            rpc_id=error.rpc_id,
        )
        refused.__cause__ = error
        return Verdict(Signal.FATAL, error=refused)
