"""Read one topic of a streaming query: plan the end of each batch, and return the batch's events.

Invariant: ``_held`` starts with the first event after ``_base`` (the end of the last finished
batch), and contains every later event that was taken from ``_feed`` (the subscription).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sfpubsub.errors import ReplayIdRejectedError, SfPubSubError
from sfpubsub.spark.stream.feed import Feed, Horizon, ReceivedEvent, Schemas
from sfpubsub.spark.stream.offsets import Offset
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.partition import (
    GAP_EVENT,
    EventPartition,
    chunks,
    event_time_of,
    pack,
)
from sfpubsub.spark.stream.recovery import find
from sfpubsub.types import Gap, StartPosition

if TYPE_CHECKING:
    from sfpubsub.client.client import PubSubClient

_log = logging.getLogger("sfpubsub.spark")

# Seconds between checks that Spark is still alive, while a batch is read again.
_GLANCE = 0.5

# Seconds after which the position of a quiet topic is renewed: a batch without rows replaces the
# position with that of a keepalive. The service accepts a position for 72 h. Renewing it after a
# third of that time allows a query to be stopped for two days.
_RENEW_AFTER = 24 * 3600.0

# Longest silence of an open stream, in seconds. The service sends a message at least every 270 s,
# and the client abandons a silent stream after 300 s.
_LONGEST_SILENCE = 300.0


class Share(NamedTuple):
    """The limits of one topic's share of a batch."""

    events: int
    bytes: int
    """Maximum payload bytes; a single event may be larger."""


class _Plan(NamedTuple):
    """The batch whose end was last reported to Spark."""

    end: Offset
    size: int
    """Number of events of ``_held`` in the batch."""


