"""The queue between the threads of a driver and those of the application.

The queue holds one item per response. A waiter reads `Mailbox.count`, checks the state, and then
waits for the count to change, so it misses nothing that happens between the check and the wait. The
asyncio API does the same with a callback set by `Mailbox.listen`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sfpubsub.protocol.commands import Deliver, Finish


class Arrival(NamedTuple):
    """A received response, queued for delivery to the application."""

    batch: Deliver
    received_at: float
    """Time of receipt in seconds since the epoch, by this machine's clock."""


class Mailbox:
    """The queue of received responses of one subscription. Thread-safe."""

    def __init__(self) -> None:
        # Not a condition, whose wait is a lot of Python code that Ctrl-C can interrupt half-way.
        self._mutex = threading.Lock()
        # One acquired lock per waiter; releasing it wakes the waiter. An interrupted wait leaves
        # its lock behind, which the next notification removes.
        self._waiting: list[threading.Lock] = []
        self._arrivals: deque[Arrival] = deque()
        self._listener: Callable[[], None] | None = None
        self.count: int = 0
        """Counter that increases whenever a waiter should check the state again."""
        self.finish: Finish | None = None
        """How the subscription ended; None before the end."""
        self.discarded: bool = False
        """Whether the pending responses were discarded. No response is queued after that."""

    # For the driver.

    def put(self, arrival: Arrival) -> None:
        """Append a response to the queue."""
        with self._mutex:
            self._arrivals.append(arrival)
            self._notify()

    def discard(self) -> None:
        """Discard the pending responses."""
        with self._mutex:
            self._arrivals.clear()
            self.discarded = True
            self._notify()

    def close(self, finish: Finish) -> None:
        """Record the end of the subscription and its cause. No response arrives after this."""
        with self._mutex:
            self.finish = finish
            self._notify()

    def wake(self) -> None:
        """Wake all waiters so that they check the state again."""
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
        """Return the next arrival without removing it; None if the queue is empty. Never blocks."""
        try:
            return self._arrivals[0]  # needs no lock: a single atomic operation of the interpreter
        except IndexError:
            return None

    def pop(self, arrival: Arrival) -> bool:
        """Remove *arrival* if it is next in the queue; return whether it was removed."""
        with self._mutex:
            if not self._arrivals or self._arrivals[0] is not arrival:
                return False
            self._arrivals.popleft()
            return True

    def wait(self, count: int, timeout: float | None) -> None:
        """Wait until the attribute `count` differs from the argument *count*.

        Returns after *timeout* seconds at the latest; None means no limit.
        """
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
        """Call *changed* now, and on every change of `count`.

        *changed* may be called from any thread, with a lock held. It must not block or call any
        method of this object.
        """
        with self._mutex:
            self._listener = changed
            changed()
