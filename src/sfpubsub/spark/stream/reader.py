"""The streaming reader: says how far a batch goes, and hands out what lies in it.

Spark keeps one instance alive for a query, in a Python process beside the driver, and calls it in
this order (seen, PySpark 4.2 and 4.3)::

    initialOffset()                twice, at the first start; again after a crash in the first batch
    partitions(start, end)         first of all, if the batch before the crash was not finished
    latestOffset(start, limit)     start: the end of the last batch that was; its events are done
    partitions(start, end)         perhaps more than once
    commit(end)                    late, and never for the last batch: nothing hangs on it

`read` runs on executors, with a copy that was never opened. An exception ends the query, so what
reaches Spark is what the client could not mend.

Invariant: ``_held`` begins with the first event after ``_base``, and holds every event from there
on that was taken from ``_feed``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sfpubsub.errors import ReplayIdRejectedError, SfPubSubError
from sfpubsub.spark.stream.feed import MAX_HELD_BYTES, Feed, Horizon, ReceivedEvent, Schemas
from sfpubsub.spark.stream.offsets import Offset
from sfpubsub.spark.stream.options import SourceOptions
from sfpubsub.spark.stream.partition import GAP_EVENT, EventPartition, chunks, pack
from sfpubsub.spark.stream.recovery import find
from sfpubsub.stores.schema_store import FileSchemaStore
from sfpubsub.types import Gap, StartPosition

if TYPE_CHECKING:
    import pyarrow as pa

    from sfpubsub.client.client import PubSubClient

_log = logging.getLogger("sfpubsub.spark")

# Seconds that `latestOffset` waits for a first event. Spark asks again 10 ms after an answer that
# there is nothing, so this is what an idle query costs; it is not a delay, an event ends it.
_PATIENCE = 0.1

# Seconds between two looks at whether Spark lives, while a call of it is answered.
_GLANCE = 0.5

# Seconds after which the position of a quiet topic is renewed by that of a keepalive, which makes a
# batch without rows. The service forgets positions after 72 h; a third leaves room for a query that
# is stopped for two days.
_RENEW_AFTER = 24 * 3600.0

# Seconds. The service sends something at least every 270 s, and the client gives a silent stream up
# after 300 s.
_LONGEST_SILENCE = 300.0


class _Plan(NamedTuple):
    """The batch that Spark was told of."""

    end: Offset
    size: int
    """Events of ``_held`` in it."""


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one topic. Not thread-safe; pickled it is only its options.

    Args:
        options: What the query asked for. Nothing is opened before the first call.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        kept = options.schema_store
        self._schemas = Schemas(FileSchemaStore(kept) if kept else None)
        self._client: PubSubClient | None = None
        self._feed: Feed | None = None
        self._base: Offset | None = None
        self._held: list[ReceivedEvent] = []
        self._plan: _Plan | None = None
        self._gaps: list[tuple[Gap, float]] = []  # of the next batch, with the time
        self._planned_gaps = 0
        self._is_new = False  # whether there was no checkpoint
        self._until_now = False
        self._horizon: Horizon | None = None
        self._finished = False  # everything that an availableNow query is to read has been read

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]  # a copy begins like a new one

    # Spark's calls.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        """Return where a query without a checkpoint begins."""
        self._is_new = True
        return Offset(self._options.topic, self._options.start).json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many events a batch may have."""
        return ReadMaxRows(self._options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read only what was published before now, then end."""
        self._until_now = True
        self._horizon = Horizon(self._connected(), self._options.topic)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or *start* if there is nothing.

        Args:
            start: The end of the last batch that is done.
            limit: Of the batch.

        Raises:
            ReplayIdRejectedError: The position is not kept any more.
            SfPubSubError: The subscription has failed.
        """
        self._follow(Offset.parse(start, self._options.topic))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_events
        count = self._count_available(most) if self._until_now else self._count(most, _PATIENCE)
        end = self._end(count) if count else self._renewed()
        if end is None:
            return start
        self._plan = _Plan(end, count)
        self._planned_gaps = len(self._gaps) if count else 0
        return end.json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the events after *start* up to *end*, in pieces.

        Raises:
            ReplayIdRejectedError: They are not to be had any more.
            SfPubSubError: The subscription has failed.
        """
        first = Offset.parse(start, self._options.topic)
        last = Offset.parse(end, self._options.topic)
        if last.seq == first.seq and not self._is_planned(first, last):
            return []  # the position was renewed by a keepalive: there is nothing in between
        if not self._is_planned(first, last):
            self._recover(first, last)
        return list(self._partitions(last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode a partition. Runs on executors."""
        return cast("EventPartition", partition).rows()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` learns earlier, and of the last batch too, what is done."""

    def stop(self) -> None:
        """Close the connection. Not called when a query is stopped: Spark ends the process."""
        if self._client is not None:
            self._client.close()
        self._client = self._feed = self._horizon = None

    # What is done, and where to read on.

    def _follow(self, start: Offset) -> None:
        """Drop what is done; open a stream if there is none that goes on at *start*."""
        plan, self._plan = self._plan, None
        if plan is not None and start == plan.end:
            if self._horizon is not None:
                self._horizon.read(self._held[: plan.size])
            del self._held[: plan.size]
            del self._gaps[: self._planned_gaps]
            self._base = start
        self._planned_gaps = 0
        if self._feed is None or start != self._base:
            if start.floats and not self._is_new:
                _log.warning(
                    "the checkpoint of %s has no position yet, since no event and no keepalive "
                    "came: the query begins at latest again, without what came meanwhile",
                    start.topic,
                )
            self._open(start, start.resume)

    @property
    def _open_feed(self) -> Feed:
        if self._feed is None:
            raise AssertionError("used before it was opened")
        return self._feed

    @property
    def _begun(self) -> Offset:
        if self._base is None:
            raise AssertionError("used before it was opened")
        return self._base

    def _open(self, base: Offset, start: StartPosition) -> Feed:
        if self._feed is not None:
            self._feed.close()
        self._base, self._held = base, []
        self._feed = Feed(
            self._connected(),
            self._options.topic,
            start,
            max_events=self._options.max_events,
            go_on=not self._options.fail_on_data_loss,
        )
        return self._feed

    def _connected(self) -> PubSubClient:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> PubSubClient:
        from sfpubsub.client.client import PubSubClient  # loads grpc

        places = {"config": self._options.config_file, "profile": self._options.profile}
        return PubSubClient.from_env(places, schema_store=self._schemas)

    # How far a batch goes.

    def _count(self, most: int, timeout: float) -> int:
        """Take what is there, waiting for a first event only; return how much of it fits."""
        size = sum(len(event.raw.payload) for event in self._held)
        while len(self._held) < most and size < MAX_HELD_BYTES:
            events = self._take(0.0 if self._held else timeout)
            if not events:
                break
            self._held += events
            size += sum(len(event.raw.payload) for event in events)
        return self._fitting(most)

    def _fitting(self, most: int) -> int:
        size = 0
        for count, event in enumerate(self._held[:most]):
            size += len(event.raw.payload)
            if size > MAX_HELD_BYTES and count:
                return count
        return min(most, len(self._held))

    def _take(self, timeout: float) -> list[ReceivedEvent]:
        try:
            events = self._open_feed.take(timeout)
        except SfPubSubError as error:
            if self._held:  # a batch of their own; the next call raises the same again
                return []
            if isinstance(error, ReplayIdRejectedError):
                self._fail(str(error), error.gap, error)
            raise
        self._gaps += [(gap, time.time()) for gap in self._open_feed.gaps()]
        return events

    def _count_available(self, most: int) -> int:
        """As `_count`, but wait until something comes or everything was read."""
        while not self._finished:
            count = self._count(most, _GLANCE)
            if self._begun.floats and count:
                # All of it came later, and the second stream may have begun before this one. But
                # without an event the next run would begin at latest again, and never get on.
                self._finished = True
                return count
            within = self._horizon.within(self._held) if self._horizon is not None else None
            if within is not None:
                self._finished = within == 0  # what lies behind stays held and is never planned
                count = min(count, within)
            elif not count:
                self._finished = self._has_run_dry()
            if count:
                return count
        return 0

    def _has_run_dry(self) -> bool:
        feed = self._open_feed
        if feed.tip is not None:
            return True
        patience = self._options.idle_timeout
        if self._wants_renewal():  # a keepalive is worth waiting for
            patience = max(patience, _LONGEST_SILENCE)
        return feed.idle >= patience

    # Ends.

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
        """Return the base with the position of a keepalive, if it needs one and there is one."""
        # A gap that was not handed out yet must not be passed.
        if self._held or self._gaps or not self._wants_renewal():
            return None
        tip = self._open_feed.tip
        if tip is None:
            return None
        return replace(self._begun, keepalive=tip, at=int(time.time()), first=None)

    def _wants_renewal(self) -> bool:
        base = self._begun
        if not base.is_anchored:
            return base.floats  # EARLIEST stays where it is until there is a first event
        return base.at is None or time.time() - base.at > _RENEW_AFTER

    # Batches that Spark knows of.

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
            # Counted from the end: where the beginning is lost, the others keep their numbers.
            first_seq = end.seq - count + place
            yield EventPartition(end.topic, first_seq, schemas, pack(events), gaps)
            gaps = ()
        if gaps:
            yield EventPartition(end.topic, end.seq, {}, pack([]), gaps)

    # A batch that was journaled by an earlier process, and not finished.

    def _recover(self, start: Offset, end: Offset) -> None:
        """Make a batch that an earlier process journaled the one that is planned.

        Raises:
            ReplayIdRejectedError: Some of it is gone, and data loss is a failure.
        """
        _log.info("reading the batch up to %s again", end.json())
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
            self._feed = None  # the next batch begins at the end of this one, wherever that is
        else:
            self._held = found.events + found.after
        self._plan = _Plan(end, len(found.events) if found else 0)
        self._planned_gaps = len(self._gaps)

    def _missing(self, start: Offset, end: Offset) -> Gap:
        last = end.position.replay_id
        gap = Gap("missing", start.topic, start.resume.replay_id, last)
        if self._options.fail_on_data_loss:
            self._fail(f"events up to {last.hex() if last else last} are not kept any more", gap)
        _log.warning("%s", gap)
        return gap

    def _fail(self, reason: str, gap: Gap | None, cause: SfPubSubError | None = None) -> NoReturn:
        raise ReplayIdRejectedError(
            f"the checkpoint's position on {self._options.topic} cannot be resumed: {reason}. "
            f"Begin with a new checkpoint and option startingOffsets, or set failOnDataLoss to "
            f"false: then the query goes on with the oldest event that is kept, and a row with "
            f"event_name {GAP_EVENT} marks what is missing",
            gap=gap,
            error_code=None if cause is None else cause.error_code,
            rpc_id=None if cause is None else cause.rpc_id,
        ) from cause
