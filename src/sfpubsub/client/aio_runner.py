"""Runs the handler of `AsyncSubscription.run` in tasks.

The task that called `run` requests batches. Whenever something changes, `AsyncRunner._advance`
carries out the steps of the `Dispatcher`. Everything runs in the event loop, except writes to the
quarantine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from sfpubsub.aio_bridge import Bell, settled
from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.consumer import End, WaitUntil
from sfpubsub.client.delivery import Delivery
from sfpubsub.client.dispatch import Ack, Finish, SetAside, Start
from sfpubsub.client.handling import (
    RunOptions,
    RunSummary,
    Work,
    drained_from_within,
    logger,
)

AsyncHandler: TypeAlias = Callable[[Event], Awaitable[object]]
"""Handles an event; its return value is ignored."""


class AsyncRunner:
    """Passes the events of a subscription to a handler, in separate tasks.

    Args:
        delivery: The subscription's `Delivery`.
        handler: A coroutine function; several calls run concurrently.
        options: Options of the run.
        bell: Notifies tasks when anything changes in the subscription.
        submit: Runs blocking calls in a thread.
    """

    def __init__(
        self,
        delivery: Delivery,
        handler: AsyncHandler,
        options: RunOptions,
        *,
        bell: Bell,
        submit: Callable[[Callable[[], None]], Future[None]],
    ) -> None:
        self._delivery = delivery
        self._handler = handler
        self._work = Work(delivery, options)
        self._bell = bell
        self._submit = submit
        self._caller = asyncio.current_task()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._finished = False
        self.over = False
        """Whether all handlers have finished or were cancelled. The bell rings when it changes."""

    def check_caller(self) -> None:
        """Check that the current task can wait for the run to end.

        Raises:
            LocalProtocolError: The current task belongs to the run, so waiting would deadlock.
        """
        current = asyncio.current_task()
        if current is self._caller or current in self._tasks:
            raise drained_from_within(self._delivery.name)

    async def run(self, take: Callable[[], Awaitable[EventBatch | End | None]]) -> RunSummary:
        """Handle events until the subscription ends, and return a summary of the run.

        All handlers have finished when this returns.

        Args:
            take: Waits for the next batch and returns it; returns `End` or None if there are no
                more batches.

        Raises:
            BaseException: An error from *take*, such as CancelledError, or from `Work.outcome`.
        """
        try:
            self._delivery.begin_run()
            while isinstance(batch := await take(), EventBatch):
                for event in batch:
                    self._work.take(event, self._work.keys_of(event))
                self._work.balance()
                self._advance()
        except BaseException:
            self._delivery.stop()
            raise
        finally:
            try:
                await self._wait_for_handlers()
            finally:
                self.over = True
                self._bell.ring()
        return self._work.outcome()

    async def _wait_for_handlers(self) -> None:
        self._work.close()
        logger.info("%s: waiting for running handlers to finish", self._delivery.name)
        try:
            await self._bell.until(self._is_finished)
        except asyncio.CancelledError:  # a second cancellation aborts immediately
            self._delivery.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            raise

    def _is_finished(self) -> bool:
        self._advance()  # `stop` may have been called in between
        return self._finished

    def _advance(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while not isinstance(step := self._work.next(), WaitUntil | Finish):
            if isinstance(step, Ack):
                try:
                    self._work.ack(step.events)
                except Exception as error:  # noqa: BLE001  # `run` raises it
                    self._work.broke(error)
            else:
                task = asyncio.create_task(self._carry_out(step))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if isinstance(step, Finish):
            self._finished = True
            self._bell.ring()
        elif step.time is not None:
            wait = step.time - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(wait, self._advance)

    async def _carry_out(self, step: Start[Event] | SetAside[Event]) -> None:
        work, job = self._work, step.job
        report: Callable[[], None]
        try:
            if isinstance(step, Start):
                await self._handler(job.event)
                report = partial(work.succeeded, job)
            else:
                future = self._submit(partial(work.put, job))
                await settled(future)
                future.result()
                report = partial(work.set_aside, job)
        except BaseException as error:  # noqa: BLE001  # even CancelledError: `run` reports all
            if isinstance(step, Start):
                report = partial(work.failed, job, error)
            else:
                report = partial(work.broke, error, job)
        report()
        self._advance()
