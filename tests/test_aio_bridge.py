"""From threads into the loop: no news is missed, and none costs the loop a turn in vain."""

from __future__ import annotations

import asyncio
import threading

from sfpubsub.aio_bridge import Bell

from .conftest import PATIENCE


class CountedLoop(asyncio.SelectorEventLoop):
    """Counts the calls from other threads."""

    calls = 0

    def call_soon_threadsafe(self, *arguments, **options):
        self.calls += 1
        return super().call_soon_threadsafe(*arguments, **options)


def run(coroutine):
    with asyncio.Runner(loop_factory=CountedLoop) as runner:
        return runner.run(asyncio.wait_for(coroutine, PATIENCE))


def test_a_ring_that_nobody_waits_for_costs_the_loop_nothing():
    """Batches that come while one is handled are found without a call into the loop."""

    async def ring():
        bell = Bell()
        for _ in range(100):
            bell.ring()
        assert bell.count == 100
        return asyncio.get_running_loop().calls

    assert run(ring()) == 0


def test_many_rings_wake_a_waiter_once():
    """One call is in the loop's queue, however often it rings before the loop comes to it."""

    async def wait():
        bell = Bell()
        waiter = asyncio.ensure_future(bell.until(lambda: bell.count > 0))
        await asyncio.sleep(0)
        for _ in range(100):
            bell.ring()
        assert await waiter
        return asyncio.get_running_loop().calls

    assert run(wait()) == 1


def test_a_ring_between_the_look_and_the_wait_is_not_missed():
    """A condition that comes true behind the first look, and before there is a waiter."""

    async def wait():
        bell, looks = Bell(), []

        def condition():
            looks.append(None)
            if len(looks) == 1:  # not yet: but it rings before anyone waits
                bell.ring()
                return False
            return True

        return await bell.until(condition)

    assert run(wait())


def test_no_ring_of_another_thread_is_missed():
    """A thread that rings without a pause, and a task that waits for each of its steps."""

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
