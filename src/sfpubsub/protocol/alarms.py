"""The timers of a subscription: what it waits for, and when each timer is due.

`Alarms` only computes the times. The subscription decides how to react. If several timers are due,
it handles the one that `Alarms.due` returns first.
"""

from __future__ import annotations

import enum

from sfpubsub.config import Timings
from sfpubsub.protocol.managed_position import ManagedPosition
from sfpubsub.protocol.outage import Outage
from sfpubsub.protocol.outgoing import Outgoing
from sfpubsub.protocol.retries import Retries
from sfpubsub.protocol.states import State

_NEVER = float("inf")


class Due(enum.Enum):
    """The kinds of timers. Each value states why the timer is due."""

    GIVE_UP = "the connection was not restored in time"
    REOPEN = "the delay before the next stream has passed"
    STEADY = "a stream has been open long enough to count as healthy"
    SILENT = "a message was expected on the stream, but none arrived in time"
    RESERVE = "a stream without credit must request an event to stay open"
    COMMIT = "a commit must be sent, or has timed out"
    NEVER_ACKED = "the application reads events but does not ack them"
    REPORT = "an outage must be reported"
    CLOSE = "the clean shutdown has taken long enough"


_WHILE_STREAMING = (Due.SILENT, Due.RESERVE, Due.COMMIT, Due.NEVER_ACKED)


class Alarms:
    """The timers of one subscription. Not thread-safe; the driver serialises all calls.

    Args:
        timings: Intervals, delays and timeouts; see `Timings`.
        outgoing: Provides the time when events were last requested.
        retries: Provides the time at which an outage has lasted too long.
        outage: Provides the time when an outage must be reported.
        managed: Provides the time when a commit is due; None for a plain subscription.
    """

    def __init__(
        self,
        timings: Timings,
        outgoing: Outgoing,
        retries: Retries,
        outage: Outage,
        managed: ManagedPosition | None,
    ) -> None:
        self._timings = timings
        self._outgoing = outgoing
        self._retries = retries
        self._outage = outage
        self._managed = managed
        self.heard_at: float = 0.0
        """When the last message was received or the stream was opened."""
        self.reopen_at: float = 0.0
        """When a stream may be opened again."""
        self.close_by: float = 0.0
        """Deadline of draining, then of closing."""
        self.full_since: float | None = None
        """When too many events were unacked or behind an unacked one, or when the oldest was last
        acked after that; None while the number is within the limit.
        """

    def due(self, state: State) -> list[tuple[float, Due]]:
        """Return the timers that run in *state*, with their due times, in order of priority."""
        times, found = self._timings, list[tuple[float, Due]]()
        if state is State.STREAMING:
            found += zip(self._while_streaming(), _WHILE_STREAMING, strict=True)
        elif state is State.WAITING:
            # Not in OPENING: the first response of an idle topic may take a keepalive interval.
            if self._retries.give_up_at is not None:
                found.append((self._retries.give_up_at, Due.GIVE_UP))
            found += [(self.reopen_at, Due.REOPEN), (self._outage.due_at, Due.REPORT)]
        elif state is State.RENEWING:
            found.append((self._outage.due_at, Due.REPORT))
        elif state is State.OPENING:
            if times.ping_interval and self._retries.reason is not None:
                # By then, unanswered pings would have ended a dead stream.
                answered = times.ping_interval + times.ping_timeout
                found.append((self.heard_at + times.steady + answered, Due.STEADY))
            found.append((self._silent_at, Due.SILENT))
        elif state is State.PAUSED:
            found.append((self._never_acked_at, Due.NEVER_ACKED))
        elif state in {State.SAVING, State.DRAINING, State.CLOSING}:
            found.append((self.close_by, Due.CLOSE))
        return found

    def earliest(self, state: State) -> float:
        """Return when the first timer is due in *state*; infinity if no timer runs."""
        if state is State.STREAMING:  # a shortcut: this is called after each response and ack
            return min(self._while_streaming())
        return min([at for at, _ in self.due(state)], default=_NEVER)

    @property
    def _silent_at(self) -> float:
        outgoing = self._outgoing
        if not outgoing.window.outstanding:
            return _NEVER
        # The service owes a message only while events are requested, so count from the last request
        # if that is later.
        since = max(self.heard_at, outgoing.last_credit)
        return since + self._timings.keepalive + self._timings.keepalive_margin

    def _while_streaming(self) -> tuple[float, float, float, float]:
        """Return when each timer of `_WHILE_STREAMING` is due; infinity for a timer that is off."""
        outgoing, reserve, commit = self._outgoing, _NEVER, _NEVER
        if outgoing.window.starving:
            # Commits and their responses are not assumed to reset the service's timeout of 60 s.
            reserve = outgoing.last_figure + self._timings.reserve
        if self._managed is not None:
            at = self._managed.commit_at
            commit = _NEVER if at is None else at
        return self._silent_at, reserve, commit, self._never_acked_at

    @property
    def _never_acked_at(self) -> float:
        return _NEVER if self.full_since is None else self.full_since + self._timings.unacked_stall
