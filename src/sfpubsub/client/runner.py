"""Runs the handler of `Subscription.run` in worker threads.

The thread that called `run` requests batches and stores positions; the worker threads carry out the
steps of the `Dispatcher`. One lock guards the `Dispatcher`; no thread holds it while handling an
event, acking or waiting for a disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.consumer import End, WaitUntil
from sfpubsub.client.delivery import Delivery
from sfpubsub.client.dispatch import Ack, Finish, SetAside, Start, Step
from sfpubsub.client.handling import (
    RunOptions,
    RunSummary,
    Work,
    drained_from_within,
    logger,
)

Handler: TypeAlias = Callable[[Event], object]
"""Handles an event; its return value is ignored."""


class Runner:
    """Passes the events of a subscription to a handler, in worker threads.

    Args:
        delivery: The subscription's `Delivery`.
        handler: Called concurrently in several threads.
        options: Options of the run.
    """

    def __init__(self, delivery: Delivery, handler: Handler, options: RunOptions) -> None:
        self._delivery = delivery
        self._handler = handler
        self._work = Work(delivery, options)
        # Guards the work. Always acquired through the lock, because entering a condition can be
        # interrupted halfway by Ctrl-C.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)  # for threads with nothing to do
        self._caller = threading.current_thread()
        self._threads = [
            threading.Thread(
                target=self._handle_events,
                name=f"sfpubsub-handler-{number} {delivery.name}",
                daemon=True,  # a handler that never returns must not keep an aborted process alive
            )
            for number in range(options.workers)
        ]
        self._ended = 0  # number of threads that have ended
        self.over = threading.Event()
        """Set once the run no longer waits for handlers: all have finished, or it was aborted."""

    def check_caller(self) -> None:
        """Check that the current thread can wait for the run to end.

        Raises:
            LocalProtocolError: The current thread belongs to the run, so waiting would deadlock.
        """
        current = threading.current_thread()
        if current is self._caller or current in self._threads:
            raise drained_from_within(self._delivery.name)

    def run(self, take: Callable[[], EventBatch | End | None]) -> RunSummary:
        """Handle events until the subscription ends, and return a summary of the run.

        All handlers have finished when this returns.

        Args:
            take: Waits for the next batch and returns it; returns `End` or None if there are no
                more batches.

        Raises:
            BaseException: An error from *take*, such as KeyboardInterrupt, or from `Work.outcome`.
        """
        try:
            self._delivery.begin_run()
            for thread in self._threads:
                thread.start()
            self._take_batches(take)
        except BaseException:
            self._delivery.stop()
            raise
        finally:
            try:
                self._wait_for_handlers()
            finally:
                self.over.set()
        return self._work.outcome()

    def _take_batches(self, take: Callable[[], EventBatch | End | None]) -> None:
        while isinstance(batch := take(), EventBatch):
            for event in batch:
                keys = self._work.keys_of(event)
                with self._mutex:
                    self._work.take(event, keys)
                    self._changed.notify()
            with self._mutex:
                self._work.balance()

    def _wait_for_handlers(self) -> None:
        driver = self._delivery.driver
        try:
            with self._mutex:
                self._work.close()
            logger.info("%s: waiting for running handlers to finish", self._delivery.name)
            while True:
                changes = driver.changes
                with self._mutex:
                    self._changed.notify_all()  # `stop` may have been called in between
                    left = sum(thread.ident is not None for thread in self._threads) - self._ended
                if not left:
                    break
                driver.wait(changes, None)
        except BaseException:  # a second Ctrl-C aborts immediately
            self._delivery.abort()
            raise

    # In the worker threads.

    def _handle_events(self) -> None:
        report: Callable[[], None] | None = None
        while not isinstance(step := self._next(report), Finish):
            report = self._carry_out(step)
        with self._mutex:
            self._ended += 1
        self._delivery.driver.wake()

    def _next(self, report: Callable[[], None] | None) -> Step[Event]:
        with self._mutex:
            if report is not None:
                report()
            while isinstance(step := self._work.next(), WaitUntil):
                self._changed.wait(None if step.time is None else step.time - time.monotonic())
            # A thread that gets a step wakes another one, which looks for further steps. So every
            # possible step is started, and one waiting thread wakes up for the next retry.
            self._changed.notify()
            return step

    def _carry_out(self, step: Step[Event]) -> Callable[[], None] | None:
        """Carry out a step.

        Returns:
            A function that reports the result; None if there is nothing to report.
        """
        work = self._work
        try:
            if isinstance(step, Start):
                self._handler(step.job.event)
                return partial(work.succeeded, step.job)
            if isinstance(step, SetAside):
                work.put(step.job)
                return partial(work.set_aside, step.job)
            if isinstance(step, Ack):
                work.ack(step.events)
        except BaseException as error:  # noqa: BLE001  # even SystemExit: `run` reports all
            if isinstance(step, Start):
                return partial(work.failed, step.job, error)
            return partial(work.broke, error, step.job if isinstance(step, SetAside) else None)
        return None
