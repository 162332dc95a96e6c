"""What the synchronous and asyncio clients need to run a handler: options, keys, failures, outcome.

A run takes events from a subscription in the calling thread or task, and the `Dispatcher` decides
which event a handler gets next. `Work` connects the subscription and the `Dispatcher`.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, get_args

from sfpubsub.client.batch import Event
from sfpubsub.client.delivery import Delivery
from sfpubsub.client.dispatch import (
    ROOM_PER_WORKER,
    Dispatcher,
    Job,
    QuarantineLimit,
    Retry,
    Shared,
    Step,
)
from sfpubsub.client.undecodable import quarantined, reason_of
from sfpubsub.errors import ConfigurationError, DecodeError, HandlerError, LocalProtocolError
from sfpubsub.stores.quarantine import Quarantine, QuarantinedEvent

logger = logging.getLogger("sfpubsub.client")

Keys: TypeAlias = Hashable | list[Any] | set[Any] | frozenset[Any]
KeyOf: TypeAlias = Callable[[Event], Keys]
"""Returns an event's key, None for no key, or a list or set of several keys. A tuple is a single
key.
"""

OnFailure: TypeAlias = Literal["stop", "quarantine"]
"""``stop``: the run ends with the handler's error. ``quarantine``: the event is stored durably and
then acked.
"""

# The key of every event of a run with one worker, which handles them in order.
_ALL = "all"

DEFAULT_RETRY = Retry()
DEFAULT_LIMIT = QuarantineLimit()

# Maximum characters kept of a handler's error, because database errors contain whole statements.
_REASON_LENGTH = 2000

# Maximum characters kept of a traceback, from its end, where the error is: some hundred lines.
_TRACEBACK_LENGTH = 20_000


def by_record(event: Event) -> Keys:
    """Return an event's keys so that changes to the same record are handled in order.

    This is the default ``key`` of `Subscription.run`. It matters only with several workers: with
    one, all events are handled in order.

    A change event waits for earlier change events about any of its records. An event about all
    records of an object (``001*``, or an overflow event, which has no record ids) waits for every
    earlier event of that object, and later events of that object wait for it. The key of an event
    that is not a change event is its id; without an id, the event has no key.

    Raises:
        DecodeError: The payload does not fit its schema, or has no header.
    """
    change = event.change_event
    if change is None:
        return event.id or None
    entity = ("object", change.entity_name)  # a tuple, so that it cannot equal a record id
    ids = change.record_ids
    if not ids or any(record_id.endswith("*") for record_id in ids):
        return [entity]
    return [Shared(entity), *ids]


@dataclass(frozen=True)
class RunSummary:
    """How many events a run has handled and quarantined, and how many retries it has made."""

    handled: int
    """Number of events handled successfully."""
    retried: int
    """Number of retries: handler calls other than the first one for an event."""
    quarantined: int
    """Number of events quarantined because the handler or *key* failed permanently."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `Subscription.run`.

    Raises:
        ConfigurationError: *workers* or *on_failure* is not valid, or *quarantine* is missing or
            not allowed.
    """

    workers: int
    key: KeyOf | None
    retry: Retry | None
    on_failure: OnFailure
    quarantine: Quarantine | None
    quarantine_limit: QuarantineLimit

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigurationError(f"workers must be at least 1, not {self.workers}")
        if self.on_failure not in get_args(OnFailure):
            raise ConfigurationError(
                f"on_failure must be 'stop' or 'quarantine', not {self.on_failure!r}"
            )
        if (self.on_failure == "quarantine") != (self.quarantine is not None):
            raise ConfigurationError(
                "on_failure='quarantine' and quarantine=… must be used together"
            )


def check_handler(handler: Callable[[Event], object], *, is_async: bool) -> None:
    """Check that a handler is a coroutine function if, and only if, *is_async* is true.

    Raises:
        ConfigurationError: *handler* is a coroutine function but must not be, or vice versa.
    """
    called = getattr(handler, "__call__", None)  # noqa: B004  # not a test of callability
    if (iscoroutinefunction(handler) or iscoroutinefunction(called)) is is_async:
        return
    if is_async:
        raise ConfigurationError(
            "the handler of an AsyncSubscription must be a coroutine function, because a plain "
            "function would block the event loop: use PubSubClient, or await asyncio.to_thread(…) "
            "in the handler"
        )
    raise ConfigurationError(
        "the handler is a coroutine function, which PubSubClient cannot await: use "
        "AsyncPubSubClient"
    )


class Work:
    """Connects a subscription with the `Dispatcher` of one run.

    Only `keys_of`, `ack` and `put` are thread-safe. The synchronous client serialises all other
    calls.

    Args:
        delivery: The subscription's `Delivery`.
        options: Options of the run.
    """

    def __init__(self, delivery: Delivery, options: RunOptions) -> None:
        self._delivery = delivery
        self._options = options
        self._holding = False
        self._has_stopped = False  # whether it has stopped the deliveries
        self._dispatcher: Dispatcher[Event] = Dispatcher(
            workers=options.workers,
            retry=options.retry,
            limit=None if options.quarantine is None else options.quarantine_limit,
            room=options.workers * ROOM_PER_WORKER,
        )

    # Received events.

    def keys_of(self, event: Event) -> list[Hashable] | Exception:
        """Return an event's keys, or the exception if they cannot be determined."""
        if self._options.key is None:
            return []
        if self._options.key is by_record and self._options.workers == 1:
            return [_ALL]  # in order, while an event waits for a retry, too
        try:
            keys = self._options.key(event)
            several = list(keys) if isinstance(keys, list | set | frozenset) else [keys]
            hash(tuple(several))
        except Exception as error:  # noqa: BLE001  # on_failure decides what happens to the event
            return error
        return [key for key in several if key is not None]

    def take(self, event: Event, keys: list[Hashable] | Exception) -> None:
        """Add the next event to the run. *keys* is the result of `keys_of`."""
        if isinstance(keys, Exception):
            self._dispatcher.arrived_broken(event, keys)
        else:
            self._dispatcher.arrived(event, keys)

    def balance(self) -> None:
        """Hold deliveries if the run has no room for more events; otherwise resume them."""
        if self._holding is self._dispatcher.has_room:
            self._holding = not self._holding
            self._delivery.hold(self._holding)

    def close(self) -> None:
        """Record that no more events will arrive."""
        self._dispatcher.close()

    # Decisions and results of steps.

    def next(self) -> Step[Event]:
        """Return the next step. If either the run or the deliveries have stopped, stop both."""
        if self._delivery.discards:
            self._dispatcher.stop()
        step = self._dispatcher.next(time.monotonic())
        if self._dispatcher.stopped and not self._has_stopped:
            self._delivery.stop()
            self._has_stopped = True  # once: it wakes the run, which then calls this
        return step

    def succeeded(self, job: Job[Event]) -> None:
        """Record that the handler succeeded for an event.

        Deliveries are resumed if the run has room for more events.
        """
        self._dispatcher.succeeded(job)
        self.balance()

    def failed(self, job: Job[Event], error: BaseException) -> None:
        """Log that the handler failed on an event, and report the failure to the `Dispatcher`."""
        level = logging.WARNING if job.tries == 1 else logging.INFO
        what, why = _named(job.event), _description(error)
        logger.log(level, "the handler failed on %s: %s", what, why, exc_info=error)
        jitter = random.random()  # noqa: S311  # not a secret
        self._dispatcher.failed(job, error, time.monotonic(), jitter)

    def set_aside(self, job: Job[Event]) -> None:
        """Record that an event is in the quarantine.

        Deliveries are resumed if the run has room for more events.
        """
        self._dispatcher.set_aside(job)
        self.balance()

    def broke(self, error: BaseException, job: Job[Event] | None = None) -> None:
        """Stop the run, because an event could not be quarantined or acked."""
        self._dispatcher.broke(error, job)

    # Steps; thread-safe.

    def ack(self, events: list[Event]) -> None:
        """Ack events that were handled or are in the quarantine."""
        for event in events:
            event.ack()

    def put(self, job: Job[Event]) -> None:
        """Store an event durably in the quarantine. May block."""
        assert self._options.quarantine is not None  # noqa: S101  # checked with the options
        entry = _quarantined(job)
        try:
            self._delivery.quarantine(self._options.quarantine, entry)
        except Exception as error:
            error.add_note(f"{_named(job.event)} was to be quarantined: {entry.reason}")
            raise
        logger.warning(
            "%s was quarantined with key %s: %s", _named(job.event), entry.key, entry.reason
        )

    # Outcome.

    def outcome(self) -> RunSummary:
        """Return the summary of the run.

        Raises:
            HandlerError: The handler or *key* failed on an event, which stopped the run.
            BaseException: The error that prevented an event from being quarantined or acked, such
                as a WriteError.
        """
        done = self._dispatcher
        if done.breakage is not None:
            raise done.breakage
        if done.failed_job is not None:
            raise self._handler_error(done.failed_job) from done.failed_job.error
        return RunSummary(done.handled, done.retried, done.quarantined)

    def _handler_error(self, job: Job[Event]) -> HandlerError:
        event, error = job.event, job.error
        assert error is not None  # noqa: S101  # a failed job has an error
        what = "the handler failed on" if job.tries else "no key could be determined for"
        tries = f" (tried {job.tries} times)" if job.tries > 1 else ""
        limit = self._options.quarantine_limit
        broken = (
            f"; more than {limit.failures} of the last {limit.last} events failed, so fix the "
            f"handler first"
            if self._dispatcher.over_limit
            else ""
        )
        again = (
            "will be redelivered"
            if self._delivery.is_tracked
            else "will not be redelivered, because no position is stored: give a replay_store"
        )
        return HandlerError(
            f"{what} {_named(event)}{tries}, which was not acked and {again}{broken}: "
            f"{_description(error)}",
            event_id=event.id,
            replay_id=event.replay_id,
            subscription=event.subscription,
        )


def drained_from_within(name: str) -> LocalProtocolError:
    """Return the error for draining a subscription from within its own run."""
    return LocalProtocolError(
        f"{name} cannot be drained from within its own run, which would deadlock: call stop() "
        f"instead, and run() will drain"
    )


def _quarantined(job: Job[Event]) -> QuarantinedEvent:
    event, error = job.event, job.error
    assert error is not None  # noqa: S101  # a failed job has an error
    if isinstance(error, DecodeError):
        try:
            event.value  # noqa: B018  # checks that the error is about this event's own payload
        except DecodeError as undecodable:
            return quarantined(event, reason_of(undecodable), event.received_at)
    text = "".join(traceback.format_exception(error))[-_TRACEBACK_LENGTH:]
    return quarantined(event, _description(error), event.received_at, "handler", text)


def _named(event: Event) -> str:
    return (
        f"event {event.id or '(without an id)'} at position {event.replay_id.hex()} of "
        f"{event.subscription}"
    )


def _description(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # the exception's own __str__ may fail
        text = ""
    return f"{type(error).__name__}: {text[:_REASON_LENGTH]}" if text else type(error).__name__
