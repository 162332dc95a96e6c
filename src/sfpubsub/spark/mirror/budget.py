"""How many calls of the org's allowance a mirror has used, and whether it may use more.

Pure: no I/O, no clock. The plans of steps keep what was used, so that a restart forgets no more
than the calls since the last step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# Seconds over which calls are counted, as the org itself does (documentation: DailyApiRequests).
DAY = 24 * 3600.0


class Budget:
    """Calls of the last 24 hours. Not thread-safe.

    Args:
        most: Calls of 24 hours; None for any number.
        used: When calls were made before, in seconds since 1970 UTC, and how many.
    """

    def __init__(self, most: int | None, used: Iterable[tuple[float, int]] = ()) -> None:
        self.most = most
        self._used = deque(sorted(used))
        self._counted = 0

    def count(self, now: float, calls: int) -> int:
        """Take note of what was used; return how many calls are new, to be kept by the caller.

        Args:
            now: Seconds since 1970 UTC.
            calls: Made by this process so far.
        """
        new = calls - self._counted
        if new:
            self._used.append((now, new))
            self._counted = calls
        return new

    def spent(self, now: float, calls: int) -> int:
        """Return how many calls were made in the last 24 hours; arguments as of `count`."""
        while self._used and self._used[0][0] <= now - DAY:
            self._used.popleft()
        return sum(used for _, used in self._used) + calls - self._counted

    def may_read(self, now: float, calls: int) -> bool:
        """Whether another read may begin. What a read costs is known when it is done."""
        return self.most is None or self.spent(now, calls) < self.most
