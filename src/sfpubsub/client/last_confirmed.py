"""Detect that a managed subscription's position was lost while nobody was connected.

The service stores the position, and drops it when the retention period ends. It then starts the
next stream elsewhere (errorRecoveryReplay) without an error. So the client keeps, durably, the time
up to which the service is known to have had the position: the time of the newest confirmed
position, by the service's own clock. When a stream begins too long after that, events may be lost.

The time of a confirmed position:

- If nothing newer was received, and the newest message is a keepalive, the position is the newest
  of the bus, so its time is that of its commit.
- Otherwise it is the time of the newest confirmed event, by the event's own timestamp: while a
  backlog is read, a position that was confirmed just now may already be days old.

This module is pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sfpubsub.config import Timings
from sfpubsub.types import Gap, Health, ReplayId

# Seconds by which the time moves before it is stored again. A kill makes a position look this much
# older than it is, which is little beside the 72 h of retention.
STORE_EVERY = 3600.0


@dataclass(frozen=True)
class Confirmed:
    """A position that the service is known to have had."""

    position: ReplayId
    at: float
    """Time of the position by the service's clock, in seconds since the epoch."""


class LastConfirmed:
    """The newest confirmed position of one managed subscription, and its time. Not thread-safe.

    Args:
        name: The managed subscription's name or id.
        stored: What an earlier process stored; None if nothing is stored.
        timings: `Timings.retention` and `Timings.retention_margin` are used.
    """

    def __init__(self, name: str, stored: Confirmed | None, timings: Timings) -> None:
        self._name = name
        self._longest = timings.retention - timings.retention_margin
        self._known = stored
        self._stored = stored
        self._is_lost = False  # whether the stored position is, which must not be found again
        self._acked: deque[tuple[int, float]] = deque()
        self._total = 0  # number of events in `_acked` and before it
        self._checked: int | None = None  # the last stream whose start was checked
        self._told = 0  # number of gaps of this kind that the subscription found or was told

    def acked(self, total: int, newest: float | None) -> None:
        """Record that events were acked, which will be committed.

        Args:
            total: Number of events acked so far, including these.
            newest: Time of the newest of these events by its own timestamp, in seconds since the
                epoch; None if unknown.
        """
        if newest is not None and total > self._total:
            self._total = total
            self._acked.append((total, newest))

    def observe(self, health: Health) -> Gap | None:
        """Update the time from the subscription's health.

        Returns:
            A gap if the position was lost before the current stream began. It is returned once; the
            caller reports and stores it, and only then stores `due`.
        """
        if health.process_time is None or health.committed is None or not health.has_committed:
            return None  # the service's time is not known on this stream yet
        now = health.process_time / 1000
        gap = None
        if health.reconnects != self._checked:
            self._checked = health.reconnects
            gap = self._gap(now)
        at = self._newest_acked(health.confirmed)
        if health.caught_up and health.committed == health.last_position:
            at = now
        self._is_lost = self._is_lost or gap is not None
        told, self._told = self._told, sum(each.reason == "expired" for each in health.gaps)
        found = gap
        if gap is not None and self._told > told:
            gap = None  # the subscription has reported it itself, within this process
        elif gap is not None:
            self._told += 1  # the caller reports it to the subscription
        if found is not None or (at is not None and (self._known is None or at > self._known.at)):
            self._known = Confirmed(health.committed, now if at is None else min(at, now))
        return gap

    def _gap(self, now: float) -> Gap | None:
        known = self._known
        if known is None or now - known.at <= self._longest:
            return None
        return Gap("expired", self._name, after=known.position)

    def _newest_acked(self, confirmed: int) -> float | None:
        newest = None
        while self._acked and self._acked[0][0] <= confirmed:
            _, at = self._acked.popleft()
            newest = at if newest is None else max(newest, at)
        return newest

    def due(self, *, last: bool = False) -> Confirmed | None:
        """Return what to store durably now; None if the time has not moved by an hour.

        Args:
            last: Whether this is the last opportunity, so that any movement is returned.
        """
        known, stored = self._known, self._stored
        if known is None or known == stored:
            return None
        if stored is None or self._is_lost or last or known.at - stored.at >= STORE_EVERY:
            return known
        return None

    def stored(self, confirmed: Confirmed) -> None:
        """Record that *confirmed* is durable."""
        self._stored, self._is_lost = confirmed, False
