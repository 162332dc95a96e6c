"""Decide what to do when a stream ends: retry, and when, or give up, and with which error.

Every budget is a time, and is refilled by the first response of a stream, not by its opening: a
service that accepts calls and then fails them would otherwise be asked for ever. A stream that has
brought nothing, and was open for so long that a dead connection would have shown, counts as well.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sfpubsub.config import Timings
from sfpubsub.errors import (
    SessionExpiredError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionBusyError,
)
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import Signal


class _Trouble(enum.Enum):
    DOWN = "the service or the way to it is down"
    BUSY = "the managed subscription is held by another connection"
    SHUT_OUT = "the service refuses sessions"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reaction to a failure."""

    signal: Signal
    reopen_at: float = 0.0
    """When a stream may be opened again; for EXPIRED, once there is a new session."""
    error: SfPubSubError | None = None
    """For FATAL, the error that ends the subscription."""


class Retries:
    """The retry budgets of one subscription. Not thread-safe; the driver serialises.

    Args:
        name: The topic, or the managed subscription's name or id.
        timings: Times of the service and the client.
        connection_timeout: How long an outage may last, in seconds; None means forever.
    """

    def __init__(self, name: str, timings: Timings, connection_timeout: float | None) -> None:
        self._name = name
        self._timings = timings
        self._connection_timeout = connection_timeout
        self._backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._slot = Backoff(timings.slot_initial, timings.slot_max)
        # Each second from a failure to the next belongs to the trouble of the first one, so that
        # an outage is not a wait for the slot, and vice versa.
        self._last: tuple[_Trouble, float] | None = None
        self._spent = dict.fromkeys(_Trouble, 0.0)
        self._renewed = False  # a session was fetched since the last response
        self._let_in = False  # a response came once
        self.reason: str | None = None
        """The last failure, until a stream is known to work."""

    def responded(self) -> None:
        """Record that the service has responded, and refill every budget."""
        self._let_in = True
        self.recovered()

    def recovered(self) -> None:
        """Refill every budget, because the stream works."""
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

    def moved(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Handle a rejected position if there is another one to continue from."""
        self.reason = str(error)
        return Verdict(Signal.MOVED, now + self._backoff.next(jitter))

    def judge(self, failure: Failure, now: float, jitter: float) -> Verdict:
        """Handle any other end of a stream.

        Args:
            failure: How it ended.
            now: The time.
            jitter: A uniform random number in [0, 1).
        """
        if failure.kind is FailureKind.RETRY:
            return self.broken(failure.error, now, jitter)
        if failure.kind is FailureKind.TURNED_AWAY and self._let_in:
            # Not the service's words, and it has answered before: something on the way.
            verdict = self.broken(failure.error, now, jitter)
            self.reason = f"{failure.error}; taken for passing, as the service answered before"
            return verdict
        if failure.kind is FailureKind.SLOT_HELD:
            return self._busy(failure.error, now, jitter)
        if failure.kind is FailureKind.REAUTHENTICATE:
            return self._shut_out(failure.error, now, jitter)
        return Verdict(Signal.FATAL, error=failure.error)

    @property
    def give_up_at(self) -> float | None:
        """When the current outage has lasted too long; None if there is none."""
        if self._connection_timeout is None or self._last is None:
            return None
        trouble, since = self._last
        if trouble is not _Trouble.DOWN:
            return None
        return since + self._connection_timeout - self._spent[trouble]

    def given_up(self) -> StreamUnavailableError:
        """Return the error for an outage that lasted too long."""
        return StreamUnavailableError(
            f"no connection to {self._name} for {self._connection_timeout:g} s; the last failure: "
            f"{self.reason}"
        )

    def _count(self, trouble: _Trouble, error: SfPubSubError, now: float) -> float:
        """Return how long *trouble* has lasted."""
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
        self._spent[_Trouble.DOWN] = 0.0  # the service answers; only the slot is missing
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
        if self._count(_Trouble.SHUT_OUT, error, now) < self._timings.session_budget:
            # A session that expired is renewed at once. One that is refused although it was just
            # fetched may not be known everywhere yet: the next one is given more and more time.
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
