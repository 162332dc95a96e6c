"""The ingest loop: receive events, decode them, write them, ack them.

`IngestSchedule` decides when to do what. An event is acked only after its write has succeeded; the
events of a failed or interrupted write are redelivered. While one batch is written in a separate
thread, the next one is received and decoded, because Spark does its work outside this process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from sfpubsub.client.batch import EventBatch
from sfpubsub.client.last_confirmed import Confirmed, LastConfirmed
from sfpubsub.errors import ReplayIdRejectedError, SfPubSubError, SubscriptionClosedError
from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.ingest.confirmations import Commit, Unconfirmed
from sfpubsub.spark.ingest.pending_events import PendingEvents
from sfpubsub.spark.ingest.progress import Ending, Progress, Summary
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.schedule import (
    Check,
    End,
    Finish,
    Flush,
    IngestSchedule,
    Look,
    Receive,
)
from sfpubsub.spark.ingest.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_EVENTS,
    DEFAULT_BATCH_SECONDS,
    IngestSettings,
)
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.types import Gap, Health

_log = logging.getLogger("sfpubsub.spark")


class Subscription(Protocol):
    """The part of a subscription that the ingest loop needs; its acks must be manual."""

    @property
    def name(self) -> str:
        """The topic, or the managed subscription's name or id."""
        ...

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """Return the events of the next response, or None if *timeout* seconds pass without one."""
        ...

    def health(self) -> Health:
        """Return the subscription's current state, counts and gaps."""
        ...

    def report_gap(self, gap: Gap) -> None:
        """Report a gap that the job found, so that `health` contains it."""
        ...


class Writer(Protocol):
    """The part of an `EventWriter` that the ingest loop needs."""

    @property
    def flush_requested(self) -> bool:
        """Whether to write the collected events now, because other sources are waiting for them."""
        ...

    def write_collected(self, received: EventRows) -> WriteResult:
        """Write the events durably. Called in a separate thread, for one batch at a time."""
        ...

    def check(self) -> None:
        """Raise WriteError if the writer can no longer write."""
        ...

    def record_time(self, process_time: int) -> None:
        """Record the service's time, in milliseconds since the epoch."""
        ...


class SidecarStore(Protocol):
    """The part of `sfpubsub.spark.ingest.sidecars.Sidecars` that the ingest loop needs."""

    def keep_gaps(self, gaps: Sequence[Gap]) -> object:
        """Store gaps durably."""
        ...

    def keep_commit(self, commit: Commit) -> None:
        """Add a commit to the commit log. It may be written later, by `flush_due`."""
        ...

    def flush_due(self) -> None:
        """Write the pending commits to the log if they are due."""
        ...

    def keep_confirmed(self, subscription: str, confirmed: Confirmed) -> None:
        """Store the newest confirmed position of a managed subscription durably."""
        ...


@dataclass
class _Writing:
    """A write in progress."""

    batch: PendingEvents
    result: Future[tuple[WriteResult, float]]
    """The result, and how long the write took in seconds."""
    since: float


