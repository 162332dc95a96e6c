"""The queue between the threads of a driver and those of the application.

The queue holds one item per response. A waiter reads `Mailbox.count`, checks the state, and then
waits for the count to change, so it misses nothing that happens between the check and the wait. The
asyncio API does the same with a callback set by `Mailbox.listen`.

There is no lock. A signal handler may interrupt the application's thread at any line, and wait for
something that needs a thread of the driver: if the interrupted code held a lock that this thread
needs, both would wait forever. Each change is a single operation of the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import count
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
        # One acquired lock per waiter; releasing it wakes the waiter. An interrupted wait leaves
        # its lock behind, which the next notification removes.
        self._waiting: deque[threading.Lock] = deque()
        self._arrivals: deque[Arrival] = deque()
        self._listener: Callable[[], None] | None = None
        self._counts = count(1)
        self.count: int = 0
        """Changes whenever a waiter should check the state again, always to a new value."""
        self.finish: Finish | None = None
        """How the subscription ended; None before the end."""
        self.discarded: bool = False
        """Whether the pending responses were discarded. No response is queued after that."""

    # For the driver.

    def put(self, arrival: Arrival) -> None:
        """Append a response to the queue."""
        self._arrivals.append(arrival)
        self.wake()

    def discard(self) -> None:
        """Discard the pending responses."""
        self.discarded = True
        self._arrivals.clear()
        self.wake()

    def close(self, finish: Finish) -> None:
        """Record the end of the subscription and its cause. No response arrives after this."""
        self.finish = finish
        self.wake()

    def wake(self) -> None:
        """Wake all waiters so that they check the state again."""
        self.count = next(self._counts)
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:  # another thread has woken it
                break
        if self._listener is not None:
            self._listener()

    # For the application.

    def peek(self) -> Arrival | None:
        """Return the next arrival without removing it; None if the queue is empty. Never blocks."""
        try:
            return self._arrivals[0]
        except IndexError:
            return None

    def pop(self, arrival: Arrival) -> None:
        """Remove *arrival*, unless it was removed or discarded before."""
        try:
            if self._arrivals[0] is arrival:
                self._arrivals.popleft()
        except IndexError:  # discarded
            return

    @property
    def pending(self) -> tuple[int, int]:
        """Number of the queued events, and their payload bytes."""
        batches = [arrival.batch for arrival in list(self._arrivals)]
        return sum(len(each.events) for each in batches), sum(each.size for each in batches)

    def wait(self, count: int, timeout: float | None) -> None:
        """Wait until the attribute *count* differs from the argument *count*.

        Returns after *timeout* seconds at the latest; None means no limit.
        """
        bell = threading.Lock()
        bell.acquire()
        self._waiting.append(bell)
        if self.count == count:  # otherwise it may have changed before the bell was there
            bound = -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
            if bell.acquire(timeout=bound):
                return
        try:
            self._waiting.remove(bell)
        except ValueError:  # it was rung in between
            return

    def listen(self, changed: Callable[[], None]) -> None:
        """Call *changed* now, and on every change of `count`.

        *changed* may be called from any thread, several at a time. It must not block or call any
        method of this object.
        """
        self._listener = changed
        changed()
