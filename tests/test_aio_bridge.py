"""Tests of the Bell, through which threads wake asyncio tasks.

No ring may be missed, and a ring that nobody waits for must not call into the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from sfpubsub.aio_bridge import Bell

from .conftest import PATIENCE, told_during_a_wait


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


class InterruptedLoop(asyncio.SelectorEventLoop):
    """An event loop whose first call of `call_soon_threadsafe` is interrupted by Ctrl-C."""

    interrupted = False

    def call_soon_threadsafe(self, *arguments, **options):
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().call_soon_threadsafe(*arguments, **options)


def test_after_an_interrupted_ring_the_bell_still_wakes_tasks():
    """If Ctrl-C hits `ring` before it has called into the loop, later rings still wake tasks."""

    async def wait():
        bell = Bell()
        waiter = asyncio.ensure_future(bell.until(lambda: bell.count > 1))
        await asyncio.sleep(0)
        with pytest.raises(KeyboardInterrupt):
            bell.ring()
        bell.ring()
        return await asyncio.wait_for(waiter, PATIENCE / 2)

    with asyncio.Runner(loop_factory=InterruptedLoop) as runner:
        assert runner.run(wait())


def test_a_signal_whose_arrival_does_not_wake_the_loop_is_handled_soon():
    """While tasks wait for a bell, the loop takes a turn each second, in which Python handles a
    signal that another thread received. It takes none once no task waits.
    """
    with asyncio.Runner() as runner:

        async def wait():
            bell = Bell()
            bells.append(bell)
            await bell.until(lambda: False, bell.deadline(PATIENCE))

        bells: list[Bell] = []
        with told_during_a_wait():
            runner.run(wait())
        (bell,) = bells
        for task in asyncio.all_tasks(runner.get_loop()):
            task.cancel()

        async def rest():
            deadline = time.monotonic() + PATIENCE
            while bell._pulse is not None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

        runner.run(rest())
