"""Time, as the emulator knows it: injected everywhere, and able to jump.

Nothing else in the package asks the operating system for the time, but for the HTTP server, whose
sockets know only real time. Invariant: time never goes back within a process, whatever happens to
the machine's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """Real time plus the jumps that were asked for.

    A jump of 73 hours makes everything due that 73 hours would have made due: retention,
    keepalives, deadlines. Jumps live as long as the process; a restarted emulator is back at real
    time.

    Thread-safe.
    """

    def __init__(self) -> None:
        # Wall time is read once; afterwards the monotonic clock counts, so that a correction of the
        # machine's clock cannot fire deadlines.
        self._base = time.time() - time.monotonic()
        self._jumped = 0.0
        self._lock = threading.Lock()  # guards _jumped and _listeners
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> float:
        """Seconds since 1970 UTC, jumps included."""
        return self.outside() + self._jumped

    def outside(self) -> float:
        """Seconds since 1970 UTC without jumps: what a client's own clock shows."""
        return self._base + time.monotonic()

    def timeout(self, deadline: float | None) -> float | None:
        """Real seconds to wait for `deadline` unless woken earlier; None is for ever."""
        if deadline is None:
            return None
        # threading refuses waits above TIMEOUT_MAX; a waiter that wakes early looks again.
        return min(max(0.0, deadline - self.now()), threading.TIMEOUT_MAX)

    def jump(self, seconds: float) -> None:
        """Move on by `seconds` at once and wake everything that waits for a time.

        Raises:
            ValueError: `seconds` is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot go back: jump of {seconds} seconds")
        with self._lock:
            self._jumped += seconds
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def on_jump(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each jump, in the thread that jumps."""
        with self._lock:
            self._listeners.append(listener)


class ManualClock(Clock):
    """Time that stands still except for jumps; for tests of deadlines.

    Args:
        start: Seconds since 1970 UTC at which it stands first.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        super().__init__()
        self._start = start

    def now(self) -> float:
        """Seconds since 1970 UTC: the start plus all jumps."""
        return self._start + self._jumped

    def timeout(self, deadline: float | None) -> float | None:
        """Zero once the deadline has passed, else for ever: only a jump can bring it."""
        return 0.0 if deadline is not None and deadline <= self.now() else None
