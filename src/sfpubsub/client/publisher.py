"""The synchronous publisher, and a function that publishes events and waits for the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self

from sfpubsub.client.connection import Connection
from sfpubsub.client.publishing import Draft, Outbound
from sfpubsub.client.receipts import Callbacks, Receipt
from sfpubsub.config import MAX_PUBLISH_EVENTS, PublishLimits
from sfpubsub.errors import EncodeError, PublishError, SfPubSubError
from sfpubsub.types import PublishCounts, PublishResult

logger = logging.getLogger("sfpubsub.client")


class Publisher:
    """Publishes events to one topic. Thread-safe. Created by `PubSubClient.open_publisher`.

    ::

        with client.open_publisher("/event/Order_Event__e") as publisher:
            for order in orders:
                publisher.send(order)

    Leaving the ``with`` block waits for every result, and raises an error if an event failed. If
    the block ends with an exception, the publisher stops immediately: pending events get a failed
    result.
    """

    def __init__(self, outbound: Outbound[Receipt], callbacks: Callbacks) -> None:
        self._outbound = outbound
        self._callbacks = callbacks
        callbacks.outbound = outbound

    @property
    def topic(self) -> str:
        """Full path of the topic, such as ``/event/Order_Event__e``."""
        return self._outbound.topic

    @property
    def counts(self) -> PublishCounts:
        """Number of events sent so far, by outcome."""
        return self._outbound.driver.counts()

    def send(
        self,
        value: Mapping[str, Any],
        *,
        event_id: str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Future[PublishResult]:
        """Send an event. Blocks while too many events are pending or a schema is being fetched.

        In a callback of a receipt, and in ``on_gap``, it does not wait while too many events are
        pending: it may exceed the limit up to twice, and then raises an error. If the call is
        interrupted (Ctrl-C), the event may have been sent; `flush` and `close` wait for it.

        Args:
            value: Values by field name; see `PubSubClient.publish`.
            event_id: The event's id, at most 36 characters; a UUID by default. It stays the same if
                the event is resent, so subscribers can recognize duplicates.
            headers: Reserved by the service for future use.

        Returns:
            A future for the result, which raises a PublishError if the event fails. `flush` and
            `close` raise for every failed event whose future was not asked.

        Raises:
            PublishError: In a callback: too many events are pending.
            EncodeError: The value does not fit the schema or is too large, or *event_id* or a
                header is not valid; nothing was sent.
            LocalProtocolError: The publisher is closed.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound, callbacks = self._outbound, self._callbacks
        draft = outbound.draft(value, event_id, headers)
        receipt = Receipt(callbacks, draft.event.id)
        waits = not (callbacks.is_current or outbound.driver.must_not_wait)

        def is_taken() -> bool:
            return outbound.offer([draft], [receipt], times=1 if waits else CALLBACK_ROOM)

        if waits:
            outbound.wait(is_taken, None)  # events expire, so there will be room
        elif not is_taken():
            raise outbound.full()
        return receipt

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the results of all events sent so far.

        Args:
            timeout: Maximum time to wait, in seconds. None waits for every result; the
                publisher's own timeout then limits the wait for each event.

        Raises:
            PublishError: Events have failed whose error was not raised yet, or there was no result
                in time.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound = self._outbound
        last = outbound.last
        if not outbound.wait(lambda: outbound.is_settled(last), timeout):
            raise outbound.late(timeout or 0.0)
        outbound.raise_failures()

    def close(self) -> None:
        """Wait for all results and for the callbacks of the receipts, and close the publisher.

        Callbacks are waited for up to the publisher's ``timeout``, unless this is called by one.

        Raises:
            PublishError: Events have failed whose error was not raised yet, or a callback has not
                returned in time; the message names it.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound = self._outbound
        outbound.driver.drain()
        outbound.wait(lambda: outbound.is_over, None)
        running = self._callbacks.finish(outbound.timeout)
        if running:
            running = f"{outbound.topic}: all events have results, but {running}"
            logger.warning("%s", running)
        outbound.raise_failures()
        if running:
            raise PublishError(
                f"{running} after {outbound.timeout:g} s: look for what it waits for"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._outbound.driver.abort()


# How many times the publisher's limits apply in a callback, which must not wait: it is what every
# other callback waits for.
CALLBACK_ROOM = 2


def publish_all(
    connection: Connection,
    topic: str,
    events: Iterable[Mapping[str, Any]],
    created_by: str | None,
    timeout: float,
) -> list[PublishResult]:
    """Publish events with unary Publish calls, one call at a time; see `PubSubClient.publish`."""
    results: dict[int, PublishResult] = {}  # by index; written by threads of the client
    has_expired = False

    def deliver(outcomes: Sequence[tuple[int, PublishResult]]) -> None:
        nonlocal has_expired
        results.update(outcomes)
        has_expired |= any(not result.ok and result.retryable for _, result in outcomes)

    outbound: Outbound[int] = connection.outbound(
        topic,
        streamed=False,
        timeout=timeout,
        # One request waits while another is in flight, so that an event's timeout begins shortly
        # before it is sent, however many events there are.
        limits=PublishLimits(MAX_PUBLISH_EVENTS, max_requests=1),
        created_by=created_by,
        deliver=deliver,
    )
    driver = outbound.driver
    try:
        drafts = _drafts(outbound, events)
        refusal = _offer_all(outbound, drafts, lambda: has_expired)
        driver.drain()
        outbound.wait(lambda: outbound.is_over, None)
    finally:
        driver.abort()
    found = [
        results.get(index) or _never_sent(draft, refusal) for index, draft in enumerate(drafts)
    ]
    failed = [result for result in found if not result.ok]
    if not failed:
        return found
    if refusal is not None and not results:
        raise refusal
    if driver.failure is not None and len(failed) == len(found):
        driver.raise_failure()
    raise PublishError(
        f"{topic}: {len(failed)} of {len(found)} events failed; first failure "
        f"({failed[0].correlation_key}): {failed[0].error}",
        results=found,
        retryable=all(result.retryable for result in failed),
    ) from driver.failure


def _drafts(outbound: Outbound[int], events: Iterable[Mapping[str, Any]]) -> list[Draft]:
    drafts = []
    for index, event in enumerate(events):
        try:
            drafts.append(outbound.draft(event))
        except EncodeError as error:
            raise EncodeError(
                f"event {index + 1} is not valid, so none was published: {error}"
            ) from error
    return drafts


def _offer_all(
    outbound: Outbound[int], drafts: Sequence[Draft], has_expired: Callable[[], bool]
) -> SfPubSubError | None:
    """Hand over the events, request by request; return the error if not all were handed over."""
    for start in range(0, len(drafts), MAX_PUBLISH_EVENTS):
        part = drafts[start : start + MAX_PUBLISH_EVENTS]
        offer = partial(outbound.offer, part, range(start, start + len(part)))
        try:
            outbound.wait(lambda: has_expired() or offer(), None)  # noqa: B023  # called at once
        except SfPubSubError as error:
            return error
        if has_expired():
            return PublishError("earlier events got no result in time", retryable=True)
    return None


def _never_sent(draft: Draft, refusal: SfPubSubError | None) -> PublishResult:
    assert refusal is not None  # noqa: S101  # otherwise every event was handed over
    text = f"{refusal}; the event was never sent"
    return PublishResult(None, draft.event.id, text, refusal.retryable)
