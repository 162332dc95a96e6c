"""The time on which a mirror's schedule decides. This module is pure: no clock.

Invariant: whatever is due by time alone is found by `is_past`, so `next` never comes too late.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Now:
    """One moment, on two clocks."""

    clock: float
    """Monotonic clock, in seconds: for delays within a process."""
    wall: float
    """Seconds since the epoch: for what is stored."""


class Deadlines:
    """The present moment, and the earliest one at which something else will be due.

    Args:
        now: The present moment.
    """

    def __init__(self, now: Now) -> None:
        self.now: Now = now
        self.next: float = float("inf")
        """Earliest time of the monotonic clock that `is_past` was asked about in vain."""

    def is_past(self, at: float) -> bool:
        """Return whether the monotonic clock has reached a time; if not, it becomes a deadline."""
        if self.now.clock >= at:
            return True
        self.next = min(self.next, at)
        return False

    def is_past_wall(self, at: float) -> bool:
        """Like `is_past`, for a time in seconds since the epoch."""
        return self.now.wall >= at or self.is_past(self.now.clock + (at - self.now.wall))
