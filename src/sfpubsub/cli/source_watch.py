"""What ``ingest`` and ``mirror run`` do for each source beside reading it: they keep its status
file, say why it waits, and report to the monitor and the traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from sfpubsub.cli.status_file import StatusFile
from sfpubsub.cli.tracing import TracedSubscription, TracedWriter
from sfpubsub.cli.waiting import Waiting
from sfpubsub.cli.watching import is_traced
from sfpubsub.cli.write_watch import WriteWatch
from sfpubsub.config import Settings
from sfpubsub.monitoring.monitor import Monitor

if TYPE_CHECKING:
    from sfpubsub.client.batch import EventBatch
    from sfpubsub.spark.ingest.job import Subscription, Writer
    from sfpubsub.spark.ingest.progress import Progress
    from sfpubsub.spark.ingest.streams import SourceSubscription, Stream
    from sfpubsub.spark.raw.sources import Source
    from sfpubsub.types import Gap, Health


class SourceWatch:
    """Watches the sources of an `Ingest`, of which `wrap`, `wrote` and `acked` are the callbacks.

    Args:
        command: ``ingest`` or ``mirror``.
        settings: Settings of the run.
        into: Address of the tables that the run writes.
        say: Prints a message about a source.
    """

    monitor: Monitor
    """The command's monitor. Set it before the sources are opened."""

    def __init__(
        self, command: str, settings: Settings, into: str, say: Callable[[Source, str], None]
    ) -> None:
        self._command = command
        self._settings = settings
        self._into = into
        self._say = say
        self.status: dict[Source, StatusFile] = {}
        """The status file of each source."""
        self._writes: dict[Source, WriteWatch] = {}

    def wrap(
        self, source: Source, subscription: SourceSubscription, writer: Writer
    ) -> tuple[SourceSubscription, Writer]:
        """Return a subscription and a writer that are watched."""
        status = StatusFile(
            self._command, source.kind, source.name, self._settings, into=self._into
        )
        self.status[source] = status
        self._writes[source] = WriteWatch(self.monitor, source)
        self.monitor.observe(status.observation)
        reading: Subscription = subscription
        if is_traced():
            from sfpubsub.monitoring.tracing import SourceTracing

            tracing = SourceTracing(source.kind, source.name, endpoint=self._settings.endpoint)
            reading, writer = (
                TracedSubscription(subscription, tracing),
                TracedWriter(writer, tracing),
            )
        waiting = Waiting(partial(self._say, source))
        return WatchedSubscription(subscription, reading, status, waiting), writer

    def follow(self, streams: Sequence[Stream]) -> None:
        """Start reporting the writes of sources that are open."""
        for stream in streams:
            self._writes[stream.source].follow(stream.job)

    def wrote(self, source: Source, progress: Progress) -> None:
        """Report a completed write."""
        self._writes[source].wrote(progress)

    def acked(self, source: Source, batch: EventBatch, events: int) -> None:
        """Report that the first *events* events of *batch* were acked."""
        self.status[source].acked(batch, events)


class WatchedSubscription:
    """A subscription whose status file is kept while it is open. Use it in one thread.

    Args:
        subscription: The subscription.
        reading: The same, or a wrapper that creates spans.
        status: The status file.
        waiting: Says why the subscription waits.
    """

    def __init__(
        self,
        subscription: SourceSubscription,
        reading: Subscription,
        status: StatusFile,
        waiting: Waiting,
    ) -> None:
        self._subscription = subscription
        self._reading = reading
        self._status = status
        self._waiting = waiting
        self._opened = ExitStack()
        self._is_open = False

    @property
    def name(self) -> str:
        """The topic or channel, or the managed subscription's name or id."""
        return self._subscription.name

    def __enter__(self) -> WatchedSubscription:
        with ExitStack() as opened:
            opened.enter_context(self._status)
            self._status.follow(self._subscription)
            opened.enter_context(self._subscription)
            self._opened = opened.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._opened.__exit__(kind, error, traceback)

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next batch of events, or None if none arrives within *timeout* seconds."""
        return self._reading.next_batch(timeout)

    def health(self) -> Health:
        """Return a snapshot of the subscription's health, and note it."""
        health = self._reading.health()
        if self._is_open:
            self._waiting.observe(health, time.monotonic())
            self._status.refresh()
        return health

    def report_gap(self, gap: Gap) -> None:
        """Report a gap that the job found."""
        self._reading.report_gap(gap)

    def abort(self) -> None:
        """End the subscription without draining it."""
        self._subscription.abort()
