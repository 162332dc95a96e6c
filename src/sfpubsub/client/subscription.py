"""Synchronous subscriptions: iterate, ack, commit, drain.

The driver handles the stream, flow control, commits and reconnects. The `Consumer` decides what to
do with a response. Its decisions are carried out here, in the iterating or acking thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from sfpubsub.client.batch import Event, EventBatch
from sfpubsub.client.consumer import End, Opened
from sfpubsub.client.delivery import Delivery, Wait
from sfpubsub.client.face import COMMIT_TIMEOUT, SubscriptionFace
from sfpubsub.client.handling import (
    RunOptions,
    RunSummary,
    check_handler,
)
from sfpubsub.client.runner import Handler, Runner
from sfpubsub.errors import SfPubSubError
from sfpubsub.process import LONGEST_WAIT
from sfpubsub.types import CommitReceipt


class Subscription(SubscriptionFace[Handler, RunSummary]):
    """A plain subscription: iterate over its batches.

    ::

        with client.subscribe("/event/Order_Event__e") as subscription:
            for batch in subscription:
                for event in batch:
                    print(event.value)

    Only one thread may iterate; `ack` of events and batches and all other methods are thread-safe.
    Leaving the ``with`` block drains the subscription. A subscription that becomes unreferenced
    without having been drained or aborted is aborted with a warning.
    """

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self._runner: Runner | None = None
        delivery.driver.start()

    # Receiving.

    def wait_open(self, timeout: float) -> None:
        """Wait until the service has answered on the subscription's stream.

        Events that are published after this are delivered even if the subscription starts at
        ``latest``. The answer is an event or, on a topic without events, the first keepalive: the
        service promises it within 270 s, and 120 s were observed.

        Args:
            timeout: Maximum time to wait, in seconds.

        Raises:
            StreamUnavailableError: The service has not answered in time; the message says why.
            SubscriptionClosedError: The subscription was stopped, drained or aborted.
            SfPubSubError: The subscription failed.
        """
        self._delivery.driver.wait_open(timeout)
        self._check_open(timeout)

    def __iter__(self) -> Iterator[EventBatch]:
        return self

    def __next__(self) -> EventBatch:
        batch = self._next(None)
        if isinstance(batch, EventBatch):
            self._delivery.hand.given = batch  # directly before the return: see `Hand`
            return batch
        self._raise_failure()
        raise StopIteration

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Wait for the next batch. With ``ack="auto"``, this acks the previous one.

        Args:
            timeout: Maximum time to wait, in seconds; None means no limit.

        Returns:
            Consecutive events of one response: all of them, unless ``on_undecodable`` removed some.
            None if the timeout passed first. If a schema must be fetched, the call may take longer
            than *timeout*.

        Raises:
            WriteError: The quarantine could not be written; the next call retries.
            SubscriptionClosedError: The subscription was stopped, drained or aborted.
            SfPubSubError: The subscription failed. A plain subscription first delivers the events
                that it has received. A managed subscription does not, because they will be
                redelivered.
        """
        batch = self._next(None if timeout is None else time.monotonic() + timeout)
        if isinstance(batch, End):
            self._raise_end()
        self._delivery.hand.given = batch  # directly before the return: see `Hand`
        return batch

    def events(self) -> Iterator[Event]:
        """Iterate over events instead of batches.

        With ``ack="auto"``, requesting the next event acks the previous one, so only the current
        event is unacked when the loop is left. The events after it are delivered next.
        """
        hand = self._delivery.hand
        while isinstance(batch := self._next(None), EventBatch):
            opened = hand.given = Opened(batch)
            for event in batch:
                opened.last = event.delivery_seq  # directly before the yield: see `Hand`
                yield event
                if self._delivery.acks_automatically:
                    event.ack()
                if hand.given is not opened:  # another request was made in between
                    break
        self._raise_failure()

    def _run(self, handler: Handler, options: RunOptions) -> RunSummary:
        check_handler(handler, is_async=False)
        self._check_can_run(self._runner)
        with self:
            self._runner = runner = Runner(self._delivery, handler, options)
            try:
                return runner.run(self._take)
            finally:
                self._runner = None

    def _take(self) -> EventBatch | End | None:
        batch = self._next(None)
        if isinstance(batch, EventBatch):
            self._delivery.hand.given = batch
        return batch

    def _next(self, deadline: float | None) -> EventBatch | End | None:
        delivery = self._delivery
        delivery.asked()
        while True:
            changes = delivery.driver.changes  # read before checking
            turn = delivery.turn(deadline)
            if turn is None or isinstance(turn, (EventBatch, End)):
                return turn
            if isinstance(turn, Wait):
                delivery.driver.wait(changes, turn.seconds)
            else:
                delivery.carry_out(turn)

    # Draining.

    def drain(self) -> None:
        """Shut down cleanly: stop deliveries, and wait until all acked events are committed.

        Unacked events will be redelivered. If another thread is in `run`, the run is stopped, and
        this call waits for its handlers to finish. Leaving the ``with`` block drains, too. Can be
        called repeatedly.

        Raises:
            CommitError: Acked events could not be committed and will be redelivered.
            LocalProtocolError: The caller is a handler of `run`.
            SfPubSubError: The subscription has failed, and the error was not raised yet.
        """
        with self._raised_once():
            self._drain()

    def _drain(self) -> None:
        delivery, runner = self._delivery, self._runner
        if runner is not None:
            self._stop_run(runner)
            while not runner.over.wait(LONGEST_WAIT):
                pass
        try:
            delivery.driver.drain()
        except SfPubSubError:
            self._failure_was_raised = True
            raise
        except BaseException:  # a second Ctrl-C aborts immediately
            delivery.driver.abort()
            raise
        finally:
            try:
                delivery.store_position(last=True)
            finally:
                delivery.release()

    def join(self, timeout: float) -> None:
        """Wait up to *timeout* seconds for the threads of an ended subscription to exit."""
        self._delivery.driver.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with self._leaving(exc):
            self.drain()


class ManagedSubscription(Subscription):
    """A managed subscription: the service stores the position, and commits advance it.

    The newest position up to which all events are acked is committed automatically. `commit` waits
    for the confirmation.
    """

    def commit(self, timeout: float = COMMIT_TIMEOUT) -> CommitReceipt:
        """Commit everything acked so far and wait for the confirmation.

        With ``ack="auto"``, this acks the current batch first.

        Args:
            timeout: Maximum time to wait, in seconds.

        Returns:
            The confirmation, with the committed position.

        Raises:
            CommitError: The commit was refused or not confirmed in time.
            LocalProtocolError: Nothing has been acked yet, or the subscription is closed.
        """
        self._delivery.ack_in_hand()
        return self._delivery.driver.commit(timeout)
