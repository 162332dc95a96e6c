"""Collect the events of one write, response by response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from sfpubsub.client.batch import EventBatch
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.types import ReplayId


class PendingEvents:
    """Events collected for one write. Not thread-safe.

    Events are converted to rows as they are added. Only the last response is kept.
    """

    def __init__(self) -> None:
        self.rows = EventRows()
        self._last: tuple[EventBatch, int] | None = None
        self._acks: list[Callable[[], None]] = []

    def add(self, batch: EventBatch, count: int) -> None:
        """Add the first *count* events of a response.

        Args:
            batch: The response.
            count: Number of events, at least 1.
        """
        self.rows.extend(islice(batch, count), batch.received_at)
        self.rows.position = batch.raw_events[count - 1].replay_id
        self._last = batch, count
        self._acks.append(partial(batch.ack_range, batch.first_seq, batch.first_seq + count - 1))

    def ack(self) -> None:
        """Ack all events that were added."""
        # In reverse, so that the acked prefix, and with it the position, moves only once.
        for ack in reversed(self._acks):
            ack()

    @property
    def last(self) -> tuple[EventBatch, int]:
        """The last response, and how many of its events were added. Call `add` first."""
        assert self._last is not None  # noqa: S101  # only used once there are events
        return self._last

    @property
    def position(self) -> ReplayId:
        """Position of the last event that was added. Call `add` first."""
        batch, count = self.last
        return batch.raw_events[count - 1].replay_id
