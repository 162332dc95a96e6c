"""From the driver's threads into the loop, and out of the loop into threads.

Nothing here blocks in the loop, and nothing that a thread calls fails because the loop is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Schedule *callback* on *loop*, from any thread. Does nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def settled(future: Future[Any], timeout: float | None = None) -> None:
    """Wait until *future* is done, without a thread; leaves it alone when cancelled."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(lambda _future: call_in(loop, release))
    await asyncio.wait({waiter}, timeout=timeout)


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run *work* in a thread of its own. When cancelled, the thread continues to the end."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    future = pool.submit(work)
    pool.shutdown(wait=False)  # takes no more, and lets the thread end after this
    await settled(future)
    return future.result()


async def next_turn() -> None:
    """Let the other tasks of the loop have their turn."""
    await asyncio.sleep(0)


class Bell:
    """Wakes the tasks of the loop it was made in; rung from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # One call in the loop's queue is enough, however often it is rung, and none where nobody
        # waits: each costs a write to the loop's socket, during which the interpreter is let go.
        self._due = False
        self._waiters: set[asyncio.Future[None]] = set()
        self.count = 0
        """Changes with everything that a waiter may be waiting for."""

    def ring(self) -> None:
        """Have waiters look again; what there is to see was put in place before this call."""
        self.count += 1  # first: a thread about to wait checks it after registering
        if self._waiters and not self._due:
            self._due = True
            call_in(self._loop, self._rung)

    def _rung(self) -> None:
        self._due = False  # first: what happens from here on asks for another call
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def deadline(self, timeout: float | None) -> float | None:
        """Return the loop's time in *timeout* seconds, None for None."""
        return None if timeout is None else self._loop.time() + timeout

    async def until(self, condition: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until *condition* holds after a ring; return False when the deadline came first."""
        while not condition():
            rest = None if deadline is None else deadline - self._loop.time()
            if rest is not None and rest <= 0:
                return False
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                if condition():  # a ring before there was a waiter woke nobody
                    return True
                if rest is None:
                    await waiter
                else:  # not wait_for: before Python 3.12 it may swallow a cancellation
                    await asyncio.wait({waiter}, timeout=rest)
            finally:
                self._waiters.discard(waiter)
        return True
