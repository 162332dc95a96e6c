"""What one write is made of, as it comes in response by response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from sfpubsub.client.batch import EventBatch
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.types import ReplayId


class Gathered:
    """Events that are, or will be, one write. Not thread-safe.

    Of the responses themselves only the last one is kept; see `EventRows`.
    """

    def __init__(self) -> None:
        self.rows = EventRows()
        self.opened = 0.0
        """When the first events came."""
        self._last: tuple[EventBatch, int] | None = None
        self._acks: list[Callable[[], None]] = []

    def add(self, batch: EventBatch, count: int, now: float) -> None:
        """Add the first *count* events of a response."""
        if not self._acks:
            self.opened = now
        self.rows.extend(islice(batch, count), batch.received_at)
        self.rows.position = batch.raw_events[count - 1].replay_id
        self._last = batch, count
        self._acks.append(partial(batch.ack_range, batch.first_seq, batch.first_seq + count - 1))

    def ack(self) -> None:
        """Ack them all."""
        # Backwards: the acked prefix, and with it the position, moves once and to the end.
        for ack in reversed(self._acks):
            ack()

    @property
    def last(self) -> tuple[EventBatch, int]:
        """The last response, and how many of its events there are."""
        assert self._last is not None  # noqa: S101  # asked once there are events
        return self._last

    @property
    def position(self) -> ReplayId:
        """Of the last event."""
        batch, count = self.last
        return batch.raw_events[count - 1].replay_id
