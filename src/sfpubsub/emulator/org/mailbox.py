"""The mailbox on which a stream's loop waits, and `Bells`, which wakes waiting streams.

Each stream has one mailbox. The stream's reader thread adds requests, and its loop collects them.
The bus, the clock and the fault plan wake the loop through `Bells`. Nothing polls. Invariant: a
request or wake-up that arrives after a `collect` makes the next `wait` return immediately, so none
is lost between collecting and waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sfpubsub.emulator.org.clock import Clock

R = TypeVar("R")


@dataclass(frozen=True)
class Arrival(Generic[R]):
    """A request and its arrival time, in seconds since the epoch."""

    request: R
    at: float


class Mailbox(Generic[R]):
    """The pending requests and wake-ups of one call. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()  # guards everything below
        self._arrivals: list[Arrival[R]] = []
        self._news = False
        self._half_closed = False
        self._gone = False
        self._failure: Exception | None = None

    @property
    def gone(self) -> bool:
        """Whether the call has ended: it is complete, was cancelled, or its connection was lost."""
        return self._gone

    def put(self, request: R) -> None:
        """Add a request, stamped with the time of its arrival."""
        with self._condition:
            self._arrivals.append(Arrival(request, self._clock.now()))
            self._notify()

    def half_close(self) -> None:
        """Record that the client has half-closed the stream: it will send no more requests."""
        with self._condition:
            self._half_closed = True
            self._notify()

    def fail(self, failure: Exception) -> None:
        """Record an invalid message from the client: from now on, `collect` raises *failure*."""
        with self._condition:
            self._failure = failure
            self._notify()

    def hang_up(self) -> None:
        """Record that the call has ended."""
        with self._condition:
            self._gone = True
            self._notify()

    def wake(self) -> None:
        """Make the current or next `wait` return, so that its caller checks for changes."""
        with self._condition:
            self._notify()

    def collect(self) -> tuple[list[Arrival[R]], bool]:
        """Remove and return the pending requests. Also return whether the client has half-closed
        the stream.

        Raises:
            Exception: The failure that was passed to `fail`.
        """
        with self._condition:
            if self._failure is not None:
                raise self._failure
            arrivals, self._arrivals = self._arrivals, []
            self._news = False
            return arrivals, self._half_closed

    def wait(self, deadline: float | None) -> None:
        """Wait for a request, a wake-up, the end of the call, or the deadline. If a request or
        wake-up has arrived since the last `collect`, return immediately.

        Args:
            deadline: Time in seconds since the epoch; None waits without limit.
        """
        with self._condition:
            while not self._news and not self._gone:
                timeout = self._clock.timeout(deadline)
                if timeout == 0:
                    return
                self._condition.wait(timeout)

    def _notify(self) -> None:
        self._news = True
        self._condition.notify_all()


class Bells:
    """Registers functions that wake waiting streams, and calls those registered for a key.

    Thread-safe.

    A function is registered either with `listen`, as a listener, or with `watch`, as a watcher;
    `count` counts only listeners. The functions must return immediately. A key is a topic name, a
    managed subscription's id, or a constant for listeners that only `ring_all` calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._listeners: dict[Hashable, list[Callable[[], None]]] = {}
        self._watchers: dict[Callable[[], None], frozenset[Hashable]] = {}

    def watch(self, keys: Iterable[Hashable], listener: Callable[[], None]) -> None:
        """Register a watcher, to be called when `ring` is called with one of *keys*. The keys
        replace those of an earlier call with the same function.
        """
        with self._lock:
            self._watchers[listener] = frozenset(keys)

    def unwatch(self, listener: Callable[[], None]) -> None:
        """Remove a watcher, if it is registered."""
        with self._lock:
            self._watchers.pop(listener, None)

    def listen(self, key: Hashable, listener: Callable[[], None]) -> None:
        """Register a listener, to be called whenever `ring` is called with *key*, until `forget`
        removes the listener.
        """
        with self._lock:
            self._listeners.setdefault(key, []).append(listener)

    def forget(self, key: Hashable, listener: Callable[[], None]) -> None:
        """Remove one registration of a listener for *key*."""
        with self._lock:
            self._listeners[key].remove(listener)
            if not self._listeners[key]:
                del self._listeners[key]

    def count(self, key: Hashable) -> int:
        """Return how many listeners are registered for *key*."""
        with self._lock:
            return len(self._listeners.get(key, ()))

    def ring(self, key: Hashable) -> None:
        """Call all listeners and watchers of *key*."""
        with self._lock:
            listeners = list(self._listeners.get(key, ()))
            if self._watchers:
                listeners += [item for item, keys in self._watchers.items() if key in keys]
        for listener in listeners:
            listener()

    def ring_all(self) -> None:
        """Call the listeners and watchers of every key that has a listener."""
        with self._lock:
            keys = list(self._listeners)
        for key in keys:
            self.ring(key)
