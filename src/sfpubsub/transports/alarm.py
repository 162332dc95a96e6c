"""Run callbacks at deadlines, in one timer thread per client.

Each subscription and publisher has its own deadline, which its driver sets.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("sfpubsub.transport")

Clock = Callable[[], float]


class AlarmClock:
    """A timer thread that runs callbacks at their deadlines. Thread-safe.

    Each owner has at most one deadline. The thread starts with the first deadline and ends with
    `close`. Callbacks run in this thread, one at a time, and must not block.

    Args:
        clock: Monotonic clock in seconds. Deadlines are times on this clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Guards everything below. Never held while a callback runs, because callbacks set
        # deadlines. Acquired as a lock, not through the condition, whose ``__enter__`` is Python
        # code that Ctrl-C can interrupt while it holds the lock.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, owner: object, deadline: float | None, callback: Callable[[], None]) -> None:
        """Replace the deadline of *owner* and its callback; a *deadline* of None removes both."""
        with self._lock:
            old = self._due.pop(owner, None)
            if deadline is None or self._closed:
                return
            self._due[owner] = (deadline, callback)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sfpubsub-alarm", daemon=True
                )
                self._thread.start()
            elif old is None or deadline < old[0]:
                # A later deadline needs no wake-up: the thread wakes at the old one and checks
                # again.
                self._changed.notify()

    def close(self) -> None:
        """End the thread, and wait until it has ended. No callback starts after that.

        When called from a callback, this method does not wait.
        """
        with self._lock:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                owner = min(self._due, key=lambda key: self._due[key][0], default=None)
                if owner is None:
                    self._changed.wait()
                    continue
                deadline, callback = self._due[owner]
                wait = deadline - self._clock()
                if wait > 0:
                    self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                    continue
                del self._due[owner]
            try:
                callback()
            except Exception:  # the other owners still need this thread
                logger.exception("internal error in a timer callback")


class Reminder:
    """The deadline of one owner, cheap enough to update after every event.

    Most updates move the deadline to a later time. They do not change the alarm, so the callback
    may run too early; it then sets the deadline again. Only an earlier deadline, or None, changes
    the alarm. Not thread-safe; the owner must serialise calls.

    Args:
        alarm: The timer thread.
        callback: Called at the deadline or earlier; must call `rung`, and then `set`.
    """

    def __init__(self, alarm: AlarmClock, callback: Callable[[], None]) -> None:
        self._alarm = alarm
        self._callback = callback
        self._at: float | None = None  # time of the next callback

    def set(self, deadline: float | None) -> None:
        """Replace the deadline; None removes it."""
        if deadline is None:
            if self._at is not None:
                self._alarm.set(self, None, self._callback)
                self._at = None
        elif self._at is None or deadline < self._at:
            self._alarm.set(self, deadline, self._callback)
            self._at = deadline

    def rung(self) -> None:
        """Record that the callback has run. The next `set` starts the alarm again."""
        self._at = None
