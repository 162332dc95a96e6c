"""The synchronous publisher, and a function that publishes events and waits for the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from sfpubsub.client.connection import Connection
from sfpubsub.client.publishing import Outbound
from sfpubsub.config import MAX_PUBLISH_BYTES, PublishLimits
from sfpubsub.errors import EncodeError, PublishError
from sfpubsub.types import PublishCounts, PublishResult


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

    def __init__(self, outbound: Outbound[Future[PublishResult]]) -> None:
        self._outbound = outbound

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

        Args:
            value: Values by field name; see `PubSubClient.publish`.
            event_id: The event's id, at most 36 characters; a UUID by default. It stays the same if
                the event is resent, so subscribers can recognize duplicates.
            headers: Reserved by the service for future use.

        Returns:
            A future for the result. Check ``result().ok``, because the future itself never raises;
            `flush` and `close` raise for every failed event.

        Raises:
            EncodeError: The value does not fit the schema or is too large, or *event_id* or a
                header is not valid; nothing was sent.
            LocalProtocolError: The publisher is closed.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound = self._outbound
        draft = outbound.draft(value, event_id, headers)
        receipt: Future[PublishResult] = Future()
        receipt.set_running_or_notify_cancel()  # an event that was sent cannot be cancelled
        while True:
            changes = outbound.driver.changes
            if outbound.offer([draft], [receipt]):
                return receipt
            outbound.driver.wait(changes, None)  # events expire, so there will be room

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the results of all events sent so far.

        Args:
            timeout: Maximum time to wait, in seconds. None waits for every result; the
                publisher's own timeout then limits the wait for each event.

        Raises:
            PublishError: Events have failed since the last PublishError, or there was no result in
                time.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound = self._outbound
        last = outbound.last
        if not _wait(outbound, lambda: outbound.is_settled(last), timeout):
            raise outbound.late(timeout or 0.0)
        outbound.raise_failures()

    def close(self) -> None:
        """Wait for all results, and close the publisher.

        Raises:
            PublishError: Events have failed since the last PublishError.
            SfPubSubError: The publisher has failed; this is the error that ended it.
        """
        outbound = self._outbound
        outbound.driver.drain()
        _wait(outbound, lambda: outbound.is_over, None)
        outbound.raise_failures()

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


# Maximum seconds of one wait. Python handles a signal that arrives just before a wait only after
# the wait, so without this limit, Ctrl-C would have no effect until a result arrives.
_SLICE = 1.0


def settle(outcomes: Sequence[tuple[Future[PublishResult], PublishResult]]) -> None:
    """Set each result on its future."""
    for receipt, result in outcomes:
        receipt.set_result(result)


def _wait(outbound: Outbound[Any], condition: Callable[[], bool], timeout: float | None) -> bool:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        changes = outbound.driver.changes
        if condition():
            return True
        rest = None if deadline is None else deadline - time.monotonic()
        if rest is not None and rest <= 0:
            return False
        outbound.driver.wait(changes, _SLICE if rest is None else min(rest, _SLICE))


def publish_all(
    connection: Connection,
    topic: str,
    events: Iterable[Mapping[str, Any]],
    created_by: str | None,
    timeout: float,
) -> list[PublishResult]:
    """Publish events with unary Publish calls, one call at a time; see `PubSubClient.publish`."""
    outbound: Outbound[Future[PublishResult]] = connection.outbound(
        topic,
        streamed=False,
        timeout=timeout,
        # No limit, because the caller holds all events anyway.
        limits=_UNBOUNDED,
        created_by=created_by,
        deliver=settle,
    )
    driver = outbound.driver
    try:
        drafts = []
        for index, event in enumerate(events):
            try:
                drafts.append(outbound.draft(event))
            except EncodeError as error:
                raise EncodeError(
                    f"event {index + 1} is not valid, so none was published: {error}"
                ) from error
        receipts: list[Future[PublishResult]] = [Future() for _ in drafts]
        outbound.offer(drafts, receipts)
        driver.drain()
        _wait(outbound, lambda: outbound.is_over, None)
    finally:
        driver.abort()
    results = [receipt.result() for receipt in receipts]
    failed = [result for result in results if not result.ok]
    if not failed:
        return results
    if driver.failure is not None and len(failed) == len(results):
        driver.raise_failure()
    raise PublishError(
        f"{topic}: {len(failed)} of {len(results)} events failed; first failure "
        f"({failed[0].correlation_key}): {failed[0].error}",
        results=results,
        retryable=all(result.retryable for result in failed),
    ) from driver.failure


_UNBOUNDED = PublishLimits(2**31, 2**31 * MAX_PUBLISH_BYTES, max_requests=1)
