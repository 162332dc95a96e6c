"""Between the threads of a driver and those of the application: what came, and how it ended.

One item per response. A waiter reads `Mailbox.count`, checks for news, and then waits for the count
to change, so nothing is missed that happens between the check and the wait. The asyncio face does
the same with a bell, which `Mailbox.listen` connects.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfpubsub.protocol.commands import Deliver, Finish


class Arrival(NamedTuple):
    """A response that waits for the application."""

    batch: Deliver
    received_at: float
    """Seconds since 1970 UTC on this machine's clock."""


class Mailbox:
    """The queue of one subscription. Thread-safe."""

    def __init__(self) -> None:
        # Not a condition: waiting on one is much Python code, which Ctrl-C can interrupt half-way.
        self._mutex = threading.Lock()
        # A lock for each that waits, taken; its release is the news. A wait that was interrupted
        # leaves one behind, which the next news removes.
        self._waiting: list[threading.Lock] = []
        self._arrivals: deque[Arrival] = deque()
        self._listener: Callable[[], None] | None = None
        self.count: int = 0
        """Changes with everything that somebody may be waiting for."""
        self.finish: Finish | None = None
        """How the subscription ended; None while it has not."""
        self.discarded: bool = False
        """Whether what was not taken is gone. That is for good: it comes before the end."""

    # For the driver.

    def put(self, arrival: Arrival) -> None:
        """Add what came, after everything that came before."""
        with self._mutex:
            self._arrivals.append(arrival)
            self._notify()

    def discard(self) -> None:
        """Forget what was not taken."""
        with self._mutex:
            self._arrivals.clear()
            self.discarded = True
            self._notify()

    def close(self, finish: Finish) -> None:
        """Say that nothing more comes, and why."""
        with self._mutex:
            self.finish = finish
            self._notify()

    def wake(self) -> None:
        """Wake all waiters so that they check again."""
        with self._mutex:
            self._notify()

    def _notify(self) -> None:
        self.count += 1
        while self._waiting:
            self._waiting.pop().release()
        if self._listener is not None:
            self._listener()

    # For the application.

    def peek(self) -> Arrival | None:
        """Return the next arrival and leave it where it is; never waits."""
        try:
            return self._arrivals[0]  # without the lock: one step of the interpreter
        except IndexError:
            return None

    def pop(self, arrival: Arrival) -> bool:
        """Take *arrival* off the queue; return whether it was the next one."""
        with self._mutex:
            if not self._arrivals or self._arrivals[0] is not arrival:
                return False
            self._arrivals.popleft()
            return True

    def wait(self, count: int, timeout: float | None) -> None:
        """Wait until `count` is not *count* any more, or for *timeout* seconds; None for ever."""
        bell = threading.Lock()
        bell.acquire()
        with self._mutex:
            if self.count != count:
                return
            self._waiting.append(bell)
        bound = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        if not bell.acquire(timeout=bound):
            with self._mutex:
                if bell in self._waiting:
                    self._waiting.remove(bell)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call *changed* now, and with everything that somebody may be waiting for.

        It is called in any thread, under a lock: it must not wait, and must not call back.
        """
        with self._mutex:
            self._listener = changed
            changed()
