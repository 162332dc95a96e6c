"""A subscription and a writer as an ingest job has them, with spans of what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch
    from sfpubsub.monitoring.tracing import SourceTracing
    from sfpubsub.spark.ingest.job import Writer
    from sfpubsub.spark.ingest.result import WriteResult
    from sfpubsub.spark.raw.rows import EventRows
    from sfpubsub.types import Health


class Subscription(Protocol):
    """What a command reads."""

    @property
    def name(self) -> str:
        """Topic, or name or id of the managed subscription."""
        ...

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next response's events, or None after *timeout* seconds."""
        ...

    def health(self) -> Health:
        """Return what it is doing."""
        ...


class TracedSubscription:
    """A subscription whose responses and commits have spans. As thread-safe as what it wraps."""

    def __init__(self, subscription: Subscription, tracing: SourceTracing) -> None:
        self._subscription = subscription
        self._tracing = tracing

    @property
    def name(self) -> str:
        """Topic, or name or id of the managed subscription."""
        return self._subscription.name

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next response's events, or None after *timeout* seconds."""
        began = time.time_ns()
        batch = self._subscription.next_batch(timeout)
        if batch is not None:
            self._tracing.received(batch, began)
        return batch

    def health(self) -> Health:
        """Return what it is doing."""
        health = self._subscription.health()
        self._tracing.settled(health.confirmed)
        return health


class TracedWriter:
    """A writer whose writes have spans. As thread-safe as what it wraps."""

    def __init__(self, writer: Writer, tracing: SourceTracing) -> None:
        self._writer = writer
        self._tracing = tracing
        self.check: Callable[[], None] = writer.check
        self.hear_time: Callable[[int], None] = writer.hear_time

    @property
    def is_wanted(self) -> bool:
        """Whether what was gathered is to be written now."""
        return self._writer.is_wanted

    def write_read(self, received: EventRows) -> WriteResult:
        """Make the events durable."""
        with self._tracing.processing(len(received)):
            return self._writer.write_read(received)
