"""Counts the HTTP API calls to an org in the last 24 hours. The counts are lost on a restart."""

from __future__ import annotations

import threading
from collections import deque

from sfpubsub.emulator.org.usage import DAY_S, SEGMENT_S


class ApiCalls:
    """Counts API calls, and enforces a limit. Thread-safe.

    Calls are counted in segments of 15 minutes, so a day needs only about a hundred counters.

    Args:
        most: Maximum number of calls in 24 hours.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()  # guards the segments
        self._segments: deque[tuple[int, int]] = deque()  # pairs (segment number, calls)
        self._used = 0

    def take(self, now: float) -> bool:
        """Count a call at *now* (seconds since the epoch) unless the limit is reached. Return
        whether it was counted.
        """
        segment = int(now // SEGMENT_S)
        with self._lock:
            self._forget(now)
            if self._used >= self.most:
                return False
            last = self._segments.pop() if self._segments else (segment, 0)
            if last[0] != segment:
                self._segments.append(last)
                last = segment, 0
            self._segments.append((segment, last[1] + 1))
            self._used += 1
            return True

    def set_remaining(self, remaining: int, now: float) -> None:
        """Let an org have this many calls left at *now* (seconds since the epoch), as if all others
        had just been made: they become available again 24 hours later.

        Raises:
            ValueError: *remaining* is negative or above the limit.
        """
        if not 0 <= remaining <= self.most:
            raise ValueError(f"remaining must be from 0 to {self.most}, not {remaining}")
        with self._lock:
            self._segments.clear()
            self._used = self.most - remaining
            if self._used:
                self._segments.append((int(now // SEGMENT_S), self._used))

    def remaining(self, now: float) -> int:
        """Return how many more calls are allowed at *now* (seconds since the epoch)."""
        with self._lock:
            self._forget(now)
            return self.most - self._used

    def _forget(self, now: float) -> None:
        while self._segments and (self._segments[0][0] + 1) * SEGMENT_S <= now - DAY_S:
            self._used -= self._segments.popleft()[1]
