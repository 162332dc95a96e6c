"""The emulator's clock, which can jump forward.

It is passed to every module that needs the time. Only the HTTP server also reads the system time,
because its sockets use real time. Invariant: within a process the clock never goes backwards, even
if the machine's clock is changed. `resume` continues that across processes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable


class Clock:
    """A clock that shows real time plus all requested jumps.

    After a jump of 73 hours, everything that would have become due in that time is due: the end of
    the retention period, keepalives, deadlines. An emulator that is started again keeps the jumps.

    Thread-safe.
    """

    def __init__(self) -> None:
        # The wall clock is read once; from then on the monotonic clock is used, so that adjusting
        # the machine's clock does not trigger deadlines.
        self._base = time.time() - time.monotonic()
        self._jumped = 0.0
        self._lock = threading.Lock()  # guards _jumped and _listeners
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> float:
        """Return the time in seconds since the epoch, including jumps."""
        return self.outside() + self._jumped

    @property
    def jumped(self) -> float:
        """The sum of all jumps, in seconds."""
        return self._jumped

    def resume(self, jumped: float, newest: float) -> None:
        """Continue where an earlier process with the same data directory ended.

        Args:
            jumped: The sum of that process's jumps, in seconds.
            newest: The newest stored time, in seconds since the epoch. The clock does not show an
                earlier one, even if the machine's clock was set back.
        """
        with self._lock:
            self._jumped = max(self._jumped, jumped)
            self._jumped += max(0.0, newest - self.now())

    def outside(self) -> float:
        """Return the real time, without jumps, in seconds since the epoch."""
        return self._base + time.monotonic()

    def timeout(self, deadline: float | None) -> float | None:
        """Return how many seconds of real time to wait for *deadline*, unless a jump wakes the
        caller earlier. Return None, which means no limit, if *deadline* is None.
        """
        if deadline is None:
            return None
        # threading rejects timeouts above TIMEOUT_MAX; a waiter that wakes early checks again.
        return min(max(0.0, deadline - self.now()), threading.TIMEOUT_MAX)

    def jump(self, seconds: float) -> None:
        """Move the clock forward by *seconds*, and wake everything that waits for a deadline.

        Raises:
            ValueError: *seconds* is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"the clock cannot go back: jump by 0 seconds or more, not {seconds}")
        with self._lock:
            self._jumped += seconds
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def off_jump(self, listener: Callable[[], None]) -> None:
        """Unregister a function that was given to `on_jump`, if it is registered."""
        with self._lock, contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    def on_jump(self, listener: Callable[[], None]) -> None:
        """Register a function to call after each jump, in the thread that calls `jump`."""
        with self._lock:
            self._listeners.append(listener)


class ManualClock(Clock):
    """A clock that advances only by jumps, for tests of deadlines.

    Args:
        start: The initial time, in seconds since the epoch.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        super().__init__()
        self._start = start

    def now(self) -> float:
        """Return the initial time plus all jumps, in seconds since the epoch."""
        return self._start + self._jumped

    def timeout(self, deadline: float | None) -> float | None:
        """Return 0 if the deadline has passed. Otherwise return None, which means to wait without
        limit, because only a jump can reach the deadline.
        """
        return 0.0 if deadline is not None and deadline <= self.now() else None
