"""The publisher's blocking face, and publishing a list in one call."""

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
    """Publishes to one topic. Thread-safe. `PubSubClient.open_publisher` makes it.

    ::

        with client.open_publisher("/event/Order_Event__e") as publisher:
            for order in orders:
                publisher.send(order)

    Leaving the block waits for every result, and raises if an event failed. Leaving it by an
    exception ends at once: what has no result by then gets one that says so.
    """

    def __init__(self, outbound: Outbound[Future[PublishResult]]) -> None:
        self._outbound = outbound

    @property
    def topic(self) -> str:
        """What it publishes to."""
        return self._outbound.topic

    @property
    def counts(self) -> PublishCounts:
        """What has become of the events so far."""
        return self._outbound.driver.counts()

    def send(
        self,
        value: Mapping[str, Any],
        *,
        event_id: str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> Future[PublishResult]:
        """Send an event; waits only while too many have no result.

        Args:
            value: Values by field name; see `PubSubClient.publish`.
            event_id: The event's id, at most 36 characters, which it keeps however often it is
                sent; a UUID if it is left out. Subscribers tell repeats by it.
            headers: The service sets them aside for later use.

        Returns:
            A future of the result, which may be a refusal: look at ``result().ok``. It never
            raises; `flush` and `close` do, for every event that failed.

        Raises:
            EncodeError: The value does not fit the schema, or is too large; nothing was sent.
            LocalProtocolError: The publisher is closed.
            SfPubSubError: What ended the publisher.
        """
        outbound = self._outbound
        draft = outbound.draft(value, event_id, headers)
        receipt: Future[PublishResult] = Future()
        receipt.set_running_or_notify_cancel()  # what was sent cannot be cancelled
        while True:
            changes = outbound.driver.changes
            if outbound.offer([draft], [receipt]):
                return receipt
            outbound.driver.wait(changes, None)  # events expire, so there will be room

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the results of all events sent before.

        Args:
            timeout: Seconds; without it the publisher's own timeout ends the wait.

        Raises:
            PublishError: Events have failed since the last time that this was raised; or there was
                no result in time.
            SfPubSubError: What ended the publisher.
        """
        outbound = self._outbound
        last = outbound.last
        if not _wait(outbound, lambda: outbound.is_settled(last), timeout):
            raise outbound.late(timeout or 0.0)
        outbound.raise_failures()

    def close(self) -> None:
        """Take no more events, wait for all results, and end.

        Raises:
            PublishError: Events have failed, and that was not raised yet.
            SfPubSubError: What ended the publisher.
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


def settle(outcomes: Sequence[tuple[Future[PublishResult], PublishResult]]) -> None:
    """Give futures their results."""
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
        outbound.driver.wait(changes, rest)


def publish_all(
    connection: Connection,
    topic: str,
    events: Iterable[Mapping[str, Any]],
    created_by: str | None,
    timeout: float,
) -> list[PublishResult]:
    """Publish a list by Publish, a request at a time; see `PubSubClient.publish`."""
    outbound: Outbound[Future[PublishResult]] = connection.outbound(
        topic,
        streamed=False,
        timeout=timeout,
        # The caller holds them all anyway.
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
                raise EncodeError(f"event {index + 1}, none was published: {error}") from error
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
        f"{topic}: {len(failed)} of {len(results)} events failed, the first one "
        f"({failed[0].correlation_key}): {failed[0].error}",
        results=results,
        retryable=all(result.retryable for result in failed),
    ) from driver.failure


_UNBOUNDED = PublishLimits(2**31, 2**31 * MAX_PUBLISH_BYTES, max_requests=1)
