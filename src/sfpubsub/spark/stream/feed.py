"""Receive a topic's events for the streaming source, and detect the topic's current end.

The client handles retries, sessions, flow control and timeouts, so an error raised here is final.
This module is used only in the source's process, which Spark starts next to the driver. Not
thread-safe.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from sfpubsub.errors import StreamError
from sfpubsub.stores.schema_store import SchemaStore
from sfpubsub.types import Gap, RawEvent, ReplayId, StartPosition

if TYPE_CHECKING:  # the client loads grpc, which executors do not need
    from sfpubsub.client.client import PubSubClient
    from sfpubsub.client.subscription import Subscription

# Seconds without a connection after which the query fails. The client alone would retry forever,
# and a query that cannot reach the service would look like one whose topic is quiet. Longer than a
# restart of the service, and short compared to the 72 h of retention.
CONNECTION_TIMEOUT = 300.0

# Number of replay ids remembered to detect that the first event of the second stream was already
# read. Enough for the events that arrive during the seconds that it takes to open that stream.
_PASSED = 100_000


class ReceivedEvent(NamedTuple):
    """An event, and the time at which it was received."""

    raw: RawEvent
    received_at: float
    """Seconds since the epoch."""


class Schemas(SchemaStore):
    """The schemas of the events received so far, as JSON text, for decoding on executors.

    Args:
        beyond: Store that outlives this process; None keeps the schemas only in memory.
    """

    def __init__(self, beyond: SchemaStore | None = None) -> None:
        self._beyond = beyond
        self._schemas: dict[str, str] = {}

    def get(self, schema_id: str) -> str | None:
        """Return the schema as JSON text, or None if it is not stored."""
        text = self._schemas.get(schema_id)
        if text is None and self._beyond is not None:
            text = self._beyond.get(schema_id)
            if text is not None:
                self._schemas[schema_id] = text
        return text

    def put(self, schema_id: str, schema_json: str) -> None:
        """Store a schema in memory, and in the persistent store if there is one."""
        if self._beyond is not None:
            self._beyond.put(schema_id, schema_json)
        self.note(schema_id, schema_json)

    def note(self, schema_id: str, schema_json: str) -> None:
        """Store a schema only in memory."""
        self._schemas[schema_id] = schema_json


class Feed:
    """A subscription to one topic. Each call of `take` returns the events of one response.

    Args:
        client: The client; `close` leaves it open.
        topic: Path of the topic.
        start: Position at which to start.
        schemas: Gets the schemas of the received events that the client may not store.
        max_events: Maximum number of events received ahead of `take`.
        max_bytes: Maximum payload bytes received ahead of `take`.
        go_on: Whether to continue at EARLIEST if the position is rejected, and report a gap in
            `gaps`. If not, `take` raises an error.
    """

    def __init__(
        self,
        client: PubSubClient,
        topic: str,
        start: StartPosition,
        schemas: Schemas,
        *,
        max_events: int,
        max_bytes: int,
        go_on: bool,
    ) -> None:
        self._quiet_since = time.monotonic()
        self._gaps_seen = 0
        self._schemas = schemas
        self._parent = os.getppid()
        self._subscription: Subscription = client.subscribe(
            topic,
            replay=start,
            replay_fallback=StartPosition.earliest() if go_on else None,
            max_pending_count=max_events,
            max_bytes=max_bytes,
            connection_timeout=CONNECTION_TIMEOUT,
        )

    def take(self, timeout: float) -> list[ReceivedEvent]:
        """Return the events of the next response; empty if none arrives within *timeout* seconds.

        Raises:
            SfPubSubError: The subscription has failed; everything received before was already
                returned.
            StreamError: The Spark driver has exited.
        """
        if os.getppid() != self._parent:
            # The driver was killed, so nobody reads the result: end now, even during a long
            # recovery.
            raise StreamError("the Spark driver of this source has exited: restart the query")
        batch = self._subscription.next_batch(timeout)
        if batch is None:
            health = self._subscription.health()
            # The time during which events wait for their schemas does not count as idle either.
            if not health.can_receive or health.pending_count:
                self._quiet_since = time.monotonic()
            return []
        self._quiet_since = time.monotonic()
        for codec in batch.codecs.values():
            if codec.is_doubtful:
                self._schemas.note(codec.schema_id, codec.schema_json)
        return [ReceivedEvent(raw, batch.received_at) for raw in batch.raw_events]

    @property
    def idle(self) -> float:
        """How long the stream has been able to receive events without receiving one, in seconds."""
        return time.monotonic() - self._quiet_since

    @property
    def pending(self) -> int:
        """Number of events received but not yet returned by `take`."""
        return self._subscription.health().pending_count

    def gaps(self) -> list[Gap]:
        """Return the gaps since the last call. Call it after `take`.

        Gaps with reason ``unanchored`` are left out: a query that starts at ``latest`` has no
        position to lose before its first event.
        """
        gaps = self._subscription.health().gaps[self._gaps_seen :]
        self._gaps_seen += len(gaps)
        return [gap for gap in gaps if gap.reason != "unanchored"]

    @property
    def tip(self) -> ReplayId | None:
        """Position that the service reported in its last keepalive.

        None if anything was received after it, or while an event or a gap is pending.
        """
        health = self._subscription.health()
        if not health.caught_up or health.pending_count or len(health.gaps) > self._gaps_seen:
            return None
        return health.last_position

    def close(self) -> None:
        """Close the subscription. The client stays open."""
        self._subscription.abort()


class Horizon:
    """Detects when all events published before its creation have been read.

    This works even if events keep arriving. A second stream is opened at LATEST, so its first event
    was published later. Reading is complete once the stream that is being read receives the same
    event. If nothing more is published, the second stream receives no event. In that case, reading
    is complete once the stream that is being read is idle or receives a keepalive, which the caller
    has to check.

    Args:
        client: The client; `close` leaves it open.
        topic: Path of the topic.
    """

    def __init__(self, client: PubSubClient, topic: str) -> None:
        self._subscription: Subscription | None = client.subscribe(
            topic, replay=StartPosition.latest(), max_pending_count=1
        )
        self._first: ReplayId | None = None
        self._seen: deque[ReplayId] = deque(maxlen=_PASSED)
        self._passed = False

    def within(self, events: list[ReceivedEvent]) -> int | None:
        """Return how many of *events* were published before this object was created.

        Args:
            events: The next events to read.

        Returns:
            The number of events before the first one that was published later; 0 if that one was
            read earlier (see `read`), None if it was not found.

        Raises:
            SfPubSubError: The stream opened at LATEST has failed.
        """
        self._ask_for_first()
        if self._passed:
            return 0
        if self._first is not None:
            for index, event in enumerate(events):
                if event.raw.replay_id == self._first:
                    return index
        return None

    def read(self, events: list[ReceivedEvent]) -> None:
        """Record that *events* have been read.

        One of them may turn out to be the first event of the stream that was opened at LATEST. Once
        that first event is known, this method does nothing.
        """
        if self._first is None:
            self._seen.extend(event.raw.replay_id for event in events)

    def close(self) -> None:
        """Close the stream that was opened at LATEST. The client stays open."""
        if self._subscription is not None:
            self._subscription.abort()
            self._subscription = None

    def _ask_for_first(self) -> None:
        if self._subscription is None:
            return
        batch = self._subscription.next_batch(0.0)
        if batch is not None:
            self._first = batch.raw_events[0].replay_id
            self._passed = self._first in self._seen
            self._seen.clear()
            self.close()
