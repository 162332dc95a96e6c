"""Compute how many events the application has room for, by count, bytes and acks.

A request asks for a number of events, but the size of an event can be anything from a few hundred
bytes to a megabyte. The room in bytes is therefore converted to a number of events, based on
observed sizes. If too many bytes arrive, the stream must be closed. Events still in flight are then
redelivered later, and count twice against the org's delivery allocation.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfpubsub.config import FIRST_CREDIT, LARGEST_EVENT, WINDOW, Limits
from sfpubsub.types import RawEvent


class ReceiveLimits:
    """Computes how many more events one subscription has room for.

    Not thread-safe; the driver serialises all calls.

    Args:
        limits: Memory limits.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size: float | None = None  # estimated size of an event, in bytes
        self.waiting_count: int = 0
        """Number of events received but not yet read by the application."""
        self.waiting_bytes: int = 0
        """Payload bytes of the events received but not yet read by the application."""

    def seen(self, events: Sequence[RawEvent], size: int) -> None:
        """Update the estimated event size with *events*, which have *size* bytes in total."""
        mean = size / len(events)
        if self._size is None or mean > self._size:
            self._size = mean  # adapt to larger sizes immediately, because they might not fit
        else:
            self._size += (mean - self._size) * min(1.0, len(events) / WINDOW)

    def forget_size(self) -> None:
        """Drop the estimated event size, so that only a few events are requested next."""
        self._size = None

    def delivered(self, count: int, size: int) -> None:
        """Count a batch of *count* events and *size* bytes as waiting to be read."""
        self.waiting_count += count
        self.waiting_bytes += size

    def taken(self, count: int, size: int) -> None:
        """Count a batch of *count* events and *size* bytes as read by the application."""
        self.waiting_count -= count
        self.waiting_bytes -= size

    def discarded(self) -> None:
        """Count all waiting batches as dropped."""
        self.waiting_count = self.waiting_bytes = 0

    def room(self, held: int) -> int:
        """Return how many events may be in flight now.

        Args:
            held: Number of events whose positions are kept, because they are not acked or not
                committed yet.
        """
        return self._room(self.waiting_count, self.waiting_bytes, held)

    def room_when_read(self, held: int) -> int:
        """Return what `room` will be after the application has read all waiting events.

        Args:
            held: See `room`.
        """
        return self._room(0, 0, held)

    def _room(self, count: int, size: int, held: int) -> int:
        limits = self._limits
        free = limits.max_bytes - size
        by_count = min(limits.max_pending_count - count, limits.max_unacked - held)
        if free <= 0 or by_count <= 0:
            return 0
        if self._size is None:
            by_bytes = min(FIRST_CREDIT, free // LARGEST_EVENT)
        else:
            by_bytes = int(free / max(1.0, self._size))
        # A single event larger than the limit must still be able to arrive.
        return min(WINDOW, by_count, by_bytes if size else max(1, by_bytes))

    @property
    def full(self) -> bool:
        """Whether the events waiting to be read have reached the byte limit."""
        return self.waiting_bytes >= self._limits.max_bytes

    @property
    def overfull(self) -> bool:
        """Whether the events waiting to be read have reached twice the byte limit.

        If so, the stream must be closed.
        """
        return self.waiting_bytes >= 2 * self._limits.max_bytes