class TopicReader:
    """Reads one topic. Not thread-safe.

    Args:
        topic: Path of the topic.
        options: Options of the query.
        schemas: Store with the schemas of the received events.
        connected: Returns the client, which it opens on the first call. This reader does not close
            it.
        share: Limits on the events and bytes that the stream buffers.
    """

    def __init__(
        self,
        topic: str,
        options: SourceOptions,
        schemas: Schemas,
        connected: Callable[[], PubSubClient],
        share: Share,
    ) -> None:
        self.topic = topic
        self.is_new = False
        """Whether the query started without a checkpoint."""
        self._options = options
        self._schemas = schemas
        self._connected = connected
        self._share = share
        self._feed: Feed | None = None
        self._base: Offset | None = None
        self._held: list[ReceivedEvent] = []
        self._plan: _Plan | None = None
        self._gaps: list[tuple[Gap, float]] = []  # for the next batch, each with its time
        self._planned_gaps = 0
        self._horizon: Horizon | None = None
        self._finished = False  # whether an availableNow query has read everything
        self._keeps_position = True

    @property
    def initial(self) -> Offset:
        """The offset at which a query without a checkpoint starts."""
        return Offset(self.topic, self._options.start_of(self.topic))

    def stop_at_now(self, keeps_position: bool) -> None:
        """Limit reading to events published before now.

        Args:
            keeps_position: Whether the end position is stored for another run. If not, there is no
                need to wait for a keepalive that renews the position of a quiet topic.
        """
        self._horizon = Horizon(self._connected(), self.topic)
        self._keeps_position = keeps_position

    @property
    def is_finished(self) -> bool:
        """Whether all events published before `stop_at_now` was called are in planned batches."""
        return self._finished

    def follow(self, start: Offset) -> None:
        """Continue at *start*, which is the end of the last finished batch."""
        self._move_to(start)

    def plan(self, share: Share, timeout: float) -> Offset:
        """Plan the next batch, and return its end. Call `follow` first.

        If there are no events, return the start of the batch. If a quiet topic's position has to be
        renewed, the returned offset also contains the position of the last keepalive.

        Args:
            share: Limits of this topic's share of the batch.
            timeout: Seconds to wait for the first event.

        Raises:
            ReplayIdRejectedError: The position is no longer retained, and option failOnDataLoss is
                true.
            SfPubSubError: The subscription has failed.
        """
        until_now = self._horizon is not None or self._finished
        count = self._count_until_now(share, timeout) if until_now else self._count(share, timeout)
        end = self._end(count) if count else self._renewed()
        if end is None:
            return self._begun
        self._plan = _Plan(end, count)
        self._planned_gaps = len(self._gaps) if count else 0
        return end

    def latest(self) -> dict[str, Any] | None:
        """Return metrics for the query's progress; None before the first batch.

        The service does not report where a topic ends. So the metrics include the number of events
        received so far (``seq``), whether a keepalive has shown that no more are available
        (``caught_up``), and the age of the last event when it arrived, in seconds (``delay_s``).
        """
        base, feed = self._base, self._feed
        if base is None or feed is None:
            return None
        waiting = len(self._held) + feed.pending
        planned = self._plan.size if self._plan is not None else 0
        found: dict[str, Any] = {
            "caught_up": feed.tip is not None,
            "pending": max(0, waiting - planned),
            "seq": base.seq + waiting,
            "topic": self.topic,
        }
        if self._held:
            last = self._held[-1]
            found["replay"] = last.raw.replay_id.hex()
            happened = event_time_of(last.raw, self._schemas.get(last.raw.schema_id))
            if happened is not None:
                found["delay_s"] = round(max(0.0, last.received_at - happened), 1)
        return dict(sorted(found.items()))

    def partitions(self, first: Offset, last: Offset) -> list[EventPartition]:
        """Return the events after *first*, up to and including *last*, in partitions.

        Raises:
            ReplayIdRejectedError: Some of the events are no longer retained, and option
                failOnDataLoss is true.
            SfPubSubError: The subscription has failed.
        """
        if last.seq == first.seq and not self._is_planned(first, last):
            return []  # a keepalive renewed the position: there are no events to return
        if not self._is_planned(first, last):
            self._recover(first, last)
        return list(self._partitions(last))

    def close(self) -> None:
        """Discard the streams. Call this after closing the client, which ends them."""
        self._feed = self._horizon = None

    # Finished batches, and where to continue.

    def _move_to(self, start: Offset) -> None:
        """Drop the finished batch's events. Open a stream at *start* if none is open there yet."""
        plan, self._plan = self._plan, None
        if plan is not None and start == plan.end:
            if self._horizon is not None:
                self._horizon.read(self._held[: plan.size])
            del self._held[: plan.size]
            del self._gaps[: self._planned_gaps]
            self._base = start
        self._planned_gaps = 0
        if self._feed is None or start != self._base:
            if start.floats and not self.is_new:
                _log.warning(
                    "the checkpoint of %s has no position yet, because neither an event nor a "
                    "keepalive had arrived: the query starts at latest again, and misses the "
                    "events published in the meantime",
                    start.topic,
                )
            self._open(start, start.resume)

    @property
    def _open_feed(self) -> Feed:
        if self._feed is None:
            raise AssertionError("the topic is not open: call follow() first")
        return self._feed

    @property
    def _begun(self) -> Offset:
        if self._base is None:
            raise AssertionError("the topic is not open: call follow() first")
        return self._base

    def _open(self, base: Offset, start: StartPosition) -> Feed:
        if self._feed is not None:
            self._feed.close()
        self._base, self._held = base, []
        self._feed = Feed(
            self._connected(),
            self.topic,
            start,
            self._schemas,
            max_events=self._share.events,
            max_bytes=self._share.bytes,
            go_on=not self._options.fail_on_data_loss,
        )
        return self._feed

    # The size of a batch.

    def _count(self, share: Share, timeout: float) -> int:
        """Take available events, waiting only for the first; return how many fit into the batch."""
        size = sum(len(event.raw.payload) for event in self._held)
        while len(self._held) < share.events and size < share.bytes:
            events = self._take(0.0 if self._held else timeout)
            if not events:
                break
            self._held += events
            size += sum(len(event.raw.payload) for event in events)
        return self._fitting(share)

    def _fitting(self, share: Share) -> int:
        size = 0
        for count, event in enumerate(self._held[: share.events]):
            size += len(event.raw.payload)
            if size > share.bytes and count:
                return count
        return min(share.events, len(self._held))

    def _take(self, timeout: float) -> list[ReceivedEvent]:
        try:
            events = self._open_feed.take(timeout)
        except SfPubSubError as error:
            if self._held:  # return these as a batch first; the next call raises the error again
                return []
            if isinstance(error, ReplayIdRejectedError):
                self._fail(str(error), error.gap, error)
            raise
        self._gaps += [(gap, time.time()) for gap in self._open_feed.gaps()]
        return events

    def _count_until_now(self, share: Share, timeout: float) -> int:
        """Like `_count`, but count only events published before `stop_at_now` was called.

        Set `_finished` once all of these events are in planned batches.
        """
        if self._finished:
            return 0
        count = self._count(share, timeout)
        if self._begun.floats and count:
            # All these events were published later, and the second stream may have started before
            # this one. Take them anyway: without an event, the next run would start at latest again
            # and never make progress.
            self._finished = True
            return count
        within = self._horizon.within(self._held) if self._horizon is not None else None
        if within is not None:
            self._finished = within == 0  # later events stay in `_held` and are never planned
            return min(count, within)
        if not count:
            self._finished = self._has_run_dry()
        return count

    def _has_run_dry(self) -> bool:
        feed = self._open_feed
        if feed.tip is not None:
            return True
        patience = self._options.idle_timeout
        if self._wants_renewal():  # a keepalive is worth waiting for
            patience = max(patience, _LONGEST_SILENCE)
        return feed.idle >= patience

    # The end of a batch.
    def _end(self, count: int) -> Offset:
        base, last = self._begun, self._held[count - 1]
        return Offset(
            topic=base.topic,
            position=StartPosition.after(last.raw.replay_id),
            seq=base.seq + count,
            at=int(last.received_at),
            first=None if base.is_anchored else self._held[0].raw.replay_id,
        )

    def _renewed(self) -> Offset | None:
        """Return the start of the next batch, with the last keepalive's position included.

        Return None if the position need not be renewed now, if events or gaps are pending, or if
        no keepalive has arrived since the last event.
        """
        # Do not skip a gap that no batch contains yet.
        if self._held or self._gaps or not self._wants_renewal():
            return None
        tip = self._open_feed.tip
        if tip is None:
            return None
        return replace(self._begun, keepalive=tip, at=int(time.time()), first=None)

    def _wants_renewal(self) -> bool:
        if not self._keeps_position:
            return False
        base = self._begun
        if not base.is_anchored:
            return base.floats  # EARLIEST needs no renewal: it loses nothing before the first event
        return base.at is None or time.time() - base.at > _RENEW_AFTER

    # Batches whose end was reported to Spark.

    def _is_planned(self, start: Offset, end: Offset) -> bool:
        return self._base == start and self._plan is not None and self._plan.end == end

    def _partitions(self, end: Offset) -> Iterator[EventPartition]:
        count = self._plan.size if self._plan is not None else 0
        gaps = tuple(self._gaps[: self._planned_gaps])
        for place, events in chunks(self._held[:count]):
            schemas = {}
            for schema_id in {raw.schema_id for raw, _ in events}:
                text = self._schemas.get(schema_id)
                if text is not None:
                    schemas[schema_id] = text
            # Count from the end, so that events keep their numbers if earlier ones were lost.
            first_seq = end.seq - count + place
            yield EventPartition(end.topic, first_seq, schemas, pack(events), gaps)
            gaps = ()
        if gaps:
            yield EventPartition(end.topic, end.seq, {}, pack([]), gaps)

    # A batch that an earlier process planned but did not finish.

    def _recover(self, start: Offset, end: Offset) -> None:
        """Reread a batch that an earlier process planned, and make it this reader's planned batch.

        Raises:
            ReplayIdRejectedError: Some of its events are lost, and option failOnDataLoss is true.
        """
        _log.info("rereading the unfinished batch that ends at %s", end.json())
        moved = end.first is not None or not start.is_anchored
        feed = self._open(start, StartPosition.earliest() if moved else start.resume)
        found = find(
            start,
            end,
            feed=feed,
            take=lambda: self._take(_GLANCE),
            refused=lambda: bool(self._gaps),
            horizon=lambda: Horizon(self._connected(), start.topic),
            patience=_LONGEST_SILENCE,
        )
        if found is None or not (found.whole or self._gaps):
            self._gaps.append((self._missing(start, end), time.time()))
        if found is None:
            feed.close()
            self._feed = None  # `_move_to` opens the next stream at the end of this batch
        else:
            self._held = found.events + found.after
        self._plan = _Plan(end, len(found.events) if found else 0)
        self._planned_gaps = len(self._gaps)

    def _missing(self, start: Offset, end: Offset) -> Gap:
        last = end.position.replay_id
        gap = Gap("missing", start.topic, start.resume.replay_id, last)
        if self._options.fail_on_data_loss:
            self._fail(f"events up to {last.hex() if last else last} are no longer retained", gap)
        _log.warning("%s", gap)
        return gap

    def _fail(self, reason: str, gap: Gap | None, cause: SfPubSubError | None = None) -> NoReturn:
        raise ReplayIdRejectedError(
            f"the query cannot resume at the checkpoint's position on {self.topic}: {reason}. "
            f"Start with a new checkpoint and option startingOffsets, or set failOnDataLoss to "
            f"false: then the query continues with the oldest retained event, and a row with "
            f"event_name {GAP_EVENT} marks the gap",
            gap=gap,
            error_code=None if cause is None else cause.error_code,
            rpc_id=None if cause is None else cause.rpc_id,
        ) from cause
