"""The common part of both publishers: encodes values, and delivers results to their futures.

The protocol (`sfpubsub.protocol.publishing`) decides which events are sent and when. This module
encodes values with the topic's schema, and encodes them again if the schema changes. Failures are
kept until they are raised. A receipt is what an event's result is delivered to.

The threads of the client write, and those of the application read, without a common lock: an
application's thread may be interrupted at any line.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sfpubsub.avro.codec import Codec
from sfpubsub.avro.schema_cache import SchemaCache
from sfpubsub.config import LARGEST_EVENT, LONGEST_EVENT_ID, PublishLimits
from sfpubsub.errors import EncodeError, PermissionDeniedError, PublishError
from sfpubsub.transports.publish_driver import PublishDriver
from sfpubsub.types import ProducerEvent, PublishResult, TopicInfo

ReceiptT = TypeVar("ReceiptT")

# Seconds from `send` to an event's result: several times as long as the service takes to restart.
DEFAULT_TIMEOUT = 120.0

# Failures kept until they are raised; all are counted.
MAX_FAILURES = 1000


def publish_limits(ordered: bool, max_pending_count: int) -> PublishLimits:
    """Return the limits of a publisher.

    Args:
        ordered: Whether only one request may be in flight.
        max_pending_count: Maximum number of events without a result.

    Raises:
        ValueError: *max_pending_count* is below 1.
    """
    requests = 1 if ordered else PublishLimits.max_requests
    return PublishLimits(max_pending_count, max_requests=requests)


class Topics:
    """Caches the `TopicInfo` of topics to publish to. Thread-safe.

    Args:
        ask: Fetches a topic from the service.
    """

    def __init__(self, ask: Callable[[str], TopicInfo]) -> None:
        self._ask = ask
        self._known: dict[str, TopicInfo] = {}

    def get(self, name: str) -> TopicInfo:
        """Return the `TopicInfo` of a topic to publish to, from the cache if possible.

        Raises:
            PermissionDeniedError: The user may not publish to the topic. This is not cached: the
                next call asks the service again.
            SfPubSubError: The topic could not be fetched.
        """
        return self._known.get(name) or self.ask_again(name)

    def ask_again(self, name: str) -> TopicInfo:
        """Fetch a topic from the service even if it is cached. Raises the same errors as `get`."""
        topic = self._ask(name)
        if not topic.can_publish:
            reason = (
                "only the org publishes change events"
                if name.startswith("/data/")
                else "give the user create access to the event"
            )
            raise PermissionDeniedError(
                f"you cannot publish to {name} (can_publish is false): {reason}"
            )
        self._known[name] = topic
        return topic

    def use_schema(self, name: str, schema_id: str) -> None:
        """Record that a topic has a new schema."""
        self._known[name] = replace(self._known[name], schema_id=schema_id)


@dataclass(frozen=True)
class Draft:
    """A value to publish, and its current encoding."""

    value: Mapping[str, Any]
    created: tuple[int, str] | None
    event: ProducerEvent


class Outbound(Generic[ReceiptT]):
    """Encodes the events of one publisher, and delivers their results. Thread-safe.

    Args:
        topic: Full path of the topic, which must already be cached in *topics*.
        topics: Supplies the topic's schema id.
        schemas: Supplies the codecs.
        created_by: ``CreatedById`` for values that lack it; a missing ``CreatedDate`` is then
            filled in, too. None fills in neither.
        make_driver: Creates the driver for this object.
        deliver: Delivers results to receipts; must not block. Called by threads of the client, one
            at a time.
        timeout: Maximum time from handing an event over to its result, in seconds.
    """

    def __init__(
        self,
        topic: str,
        *,
        topics: Topics,
        schemas: SchemaCache,
        created_by: str | None,
        make_driver: Callable[[Outbound[ReceiptT]], PublishDriver],
        deliver: Callable[[Sequence[tuple[ReceiptT, PublishResult]]], None],
        timeout: float,
    ) -> None:
        self.topic = topic
        self.timeout = timeout
        self._topics = topics
        self._schemas = schemas
        self._created_by = created_by
        self._deliver = deliver
        # Written by threads of the client alone; a single operation adds or removes one event.
        self._pending: dict[int, tuple[Draft, ReceiptT]] = {}  # by ticket, in submission order
        self._last = 0
        self._settling = threading.Lock()  # of threads of the client
        self._failed = 0
        # Failures by the id of the result, which the receipt has as well; with their numbers.
        self._failures: dict[int, tuple[int, PublishResult]] = {}
        self._beyond = 0  # failures that are not kept
        # Written by the application alone: the number of the last failure that was raised, and how
        # many of those that are not kept.
        self._raised = (0, 0)
        self.driver: PublishDriver = make_driver(self)

    # Values to events.

    @property
    def can_encode(self) -> bool:
        """Whether `draft` can encode without fetching a schema."""
        return self._schemas.peek(self._topics.get(self.topic).schema_id) is not None

    def draft(
        self,
        value: Mapping[str, Any],
        event_id: str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Draft:
        """Encode a value with the topic's schema, fetching the schema if necessary.

        If the value cannot be encoded, the topic is fetched again, in case its schema has changed.

        Raises:
            EncodeError: The value does not fit the schema or is too large, or the id or a header is
                not valid.
            SfPubSubError: The topic or its schema could not be fetched.
        """
        used = self._topics.get(self.topic).schema_id
        try:
            return self.draft_at_once(value, event_id, headers)
        except EncodeError:
            if self._topics.ask_again(self.topic).schema_id == used:
                raise
            return self.draft_at_once(value, event_id, headers)

    def draft_at_once(
        self,
        value: Mapping[str, Any],
        event_id: str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Draft:
        """Encode a value without checking whether the topic's schema has changed.

        The topic and the schema are fetched only if they are not cached. Raises the same errors as
        `draft`.
        """
        event_id = _checked_id(event_id)
        codec = self._schemas.get(self._topics.get(self.topic).schema_id)
        by = self._created_by
        created = None if by is None else (round(time.time() * 1000), by)
        event = ProducerEvent("", b"", event_id, _checked_headers(event_id, headers))
        event = _encoded(event, codec, value, created)
        # A copy, because the caller may change its value.
        return Draft(dict(value), created, event)

    def encode_again(self, ticket: int, schema_id: str) -> ProducerEvent:
        """Encode a pending event with another schema, keeping its id.

        Raises:
            EncodeError: The value does not fit the schema, or the event is no longer pending.
            SfPubSubError: The schema could not be fetched.
        """
        pending = self._pending.get(ticket)
        if pending is None:  # it timed out while the schema was fetched
            raise EncodeError("the event already has a result, so it was not encoded again")
        draft, _ = pending
        return _encoded(draft.event, self._schemas.get(schema_id), draft.value, draft.created)

    def use_schema(self, schema_id: str) -> None:
        """Encode all further events with the schema that has the id *schema_id*."""
        self._topics.use_schema(self.topic, schema_id)

    # Events to receipts.

    def offer(
        self, drafts: Sequence[Draft], receipts: Sequence[ReceiptT], *, times: int = 1
    ) -> bool:
        """Add all events unless too many are pending; return whether they were added.

        Args:
            drafts: The events.
            receipts: Their receipts, in the same order.
            times: How many times the publisher's limits apply.

        Raises:
            SfPubSubError: The publisher has failed or was closed.
        """

        def taken(tickets: list[int]) -> None:
            for ticket, draft, receipt in zip(tickets, drafts, receipts, strict=True):
                self._pending[ticket] = (draft, receipt)
                self._last = ticket

        return self.driver.offer([draft.event for draft in drafts], taken, times=times)

    def settled(self, outcomes: Sequence[tuple[int, PublishResult]]) -> None:
        """Deliver results to the receipts of their events, and keep failures until they are raised.

        Args:
            outcomes: For each event, its ticket and its result.
        """
        with self._settling:
            for _, result in outcomes:
                if not result.ok:
                    self._keep(result)
            # Before waiting threads see the events as settled.
            self._deliver([(self._pending[ticket][1], result) for ticket, result in outcomes])
            for ticket, _ in outcomes:
                del self._pending[ticket]

    def _keep(self, result: PublishResult) -> None:
        self._failed += 1
        if len(self._failures) >= MAX_FAILURES:
            raised = self._raised[0]
            for key, (number, _) in self._failures.copy().items():
                if number <= raised:
                    self._failures.pop(key, None)
        if len(self._failures) < MAX_FAILURES:
            self._failures[id(result)] = self._failed, result
        else:
            self._beyond += 1

    # Waiting.

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until *condition* is true, and return True; return False after *timeout* seconds.

        *condition* is checked again whenever the driver reports a change.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            changes = self.driver.changes
            if condition():
                return True
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                return False
            self.driver.wait(changes, rest)

    @property
    def last(self) -> int:
        """Ticket of the newest event, to be passed to `is_settled`."""
        return self._last

    def is_settled(self, ticket: int) -> bool:
        """Return whether all events up to and including *ticket* have results."""
        while True:
            try:
                return next(iter(self._pending), ticket + 1) > ticket
            except RuntimeError:  # it changed in between
                continue

    @property
    def is_over(self) -> bool:
        """Whether the publisher has ended and every event has a result."""
        return self.driver.over and not self._pending

    # Failures.

    def late(self, timeout: float) -> PublishError:
        """Return the error for a wait that timed out after *timeout* seconds."""
        return late(self.topic, len(self._pending), timeout)

    def full(self) -> PublishError:
        """Return the error for a thread that must not wait until events have results."""
        return PublishError(
            f"{self.topic}: {len(self._pending)} events have no result, twice the limit, and a "
            f"callback must not wait for them: send fewer events from callbacks, or raise "
            f"max_pending_count",
            retryable=True,
        )

    def error_of(self, result: PublishResult) -> PublishError:
        """Return the error for one failed event."""
        error = PublishError(
            f"{self.topic}: event {result.correlation_key} failed: {result.error}",
            results=[result],
            retryable=result.retryable,
        )
        error.__cause__ = self.driver.failure
        return error

    def failure_of(self, result: PublishResult) -> PublishError:
        """Return the error for one failed event, which `raise_failures` then omits."""
        error = self.error_of(result)
        self._failures.pop(id(result), None)
        return error

    def raise_failures(self) -> None:
        """Raise the failures that have not been raised yet.

        Raises:
            PublishError: Events have failed.
            SfPubSubError: No event has failed, but the publisher itself has; this is the error that
                ended it.
        """
        raised, beyond_raised = self._raised
        beyond = self._beyond
        found = [each for each in self._failures.copy().values() if each[0] > raised]
        failed = len(found) + beyond - beyond_raised
        if failed:
            results = [result for _, result in found]
            first = [f"; first failure ({e.correlation_key}): {e.error}" for e in results[:1]]
            error = PublishError(
                f"{self.topic}: {failed} event{'s' * (failed > 1)} failed{''.join(first)}",
                results=results,
                retryable=bool(results) and all(result.retryable for result in results),
            )
            error.__cause__ = self.driver.failure
            told = max([raised, *(number for number, _ in found)]), beyond
            self._raised = told  # directly before the raise: see `Hand`
            raise error
        self.driver.raise_failure()


def late(topic: str, count: int, timeout: float | None) -> PublishError:
    """Return the error for a flush after which *count* events have no result."""
    return PublishError(
        f"{topic}: {count} events have no result after {timeout or 0:g} s but are still being "
        f"sent: call flush again to wait longer",
        retryable=True,
    )


def _encoded(
    event: ProducerEvent,
    codec: Codec,
    value: Mapping[str, Any],
    created: tuple[int, str] | None,
) -> ProducerEvent:
    payload = codec.encode(value, fill_created=created)
    # It is not documented whether the service counts headers, so an event that it might refuse is
    # refused here.
    size = len(payload) + sum(len(key.encode()) + len(text) for key, text in event.headers)
    if size > LARGEST_EVENT:
        raise EncodeError(
            f"event {event.id} has {size} bytes including headers, but the limit is "
            f"{LARGEST_EVENT}: it was not sent"
        )
    return replace(event, schema_id=codec.schema_id, payload=payload)


def _checked_id(event_id: object) -> str:
    if event_id is None:
        return str(uuid.uuid4())
    if not isinstance(event_id, str) or not 0 < len(event_id) <= LONGEST_EVENT_ID:
        raise EncodeError(
            f"event id {event_id!r} must be a string of 1 to {LONGEST_EVENT_ID} characters: "
            f"the service would replace any other id"
        )
    return event_id


def _checked_headers(
    event_id: str, headers: Mapping[Any, Any] | None
) -> tuple[tuple[str, bytes], ...]:
    found: list[tuple[str, bytes]] = []
    for key, value in (headers or {}).items():
        content = value.encode() if isinstance(value, str) else value
        if not isinstance(key, str) or not isinstance(content, bytes):
            raise EncodeError(
                f"header {key!r} of event {event_id} is not valid: the name must be a string, and "
                f"the value bytes or a string"
            )
        found.append((key, content))
    return tuple(found)
