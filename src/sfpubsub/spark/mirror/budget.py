"""Count the API calls of a mirror and limit them to a daily budget.

This module is pure: no I/O, no clock. The plans of the mirror's steps (tables/steps.py) record the
calls used, so a restart loses only the count of calls since the last step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# Window over which calls are counted, in seconds; the org uses the same (documentation:
# DailyApiRequests).
DAY = 24 * 3600.0

_HOUR = 3600.0


class Budget:
    """Counts the API calls of the last 24 hours. Not thread-safe.

    Args:
        most: Maximum number of calls in 24 hours; None for no limit.
        used: Earlier calls, as pairs of time (seconds since the epoch) and number of calls.
    """

    def __init__(self, most: int | None, used: Iterable[tuple[float, int]] = ()) -> None:
        self.most = most
        self._used = deque(sorted((time, count) for time, count in used))
        self._counted = 0

    def count(self, now: float, calls: int) -> list[tuple[float, int]]:
        """Record the calls made since `count` was last called.

        The caller has to store the result durably.

        Args:
            now: Current time, in seconds since the epoch.
            calls: Number of calls this process has made so far.

        Returns:
            The calls of the last 24 hours, in the form of *used*: at most one pair per hour, with
            the time of the hour's last call.
        """
        new = calls - self._counted
        self._counted = calls
        self._forget(now)
        if new:
            last = self._used[-1] if self._used else (float("-inf"), 0)
            if last[0] // _HOUR == now // _HOUR:
                self._used.pop()
                new += last[1]
            self._used.append((now, new))
        return list(self._used)

    def spent(self, now: float, calls: int) -> int:
        """Return the number of calls made in the last 24 hours; see `count` for the arguments."""
        self._forget(now)
        return sum(used for _, used in self._used) + calls - self._counted

    def may_read(self, now: float, calls: int) -> bool:
        """Return whether another read may begin; see `count` for the arguments.

        A running read may exceed the budget, because its cost is not known in advance.
        """
        return self.most is None or self.spent(now, calls) < self.most

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] <= now - DAY:
            self._used.popleft()
