"""The base class of synchronous and asyncio subscriptions. Except for `run`, no method blocks."""

from __future__ import annotations

import _thread
import logging
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, NoReturn, Protocol, TypeVar

from sfpubsub.client.delivery import Delivery
from sfpubsub.client.dispatch import QuarantineLimit, Retry
from sfpubsub.client.handling import (
    DEFAULT_LIMIT,
    DEFAULT_RETRY,
    KeyOf,
    OnFailure,
    RunOptions,
    by_record,
)
from sfpubsub.errors import (
    LocalProtocolError,
    SfPubSubError,
    StreamUnavailableError,
    SubscriptionClosedError,
)
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.types import Gap, Health

logger = logging.getLogger("sfpubsub.client")

# How long `commit` waits for its confirmation, in seconds: long enough for one lost response and a
# retry.
COMMIT_TIMEOUT = 60.0


class Stoppable(Protocol):
    """The part of `Runner` and `AsyncRunner` that `drain` uses."""

    def check_caller(self) -> None:
        """Raise an error if the current thread or task belongs to the run.

        If it waited for the run to end, both would wait forever.
        """
        ...


HandlerT = TypeVar("HandlerT")
RunT = TypeVar("RunT")


class SubscriptionFace(ABC, Generic[HandlerT, RunT]):
    """Base class of `Subscription` and `AsyncSubscription`. Thread-safe, except for `run`.

    Args:
        delivery: The subscription's `Delivery`, owned by this object from now on.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._process = os.getpid()
        self._failure_was_raised = False

    @property
    def name(self) -> str:
        """The topic, or the managed subscription's name or id."""
        return self._delivery.name

    @property
    def closed(self) -> bool:
        """Whether the subscription has ended: drained, aborted or failed."""
        return self._delivery.driver.over

    @property
    def pending_count(self) -> int:
        """Number of events received but not yet delivered."""
        return self.health().pending_count

    def health(self) -> Health:
        """Return a snapshot of the subscription's state, counts, position and gaps."""
        return self._delivery.health()

    def report_gap(self, gap: Gap) -> None:
        """Report that events may be missing, if the application found out and the service did not.

        The gap is logged, passed to ``on_gap``, and appears in `health` and in the metrics, like
        the gaps that the subscription finds.
        """
        self._delivery.driver.report_gap(gap)

    def pause(self) -> None:
        """Pause deliveries until `resume` is called.

        Events are then requested only one at a time, to keep the stream open. Acks and commits
        continue. Iteration blocks, and `next_batch` with a timeout returns None.
        """
        self._delivery.pause()

    def resume(self) -> None:
        """After `pause`, resume deliveries and requests for events."""
        self._delivery.resume()

    def run(
        self,
        handler: HandlerT,
        *,
        workers: int = 1,
        key: KeyOf | None = by_record,
        retry: Retry | None = DEFAULT_RETRY,
        on_failure: OnFailure = "stop",
        quarantine: Quarantine | None = None,
        quarantine_limit: QuarantineLimit = DEFAULT_LIMIT,
    ) -> RunT:
        """Call *handler* for each event until the subscription ends; then drain.

        By default, events are handled one after another, in order of arrival. With several
        *workers*, events without a common key are handled concurrently.

        An event is acked once the handler has returned or the event is in the quarantine,
        regardless of ``ack``. Calling `stop` from any thread or signal handler ends the run
        cleanly: running handlers finish, and their events are acked and committed. The same applies
        to Ctrl-C, and to `drain` from another thread; a second Ctrl-C aborts.

        With asyncio, `run` must be awaited, the handler is a coroutine function, and each call is a
        task. Cancelling the run ends it like Ctrl-C; a second cancellation cancels the handlers and
        aborts. *key* is called in the event loop, *quarantine* in worker threads.

        Args:
            handler: Called with each `Event`, in a thread or, with asyncio, in a task.
            workers: Maximum number of handlers running at a time.
            key: Returns the keys of an event. Events with a common key are handled one after
                another, in order of arrival. None means no order, as other events are handled while
                one waits for a retry. The default has an effect only with several workers.
            retry: How the handler is retried after an exception; None means never.
            on_failure: What to do with an event that fails permanently. ``stop``: the run ends, and
                the event is not acked; ``quarantine``: it is stored durably in *quarantine*
                and then acked. The same applies to events that cannot be decoded or for which *key*
                raises an exception.
            quarantine: Stores failed events; required by ``on_failure="quarantine"``, and not
                allowed otherwise.
            quarantine_limit: Stops the run, despite the quarantine, if too many of the most recent
                events failed.

        Returns:
            A summary of the run.

        Raises:
            HandlerError: *handler* or *key* failed on an event, which stopped the run. The cause is
                the exception that it raised.
            WriteError: The quarantine could not be written.
            ConfigurationError: An argument is not valid.
            LocalProtocolError: The subscription has ended, or is already running a handler.
            SfPubSubError: The subscription failed.
        """
        return self._run(
            handler, RunOptions(workers, key, retry, on_failure, quarantine, quarantine_limit)
        )

    @abstractmethod
    def _run(self, handler: HandlerT, options: RunOptions) -> RunT:
        """Run *handler* in threads or, with asyncio, in tasks."""

    def stop(self) -> None:
        """Stop deliveries: iteration ends, and so does `run`. Safe in signal handlers.

        Acks are accepted until the subscription is drained, for instance by leaving the ``with``
        block.
        """
        self._delivery.stop()

    def abort(self) -> None:
        """Abort the subscription immediately.

        Uncommitted events will be redelivered if the service or a store keeps the position.
        """
        self._delivery.abort()

    def _raise_failure(self) -> None:
        try:
            self._delivery.driver.raise_failure()
        except SfPubSubError:
            self._failure_was_raised = True
            raise

    def _check_open(self, timeout: float) -> None:
        driver = self._delivery.driver
        if driver.is_open:
            return
        if driver.over:
            self._raise_end()
        reason = self.health().reason or "the service has sent nothing yet"
        raise StreamUnavailableError(
            f"{self.name} was not open after {timeout:g} s: {reason}; on a topic without events, "
            f"the first message of the service may take 270 s"
        )

    def _check_can_run(self, runner: object) -> None:
        if self._failure_was_raised or self._delivery.driver.discarded:
            self._raise_end()
        if runner is not None:
            raise LocalProtocolError(
                f"{self.name} is already running a handler: create another subscription"
            )

    def _stop_run(self, runner: Stoppable) -> None:
        runner.check_caller()
        self.stop()

    @contextmanager
    def _raised_once(self) -> Iterator[None]:
        """Within the block, suppress the subscription's failure if it was raised earlier.

        The application then receives the same failure only once.
        """
        told = self._failure_was_raised
        try:
            yield
        except SfPubSubError as error:
            if not told or error is not self._delivery.driver.failure:
                raise

    @contextmanager
    def _leaving(self, exc: BaseException | None) -> Iterator[None]:
        """If *exc* is not None, log errors that occur within the block instead of raising them.

        They would hide *exc*, the exception that ended the application's ``with`` block.
        """
        try:
            yield
        except Exception as error:
            if exc is None:
                raise
            logger.warning("%s could not be drained: %s", self.name, error)

    def _raise_end(self) -> NoReturn:
        self._raise_failure()
        how = "closed" if self.closed else "stopped"
        raise SubscriptionClosedError(
            f"the subscription {self.name} is {how} and delivers no more events: create a new "
            f"subscription"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'closed' if self.closed else 'open'})"

    def __del__(self) -> None:
        # Without a reference, nothing can close the subscription any more, and a managed one would
        # occupy its slot forever.
        delivery = getattr(self, "_delivery", None)  # None if __init__ did not run
        if delivery is None or delivery.driver.over:
            return
        if sys.is_finalizing() or os.getpid() != self._process:
            return
        # In a thread, because the garbage collector may run while this thread holds a lock. Not
        # with threading.Thread, which takes locks itself.
        _thread.start_new_thread(delivery.abort, ())
        if not delivery.driver.has_begun:
            return
        outcome = ", and uncommitted events will be redelivered" if delivery.is_tracked else ""
        warnings.warn(
            f"the subscription {delivery.name} was not closed: use it in a with block, or call "
            f"close(); it is aborted now{outcome}",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
