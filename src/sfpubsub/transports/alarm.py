"""The thread of a client that runs callbacks at deadlines and works off what applications hand in.

Each subscription and publisher has its own deadline, which its driver sets.

An application's thread may be interrupted at any line (Ctrl-C, a signal handler), even while it
holds a lock. So it never enters a driver: it hands its input in with `AlarmClock.post`, and this
thread works it off. Invariant: nothing that an application's thread calls here takes a lock.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("sfpubsub.transport")

Clock = Callable[[], float]

# Maximum seconds for which `AlarmClock.close` waits for the current callback. Callbacks do not
# block, so this only limits the wait for a defect.
_CLOSE_TIMEOUT = 5.0


class AlarmClock:
    """A thread that runs callbacks at their deadlines, or at once. Thread-safe.

    Each owner has at most one deadline. The thread starts with `start` and ends with `close`.
    Callbacks run in this thread, one at a time, and must not block. Apart from `start` and `close`,
    no method waits or takes a lock: ``SimpleQueue.put`` is documented to be reentrant.

    Args:
        clock: Monotonic clock in seconds. Deadlines are times on this clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Callbacks to run at once; None ends the thread.
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}  # of the thread alone
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, unless it is running or `close` was called."""
        with self._starting:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="sfpubsub-alarm", daemon=True)
                thread.start()
                self._thread = thread

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that nothing is worked off any more."""
        return self._closed

    def post(self, callback: Callable[[], object]) -> None:
        """Run *callback* in the thread, after all that were posted before."""
        self._inbox.put(callback)

    def set(self, owner: object, deadline: float | None, callback: Callable[[], None]) -> None:
        """Replace the deadline of *owner* and its callback; a *deadline* of None removes both."""

        def replace() -> None:
            self._due.pop(owner, None)
            if deadline is not None:
                self._due[owner] = (deadline, callback)

        self._inbox.put(replace)

    def close(self) -> None:
        """End the thread, and wait until it has ended. No callback starts after that.

        When called from a callback, this method does not wait. Otherwise it waits 5 seconds at most
        for a callback that does not return.
        """
        self._closed = True
        self._inbox.put(None)
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_CLOSE_TIMEOUT)
        if thread.is_alive():
            logger.error("internal error: a timer callback did not return; please report it")

    def _run(self) -> None:
        while True:
            owner = min(self._due, key=lambda key: self._due[key][0], default=None)
            wait = None
            if owner is not None:
                wait = min(max(0.0, self._due[owner][0] - self._clock()), threading.TIMEOUT_MAX)
            try:
                callback = self._inbox.get(timeout=wait)
            except queue.Empty:
                if self._clock() < self._due[owner][0]:
                    continue
                callback = self._due.pop(owner)[1]
            if callback is None or self._closed:
                return
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
