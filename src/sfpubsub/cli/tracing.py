"""Wrap a command's subscription and writer so that they create trace spans."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch
    from sfpubsub.monitoring.tracing import SourceTracing
    from sfpubsub.spark.ingest.job import Subscription, Writer
    from sfpubsub.spark.ingest.result import WriteResult
    from sfpubsub.spark.raw.rows import EventRows
    from sfpubsub.types import Gap, Health


class TracedSubscription:
    """A subscription that creates spans for responses and commits.

    As thread-safe as the wrapped subscription.
    """

    def __init__(self, subscription: Subscription, tracing: SourceTracing) -> None:
        self._subscription = subscription
        self._tracing = tracing

    @property
    def name(self) -> str:
        """The topic, or the managed subscription's name or id."""
        return self._subscription.name

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next batch of events, or None if none arrives within *timeout* seconds."""
        began = time.time_ns()
        batch = self._subscription.next_batch(timeout)
        if batch is not None:
            self._tracing.received(batch, began)
        return batch

    def health(self) -> Health:
        """Return a snapshot of the subscription's health."""
        health = self._subscription.health()
        self._tracing.settled(health.confirmed)
        return health

    def report_gap(self, gap: Gap) -> None:
        """Report a gap that the job found."""
        self._subscription.report_gap(gap)


class TracedWriter:
    """A writer that creates a span for each write. As thread-safe as the wrapped writer."""

    def __init__(self, writer: Writer, tracing: SourceTracing) -> None:
        self._writer = writer
        self._tracing = tracing
        self.check: Callable[[], None] = writer.check
        self.record_time: Callable[[int], None] = writer.record_time

    @property
    def flush_requested(self) -> bool:
        """Whether the collected events should be written now."""
        return self._writer.flush_requested

    def write_collected(self, received: EventRows) -> WriteResult:
        """Write the received events durably, within a span, and return the result of the write."""
        with self._tracing.processing(len(received)):
            return self._writer.write_collected(received)
