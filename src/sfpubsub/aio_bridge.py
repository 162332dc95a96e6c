"""Bridges between threads and an asyncio event loop.

Nothing here blocks the loop. Functions for other threads have no effect once the loop is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sfpubsub.process import LONGEST_WAIT

T = TypeVar("T")


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Schedule *callback* on *loop* from any thread; do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def settled(future: Future[Any], timeout: float | None = None) -> None:
    """Wait until *future* is done or *timeout* seconds have passed, without blocking a thread.

    A *timeout* of None means no limit. Cancelling the wait does not cancel *future*.
    """
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _future: call_in(loop, release))
    await asyncio.wait({waiter}, timeout=timeout)


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run *work* in a new thread, and return its result or raise its exception.

    The thread's name starts with *name*. Cancelling the wait does not stop the thread.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    future = pool.submit(work)
    pool.shutdown(wait=False)  # accepts no more work, and the thread ends after this
    await settled(future)
    return future.result()


async def next_turn() -> None:
    """Let the loop run its other tasks once."""
    await asyncio.sleep(0)


class Bell:
    """Wakes waiting tasks of the event loop in which it was created.

    `ring` may be called from any thread, the other methods only from the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # At most one call is queued in the loop, however often the bell rings, and none if no task
        # waits: each call costs a write to the loop's wake-up socket, which releases the GIL.
        self._due = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._pulse: asyncio.TimerHandle | None = None
        self.count = 0
        """Number of rings; a change shows that a condition may have become true."""

    def ring(self) -> None:
        """Make waiting tasks check their conditions again.

        Call this after changing the state that the conditions depend on.
        """
        self.count += 1  # first: a task that is about to wait checks it after registering
        if self._waiters and not self._due:
            self._due = True
            call_in(self._loop, self._rung)

    def _rung(self) -> None:
        self._due = False  # first, so that a ring from here on schedules another call
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _beat(self) -> None:
        # While tasks wait, the loop takes a turn at least this often, in which it handles a signal
        # whose arrival did not end its wait. The bell then rings, too: a signal handler that
        # raises, as that of Ctrl-C, may have done so in the middle of `ring` or `_rung`.
        self._rung()
        self._pulse = self._loop.call_later(LONGEST_WAIT, self._beat) if self._waiters else None

    def deadline(self, timeout: float | None) -> float | None:
        """Return the loop's time *timeout* seconds from now, or None for a *timeout* of None."""
        return None if timeout is None else self._loop.time() + timeout

    async def until(self, condition: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until *condition* is true. It is checked immediately, and again after each ring.

        Args:
            condition: Called in the loop.
            deadline: Time on the loop's clock, as returned by *deadline*; None means no limit.

        Returns:
            True if the condition was met, False if the deadline passed first.
        """
        while not condition():
            rest = None if deadline is None else deadline - self._loop.time()
            if rest is not None and rest <= 0:
                return False
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                if condition():  # a ring before the waiter was registered did not wake it
                    return True
                if self._pulse is None:
                    self._pulse = self._loop.call_later(LONGEST_WAIT, self._beat)
                if rest is None:
                    await waiter
                else:  # not wait_for: before Python 3.12 it may swallow a cancellation
                    await asyncio.wait({waiter}, timeout=rest)
            finally:
                self._waiters.discard(waiter)
        return True
