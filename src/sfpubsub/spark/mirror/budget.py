"""Count the API calls of a mirror and limit them to a daily budget.

This module is pure: no I/O, no clock. The plans of the mirror's steps (tables/steps.py) record the
calls used, so a restart loses only the count of calls since the last step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sfpubsub.spark.mirror.deadlines import Deadlines

# Window over which calls are counted, in seconds; the org uses the same (documentation:
# DailyApiRequests).
DAY = 24 * 3600.0

_HOUR = 3600.0


class Budget:
    """Counts the API calls of the last 24 hours. Not thread-safe.

    Args:
        most: Maximum number of calls in 24 hours; None for no limit.
        time: The present moment.
        used: Earlier calls, in the form of `used`.
    """

    def __init__(
        self, most: int | None, time: Deadlines, used: Iterable[tuple[float, int]] = ()
    ) -> None:
        self.most = most
        self._time = time
        self._used = deque(sorted((at, count) for at, count in used))
        self._counted = 0

    def count(self, calls: int) -> None:
        """Record calls when they have been made.

        Args:
            calls: Number of calls that this process has made so far.
        """
        new, now = calls - self._counted, self._time.now.wall
        self._counted = calls
        if new:
            if self._used and self._used[-1][0] // _HOUR == now // _HOUR:
                new += self._used.pop()[1]
            self._used.append((now, new))

    @property
    def used(self) -> list[tuple[float, int]]:
        """The calls of the last 24 hours, as pairs of time (seconds since the epoch) and number.

        There is at most one pair per hour, with the time of the hour's last call.
        """
        while self._used and self._time.is_past_wall(self._used[0][0] + DAY):
            self._used.popleft()
        return list(self._used)

    @property
    def may_read(self) -> bool:
        """Whether another read may begin.

        A running read may exceed the budget, because its cost is not known in advance.
        """
        return self.most is None or sum(count for _, count in self.used) < self.most