class IngestJob:
    """Writes events from one subscription to one table.

    Not thread-safe, except for `stop` and `writing_seconds`.

    Args:
        subscription: An open subscription with ``ack="manual"``. The job does not close it. After
            its own ``with`` block has drained it, `settle` records what the drain committed.
        writer: Writer of the table.
        sidecars: Stores gaps, commits and confirmed positions; None to store nothing.
        last_confirmed: For a managed subscription: what is known about its position. A position
            that was lost is reported as a gap.
        batch_events: A batch is written once it has at least this many events. Responses are not
            split, so it may have more.
        batch_bytes: A batch is also written once its payloads have at least this many bytes.
        batch_seconds: A batch is also written this many seconds after its first event.
        max_events: Stop after exactly this many received events, including duplicates; None means
            no limit. Further events of the last response are not acked and will be redelivered.
        idle_timeout: Stop when the stream has been open for this many seconds without an event;
            None for no timeout.
        until_caught_up: Stop when a keepalive from the service shows that no events are left.
        on_progress: Called in the thread of `run` after each write, once its events are acked.
        on_acked: Called after *on_progress* with the last response of the write, and how many of
            its events the write included.
        on_health: Called in the thread of `run` with the subscription's health, about four times a
            second unless a write blocks the loop.
        clock: Returns the time of a monotonic clock, in seconds.
    """

    def __init__(
        self,
        subscription: Subscription,
        writer: Writer,
        *,
        sidecars: SidecarStore | None = None,
        last_confirmed: LastConfirmed | None = None,
        batch_events: int = DEFAULT_BATCH_EVENTS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        batch_seconds: float = DEFAULT_BATCH_SECONDS,
        max_events: int | None = None,
        idle_timeout: float | None = None,
        until_caught_up: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        on_acked: Callable[[EventBatch, int], None] | None = None,
        on_health: Callable[[Health], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscription = subscription
        self._writer = writer
        self._sidecars = sidecars
        self._last_confirmed = last_confirmed
        self._settings = IngestSettings(
            batch_events=batch_events,
            batch_bytes=batch_bytes,
            batch_seconds=batch_seconds,
            max_events=max_events,
            idle_timeout=idle_timeout,
            until_caught_up=until_caught_up,
        )
        self._on_progress = on_progress
        self._on_acked = on_acked
        self._on_health = on_health
        self._clock = clock
        self._stopping = False
        self._pending = PendingEvents()
        self._background: Background[tuple[WriteResult, float]] = Background(
            f"write {subscription.name}"
        )
        self._writing: _Writing | None = None
        self.kept_gaps: int = 0
        """Number of the subscription's gaps that are stored. May be read by any thread."""
        self._unconfirmed = Unconfirmed(subscription.name)
        self.progress: Progress = Progress()
        """Counts and position of this run, updated after each write."""

    def stop(self) -> None:
        """Make `run` stop soon, after writing and acking the events received so far.

        Safe in signal handlers.
        """
        self._stopping = True

    def writing_seconds(self) -> float | None:
        """Return the seconds since the current write started; None if no write is in progress.

        Thread-safe.
        """
        writing = self._writing
        return None if writing is None else self._clock() - writing.since

    def run(self) -> Summary:
        """Receive and write events until the job ends, and return a summary.

        Call it only once. No write is in progress when it returns.

        Raises:
            WriteError: A batch could not be written, and none of its events was acked; a sidecar
                could not be written; or Spark has exited.
            SfPubSubError: The subscription failed, or the writer rejected an event that cannot be
                decoded. Events that were already written are acked.
        """
        with self._background:
            try:
                return self._run()
            except SfPubSubError as error:
                self._finish_after(error)
                raise
            except BaseException:  # Ctrl-C, or an error in a callback
                self._let_end()
                raise

    def settle(self) -> None:
        """Record what was confirmed after `run` had returned, during the drain.

        Raises:
            WriteError: It could not be recorded.
        """
        health = self._subscription.health()
        self._note_confirmed(health)
        self._check_position(health, last=True)

    def _run(self) -> Summary:
        schedule = self._schedule = IngestSchedule(self._settings, self._clock())
        while True:
            if self._stopping:
                schedule.stop()
            action = schedule.next(
                self._clock(),
                is_written=self._writing is not None and self._writing.result.done(),
                flush_requested=self._writer.flush_requested,
            )
            match action:
                case Receive(timeout):
                    self._receive(timeout)
                case Look():
                    schedule.looked(self._take_stock(), self._clock())
                case Flush():
                    self._write()
                case Finish():
                    self._finish()
                case Check():
                    self._writer.check()
                    schedule.checked(self._clock())
                case End(ending):
                    return self._summary(ending)

    def _summary(self, ending: Ending) -> Summary:
        return Summary(self.progress, ending, self._take_stock().gaps)

    def _receive(self, timeout: float) -> None:
        try:
            batch = self._subscription.next_batch(timeout=timeout)
        except SubscriptionClosedError:  # another thread has closed it
            self._stopping = True
            return
        if batch is None:
            self._schedule.nothing_received()
            return
        count = self._schedule.room(len(batch))
        self._pending.add(batch, count)
        self._schedule.taken(count, self._pending.rows.bytes, self._clock())

    def _take_stock(self) -> Health:
        health = self._subscription.health()
        if health.process_time is not None:
            self._writer.record_time(health.process_time)
        if self._writing is None:  # a write uses the sidecars as well
            # If the stream has ended, the last gap may be the failure itself: see `_finish_after`.
            if not health.has_ended:
                self._keep_gaps(health.gaps)
            self._note_confirmed(health)
            self._check_position(health)
            if self._sidecars is not None:
                self._sidecars.flush_due()
        if self._on_health is not None:
            self._on_health(health)
        return health

    def _write(self) -> None:
        """Store new gaps, and start writing the collected events."""
        batch, self._pending = self._pending, PendingEvents()
        if self._sidecars is not None:
            health = self._subscription.health()
            # The last gap of a failed subscription may be the failure itself, which is handled
            # later; all collected events came before it.
            self._keep_gaps(health.gaps[:-1] if health.has_ended else health.gaps)
            self._note_confirmed(health)
            if self._on_health is not None:  # with the gaps that came before these events
                self._on_health(health)
        since = self._clock()

        def write() -> tuple[WriteResult, float]:
            return self._writer.write_collected(batch.rows), self._clock() - since

        self._writing = _Writing(batch, self._background.start(write), since)
        self._schedule.flushed()

    def _finish(self) -> None:
        """Wait for the current write, then ack its events and report progress.

        Events must never be acked before their write has succeeded, or they could be lost.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        result, seconds = writing.result.result()
        writing.batch.ack()
        self._wrote(result, writing.batch, seconds)

    def _finish_after(self, error: SfPubSubError) -> None:
        """After the job has failed with *error*, finish the current write and store new gaps.

        Further errors are only logged.
        """
        try:
            self._finish()
        except SfPubSubError as second:
            _log.warning("%s", second)
        self._keep_gaps_of_a_failure(error)

    def _let_end(self) -> None:
        """After an error that is not an `SfPubSubError`, let the current write end on its own.

        If that write fails as well, its error is logged. If it succeeds, its events are not acked.
        """

        def tell(written: Future[tuple[WriteResult, float]]) -> None:
            error = written.exception()
            if error is not None:
                _log.warning("%s", error)

        if self._writing is not None:
            self._writing.result.add_done_callback(tell)

    def _wrote(self, result: WriteResult, batch: PendingEvents, seconds: float) -> None:
        self.progress = self.progress.after(result, batch.position, seconds)
        if self._sidecars is not None:
            self._unconfirmed.add(self.progress.received, result, batch.position)
        if self._last_confirmed is not None:
            self._last_confirmed.acked(self.progress.received, batch.rows.newest_event)
        self._schedule.finished(self._clock())
        if self._on_progress is not None:
            self._on_progress(self.progress)
        if self._on_acked is not None:
            self._on_acked(*batch.last)

    # Sidecars.

    def _keep_gaps(self, gaps: Sequence[Gap]) -> None:
        new = gaps[self.kept_gaps :]
        if new and self._sidecars is not None:
            self._sidecars.keep_gaps(new)
        self.kept_gaps = len(gaps)

    def _keep_gaps_of_a_failure(self, error: SfPubSubError) -> None:
        """Store the gaps after which the job continued, but not the gap that stopped it."""
        stopped_by = error.gap if isinstance(error, ReplayIdRejectedError) else None
        gaps = [gap for gap in self._subscription.health().gaps if gap is not stopped_by]
        try:
            self._keep_gaps(gaps)
        except SfPubSubError as second:  # must not hide the first error
            _log.warning("%s", second)

    def _note_confirmed(self, health: Health) -> None:
        """Add the writes that became safe (see `Unconfirmed`) to the commit log, as one commit."""
        commit = self._unconfirmed.confirmed(health.confirmed, health.committed)
        if commit is not None and self._sidecars is not None:
            self._sidecars.keep_commit(commit)

    def _check_position(self, health: Health, *, last: bool = False) -> None:
        """Report a lost position, and store the time of the newest confirmed one if that is due.

        In this order: after a kill in between, the gap is found again.
        """
        known = self._last_confirmed
        if known is None:
            return
        gap = known.observe(health)
        if gap is not None:
            self._subscription.report_gap(gap)
            self._keep_gaps(self._subscription.health().gaps)
        due = known.due(last=last)
        if due is not None and self._sidecars is not None:
            self._sidecars.keep_confirmed(self._subscription.name, due)
            known.stored(due)
