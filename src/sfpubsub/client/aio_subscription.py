"""Subscriptions for asyncio applications.

They use the same driver, delivery and consumer as `sfpubsub.client.subscription`. Where the
synchronous subscription blocks in the driver, the asynchronous one awaits a notification from the
driver. Blocking work runs in worker threads of the client. If a call is cancelled, the next call
continues its work, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from sfpubsub.aio_bridge import Bell, in_thread
from sfpubsub.client.aio_runner import AsyncHandler, AsyncRunner
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.consumer import End, Opened, Store, Take
from sfpubsub.client.delivery import Delivery, Wait, Work
from sfpubsub.client.face import COMMIT_TIMEOUT, SubscriptionFace
from sfpubsub.client.handling import (
    RunOptions,
    RunSummary,
    check_handler,
)
from sfpubsub.stores.replay_store import AnyStore, AsyncReplayStore, ReplayStore, is_async
from sfpubsub.types import CommitReceipt, StartPosition

# Seconds for which ready batches are delivered before the loop's other tasks may run. Yielding to
# them costs about 10 µs, a hundredth of this time, and the delay is too short to notice.
_OTHERS = 1e-3


class AsyncSubscription(SubscriptionFace[AsyncHandler, Coroutine[Any, Any, RunSummary]]):
    """A plain subscription for asyncio: iterate over its batches. See `Subscription`.

    ::

        async with client.subscribe("/event/Order_Event__e") as subscription:
            async for batch in subscription:
                for event in batch:
                    print(event.value)

    It belongs to the event loop in which it was created, and only one task may iterate. `ack` of
    events and batches, and all methods that are not coroutines, are thread-safe. Leaving the
    ``async with`` block drains the subscription, even if the task is cancelled; a second
    cancellation aborts it.
    """

    def __init__(
        self,
        delivery: Delivery,
        *,
        submit: Callable[[Callable[[], None]], Future[None]],
        asks_store: bool = False,
    ) -> None:
        super().__init__(delivery)
        self._submit = submit
        self._asks_store = asks_store  # whether the start must still be read from the store
        self._work: Future[None] | None = None  # the step being carried out in a thread
        self._storing = asyncio.Lock()  # one call to an async store at a time
        self._runner: AsyncRunner | None = None
        self._bell = Bell()
        self._others_at = 0.0  # when the loop's other tasks may run next
        delivery.driver.listen(self._bell.ring)
        if not asks_store:
            delivery.driver.start()

    async def _begin(self) -> None:
        """Open the stream at the stored position, unless it is already open."""
        if not self._asks_store:
            return
        async with self._storing:
            if self.closed or self._delivery.driver.has_begun:  # while this task waited
                return
            start = await self._stored_start()
            self._asks_store = False
            if not self.closed:  # it may have been aborted in between
                self._delivery.driver.start(start)  # None means the caller's start position

    async def _stored_start(self) -> StartPosition | None:
        store = cast("AnyStore", self._delivery.store)
        if is_async(store):
            return cast("StartPosition | None", await _outcome(store.get(self.name)))
        get = partial(cast("ReplayStore", store).get, self.name)
        return await in_thread("sfpubsub-aio-store", get)

    # Receiving.

    async def wait_open(self, timeout: float) -> None:
        """Wait until the service has answered on the subscription's stream.

        See `Subscription.wait_open`.
        """
        deadline = self._bell.deadline(timeout)
        await self._begin()
        driver = self._delivery.driver
        await self._bell.until(lambda: driver.has_opened, deadline)
        self._check_open(timeout)

    def __aiter__(self) -> AsyncIterator[EventBatch]:
        return self

    async def __anext__(self) -> EventBatch:
        batch = await self._next(None)
        if isinstance(batch, EventBatch):
            self._delivery.hand.given = batch
            return batch
        self._raise_failure()
        raise StopAsyncIteration

    async def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Wait for the next batch; see `Subscription.next_batch`.

        Cancelling the call loses nothing: the next call returns the batch. Even if a batch is
        always ready, calls let other tasks run about once a millisecond.
        """
        batch = await self._next(None if timeout is None else time.monotonic() + timeout)
        if isinstance(batch, End):
            self._raise_end()
        self._delivery.hand.given = batch
        return batch

    async def events(self) -> AsyncIterator[Event]:
        """Iterate over events instead of batches; see `Subscription.events`."""
        hand = self._delivery.hand
        while isinstance(batch := await self._next(None), EventBatch):
            opened = hand.given = Opened(batch)
            for event in batch:
                opened.last = event.delivery_seq
                yield event
                if self._delivery.acks_automatically:
                    event.ack()
                if hand.given is not opened:  # another request was made in between
                    break
        self._raise_failure()

    async def _run(self, handler: AsyncHandler, options: RunOptions) -> RunSummary:
        check_handler(handler, is_async=True)
        self._check_can_run(self._runner)
        async with self:
            # Checked again, because a store may have been awaited in between.
            self._check_can_run(self._runner)
            self._runner = runner = AsyncRunner(
                self._delivery, handler, options, bell=self._bell, submit=self._submit
            )
            try:
                return await runner.run(self._take)
            finally:
                self._runner = None

    async def _take(self) -> EventBatch | End | None:
        batch = await self._next(None)
        if isinstance(batch, EventBatch):
            self._delivery.hand.given = batch
        return batch

    async def _next(self, deadline: float | None) -> EventBatch | End | None:
        delivery, bell = self._delivery, self._bell
        delivery.asked()
        if (now := time.monotonic()) >= self._others_at:
            self._others_at = now + _OTHERS
            delivery.ack_done()
            await asyncio.sleep(0)
        if self._asks_store:
            await self._begin()
        while True:
            seen = bell.count  # read before checking
            turn = delivery.turn(deadline)
            if turn is None or isinstance(turn, (EventBatch, End)):
                return turn
            if isinstance(turn, Wait):
                await bell.until(partial(self._has_rung, seen), bell.deadline(turn.seconds))
            elif isinstance(turn, Take):
                delivery.carry_out(turn)
                if turn.acks:  # there may be many such responses without anything to deliver
                    await asyncio.sleep(0)
            elif not await self._carry_out(turn, deadline):
                return None

    def _has_rung(self, seen: int) -> bool:
        return self._bell.count != seen

    async def _carry_out(self, step: Work, deadline: float | None) -> bool:
        """Carry out a step, waiting at most until *deadline*.

        Returns:
            True if the step was completed. False if the deadline passed first: the work continues,
            and the next call waits for it.
        """
        store = self._delivery.store
        if isinstance(step, Store) and is_async(store):
            await self._store_async(last=False)
        elif isinstance(step, Store) and not cast("ReplayStore", store).may_wait:
            self._delivery.carry_out(step)
        else:
            if self._work is None:
                ring = self._bell.ring
                self._work = self._submit(partial(self._delivery.carry_out, step))
                self._work.add_done_callback(lambda _work: ring())
            rest = None if deadline is None else deadline - time.monotonic()
            if not await self._bell.until(self._work.done, self._bell.deadline(rest)):
                return False
            work, self._work = self._work, None
            work.result()
        return True

    async def _store_async(self, *, last: bool) -> None:
        async with self._storing:
            position = self._delivery.to_store(last=last)
            if position is not None:
                store = cast("AsyncReplayStore", self._delivery.store)
                await _outcome(store.set(self.name, position))
                self._delivery.stored(position)

    # Draining.

    async def drain(self) -> None:
        """Shut down cleanly; see `Subscription.drain`.

        Cancelling the call stops only the waiting. To stop the draining, use `abort`.
        """
        with self._raised_once():
            await self._drain()

    async def _drain(self) -> None:
        delivery, runner = self._delivery, self._runner
        if runner is not None:
            self._stop_run(runner)
            await self._bell.until(lambda: runner.over)
        delivery.driver.begin_drain()
        await self._bell.until(lambda: self.closed)
        try:
            self._raise_failure()
        finally:
            try:
                await self._store_last()
            finally:
                delivery.release()

    async def _store_last(self) -> None:
        store = self._delivery.store
        if store is None or not self._delivery.driver.has_begun:
            return
        if is_async(store):
            await self._store_async(last=True)
        elif cast("ReplayStore", store).may_wait:
            await in_thread("sfpubsub-aio-store", partial(self._delivery.store_position, last=True))
        else:
            self._delivery.store_position(last=True)

    async def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the threads of an ended subscription to exit."""
        await in_thread("sfpubsub-aio-join", lambda: self._delivery.driver.join(timeout))

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            with self._leaving(exc):
                await self.drain()
        except asyncio.CancelledError:
            self.abort()
            raise


class AsyncManagedSubscription(AsyncSubscription):
    """A managed subscription for asyncio, whose position the service stores.

    See `ManagedSubscription`.
    """

    async def commit(self, timeout: float = COMMIT_TIMEOUT) -> CommitReceipt:
        """Commit everything acked so far and wait for the confirmation.

        See `ManagedSubscription.commit`. Cancelling the call stops only the waiting, not the
        commit.
        """
        self._delivery.ack_in_hand()
        driver, bell = self._delivery.driver, self._bell
        pending = driver.begin_commit()
        if not await bell.until(lambda: pending.is_done, bell.deadline(timeout)):
            raise driver.unconfirmed(timeout)
        return pending.receipt()


async def _outcome(returned: Any) -> Any:
    # One method of a store may be a coroutine function and the other a plain one.
    return await returned if inspect.isawaitable(returned) else returned
