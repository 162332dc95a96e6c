"""What the two faces of a subscription have in common: everything that never waits."""

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
    WORKERS,
    KeyOf,
    OnFailure,
    RunOptions,
    by_record,
)
from sfpubsub.errors import LocalProtocolError, SfPubSubError, SubscriptionClosedError
from sfpubsub.stores.quarantine import Quarantine
from sfpubsub.types import Health

logger = logging.getLogger("sfpubsub.client")

# How long `commit` waits for its answer, in seconds: the time after which an answer counts as
# lost, and one more try.
COMMIT_TIMEOUT = 60.0


class Stoppable(Protocol):
    """A run that can be waited for."""

    def check_caller(self) -> None:
        """Refuse a call from within the run."""
        ...


HandlerT = TypeVar("HandlerT")
RunT = TypeVar("RunT")


class SubscriptionFace(ABC, Generic[HandlerT, RunT]):
    """The base of `Subscription` and `AsyncSubscription`. Its methods are for any thread.

    Args:
        delivery: Of the subscription; owned by this object from now on.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._process = os.getpid()
        self._failure_is_told = False

    @property
    def name(self) -> str:
        """Topic, or name or id of the managed subscription."""
        return self._delivery.name

    @property
    def closed(self) -> bool:
        """Whether the subscription has ended: drained, closed, aborted or failed."""
        return self._delivery.driver.over

    @property
    def pending_count(self) -> int:
        """Events received and not yet delivered."""
        return self.health().pending_count

    def health(self) -> Health:
        """Return a snapshot: state, counts, position, gaps."""
        return self._delivery.health()

    def pause(self) -> None:
        """Deliver nothing and ask for nothing more until `resume`.

        The stream is kept open, acks are taken and commits continue. Iterating waits meanwhile, and
        `next_batch` with a timeout returns None.
        """
        self._delivery.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._delivery.resume()

    def run(
        self,
        handler: HandlerT,
        *,
        workers: int = WORKERS,
        key: KeyOf | None = by_record,
        retry: Retry | None = DEFAULT_RETRY,
        on_failure: OnFailure = "stop",
        quarantine: Quarantine | None = None,
        quarantine_limit: QuarantineLimit = DEFAULT_LIMIT,
    ) -> RunT:
        """Call *handler* for each event, many at a time, until the subscription ends; then drain.

        An event is acked when the handler has returned, or when it is in the quarantine, whatever
        ``ack`` says. `stop`, from any thread or signal handler, ends the run in order: what runs is
        finished, acked and committed. So do Ctrl-C, and `drain` or `close` from another thread; a
        second Ctrl-C aborts.

        With asyncio this is awaited: the handler is a coroutine function, and each call of it a
        task. Cancelling the run ends it as Ctrl-C does; a second cancellation cancels the handlers
        and aborts. *key* is called in the loop, *quarantine* in threads of the client's.

        Args:
            handler: Takes an `Event`; called in threads, or awaited in tasks, with events that have
                no key in common.
            workers: Handlers that run at a time.
            key: Events that have a key in common are handled one after the other, in order of
                arrival. None: no order.
            retry: How often the handler is called again after an exception; None: never.
            on_failure: What becomes of an event that it still fails on: ``stop``: the run ends, and
                the event comes again; ``quarantine``: it is put into *quarantine* durably, and then
                acked. So are one that cannot be decoded and one whose *key* raises.
            quarantine: Where such events are kept.
            quarantine_limit: How many may fail before the run stops all the same.

        Returns:
            What was done.

        Raises:
            HandlerError: The handler failed on an event, and that stopped the run. The cause is
                what it raised.
            WriteError: The quarantine could not be written.
            ConfigurationError: An argument is wrong.
            LocalProtocolError: The subscription has ended, or is being run already.
            SfPubSubError: The subscription failed.
        """
        return self._run(
            handler, RunOptions(workers, key, retry, on_failure, quarantine, quarantine_limit)
        )

    @abstractmethod
    def _run(self, handler: HandlerT, options: RunOptions) -> RunT:
        """Run *handler* as this face does."""

    def stop(self) -> None:
        """Deliver nothing more: iterating ends, and so does `run`. For signal handlers, too.

        Acks are taken until the subscription is drained, which leaving the ``with`` block does.
        """
        self._delivery.stop()

    def abort(self) -> None:
        """End now. What is acked and not committed comes again."""
        self._delivery.abort()

    def _raise_failure(self) -> None:
        try:
            self._delivery.driver.raise_failure()
        except SfPubSubError:
            self._failure_is_told = True
            raise

    def _check_can_run(self, runner: object) -> None:
        if self._failure_is_told or self._delivery.driver.discarded:
            self._raise_end()
        if runner is not None:
            raise LocalProtocolError(f"{self.name} is being run already: subscribe once more")

    def _stop_run(self, runner: Stoppable) -> None:
        runner.check_caller()
        self.stop()

    @contextmanager
    def _told_once(self) -> Iterator[None]:
        """Do not raise a failure again that the application has already received."""
        told = self._failure_is_told
        try:
            yield
        except SfPubSubError as error:
            if not told or error is not self._delivery.driver.failure:
                raise

    @contextmanager
    def _leaving(self, exc: BaseException | None) -> Iterator[None]:
        """Log an error of the way out after *exc*, which it must not hide."""
        try:
            yield
        except Exception as error:
            if exc is None:
                raise
            logger.warning("draining %s: %s", self.name, error)

    def _raise_end(self) -> NoReturn:
        self._raise_failure()
        how = "closed" if self.closed else "stopped"
        raise SubscriptionClosedError(
            f"the subscription {self.name} is {how} and brings nothing more: subscribe again"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {'closed' if self.closed else 'open'})"

    def __del__(self) -> None:
        # Nobody can iterate, drain or close it any more, and it would hold its slot for ever.
        delivery = getattr(self, "_delivery", None)  # None where __init__ was not reached
        if delivery is None or delivery.driver.over:
            return
        if sys.is_finalizing() or os.getpid() != self._process:
            return
        # In a thread: the garbage collector may have come while this one holds any lock. Not by
        # threading.Thread, which takes locks of its own.
        _thread.start_new_thread(delivery.abort, ())
        if not delivery.driver.has_begun:
            return
        warnings.warn(
            f"the subscription {delivery.name} was not closed: use it in a with block, or call "
            f"close(); it ends now, and what was not committed comes again",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
