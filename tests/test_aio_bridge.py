"""Tests of the Bell, through which threads wake asyncio tasks.

No ring may be missed, and a ring that nobody waits for must not call into the event loop.
"""

from __future__ import annotations

import asyncio
import threading

from sfpubsub.aio_bridge import Bell

from .conftest import PATIENCE


class CountedLoop(asyncio.SelectorEventLoop):
    """An event loop that counts calls to `call_soon_threadsafe`."""

    calls = 0

    def call_soon_threadsafe(self, *arguments, **options):
        self.calls += 1
        return super().call_soon_threadsafe(*arguments, **options)


def run(coroutine):
    """Run a coroutine in a CountedLoop, with a time limit, and return its result."""
    with asyncio.Runner(loop_factory=CountedLoop) as runner:
        return runner.run(asyncio.wait_for(coroutine, PATIENCE))


def test_a_ring_that_nobody_waits_for_makes_no_call_into_the_loop():
    """A ring is counted without a call into the event loop if no task waits for it."""

    async def ring():
        bell = Bell()
        for _ in range(100):
            bell.ring()
        assert bell.count == 100
        return asyncio.get_running_loop().calls

    assert run(ring()) == 0


def test_many_rings_cause_one_call_into_the_loop():
    """However often a bell rings before its waiter runs, the event loop is called only once."""

    async def wait():
        bell = Bell()
        waiter = asyncio.ensure_future(bell.until(lambda: bell.count > 0))
        await asyncio.sleep(0)
        for _ in range(100):
            bell.ring()
        assert await waiter
        return asyncio.get_running_loop().calls

    assert run(wait()) == 1


def test_a_ring_between_the_check_and_the_wait_is_not_missed():
    """A ring after a task has checked its condition, but before it waits, still wakes the task."""

    async def wait():
        bell, looks = Bell(), []

        def condition():
            looks.append(None)
            if len(looks) == 1:  # false at the first check, but it rings before the wait
                bell.ring()
                return False
            return True

        return await bell.until(condition)

    assert run(wait())


def test_no_ring_from_another_thread_is_missed():
    """A task that waits for each of another thread's 500 steps is woken for every one of them."""

    async def wait():
        bell, steps, asked = Bell(), [0], threading.Semaphore(0)

        def work():
            for _ in range(500):
                asked.acquire()
                steps[0] += 1
                bell.ring()

        thread = threading.Thread(target=work)
        thread.start()
        for step in range(1, 501):
            asked.release()
            assert await bell.until(lambda step=step: steps[0] >= step)
        thread.join(PATIENCE)

    run(wait())
