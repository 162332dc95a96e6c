"""What to do when a stream ends: try again when, or give up with which error.

Every budget is refilled by the first response of a stream, never by its opening: a service that
accepts calls and then fails them would otherwise be asked for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.config import Timings
from sfpubsub.errors import SfPubSubError, StreamUnavailableError, SubscriptionBusyError
from sfpubsub.protocol.backoff import Backoff
from sfpubsub.protocol.events import Failure, FailureKind
from sfpubsub.protocol.states import Signal

# Sessions fetched in a row without a response in between; a session that is refused three times
# will be refused the fourth time too (wrong org, missing scope, IP-locked).
MAX_RENEWALS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows a failure."""

    signal: Signal
    reopen_at: float = 0.0
    """When a stream may be opened again, with BROKEN, STALLED, BUSY and MOVED."""
    error: SfPubSubError | None = None
    """What ends the subscription, with FATAL."""


class Retries:
    """The budgets of one subscription. Not thread-safe; the driver serialises.

    Args:
        name: Topic, or name or id of the managed subscription.
        timings: Times of the service and the client.
        connection_timeout: How long transport failures may last, in seconds; None for ever.
    """

    def __init__(self, name: str, timings: Timings, connection_timeout: float | None) -> None:
        self._name = name
        self._timings = timings
        self._connection_timeout = connection_timeout
        self._backoff = Backoff(timings.backoff_initial, timings.backoff_max)
        self._slot = Backoff(timings.slot_initial, timings.slot_max)
        self._renewals = 0
        self._broken_since: float | None = None
        self._busy_since: float | None = None
        self.reason: str | None = None
        """The last failure, until a response comes."""

    def recovered(self) -> None:
        """Refill every budget: a response came."""
        self._backoff.reset()
        self._slot.reset()
        self._broken_since = self._busy_since = None
        self._renewals = 0
        self.reason = None

    def renewed(self) -> None:
        """Count a session that was fetched."""
        self._renewals += 1

    def broken(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Judge a failure of the transport or a passing one of the service."""
        return self._later(Signal.BROKEN, error, now, jitter)

    def stalled(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Judge a stream that was silent for too long."""
        return self._later(Signal.STALLED, error, now, jitter)

    def moved(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        """Judge a refused position, when there is another one to go on from."""
        self.reason = str(error)
        return Verdict(Signal.MOVED, now + self._backoff.next(jitter))

    def judge(self, failure: Failure, now: float, jitter: float) -> Verdict:
        """Judge any other end of a stream.

        Args:
            failure: How it ended.
            now: The time.
            jitter: A uniform random number in [0, 1).
        """
        if failure.kind is FailureKind.RETRY:
            return self.broken(failure.error, now, jitter)
        if failure.kind is FailureKind.SLOT_HELD:
            return self._busy(failure.error, now, jitter)
        if failure.kind is FailureKind.REAUTHENTICATE and self._renewals < MAX_RENEWALS:
            self.reason = str(failure.error)
            return Verdict(Signal.EXPIRED)
        return Verdict(Signal.FATAL, error=failure.error)

    @property
    def give_up_at(self) -> float | None:
        """When transport failures have lasted too long; None while they have not begun."""
        if self._connection_timeout is None or self._broken_since is None:
            return None
        return self._broken_since + self._connection_timeout

    def given_up(self) -> StreamUnavailableError:
        """Return the error for a connection that did not come back in time."""
        return StreamUnavailableError(
            f"no connection to {self._name} for {self._connection_timeout:g} s; the last failure: "
            f"{self.reason}"
        )

    def _later(self, signal: Signal, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        if self._broken_since is None:
            self._broken_since = now
        self.reason = str(error)
        return Verdict(signal, now + self._backoff.next(jitter))

    def _busy(self, error: SfPubSubError, now: float, jitter: float) -> Verdict:
        if self._busy_since is None:
            self._busy_since = now
        elif self._broken_since is not None:
            self._busy_since += now - self._broken_since  # an outage is no waiting for the slot
        self._broken_since = None  # the service answers; only the slot is missing
        self.reason = str(error)
        if now - self._busy_since < self._timings.slot_timeout:
            return Verdict(Signal.BUSY, now + self._slot.next(jitter))
        busy = SubscriptionBusyError(
            f"{self._name} was held by another client for {self._timings.slot_timeout:.0f} s: stop "
            f"that client, or try again later",
            error_code=error.error_code,
            rpc_id=error.rpc_id,
        )
        busy.__cause__ = error
        return Verdict(Signal.FATAL, error=busy)
