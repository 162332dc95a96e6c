"""Track which acked writes are safe: those whose position was confirmed by the service or stored.

This module only counts events: it never blocks, and never compares positions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.types import ReplayId


@dataclass(frozen=True)
class Commit:
    """Consecutive writes up to a position that was confirmed by the service or stored."""

    subscription: str
    """The topic, or the managed subscription's name or id."""
    replay_id: str
    """Position after these writes, in hexadecimal."""
    received: int
    """Number of events in these writes: `rows`, `duplicates`, `set_aside` and `conflicts`."""
    rows: int
    duplicates: int
    set_aside: int
    conflicts: int
    batches: int
    """Number of batches added to the raw table; a write of duplicates alone adds none."""
    first_seq: int | None
    """``ingest_seq`` of the first row; None if there are no rows."""
    last_seq: int | None


@dataclass(frozen=True)
class _Written:
    """An acked write whose position is not yet known to be confirmed by the service or stored."""

    acked: int
    """Total number of events acked up to and including this write."""
    result: WriteResult
    position: ReplayId


class Unconfirmed:
    """The acked writes of one subscription that are not yet safe, in order. Not thread-safe.

    A write is safe once its position has been confirmed by the service or stored.

    Args:
        subscription: The topic, or the managed subscription's name or id.
    """

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._writes: deque[_Written] = deque()

    def add(self, acked: int, result: WriteResult, position: ReplayId) -> None:
        """Add a write that was just acked.

        Args:
            acked: Total number of events acked so far, including this write.
            result: The writer's result.
            position: Position of the write's last event.
        """
        self._writes.append(_Written(acked, result, position))

    def confirmed(self, events: int, committed: ReplayId | None) -> Commit | None:
        """Combine the writes that became safe (see the class) since the last call into one commit.

        Return None if no write became safe.

        Args:
            events: Total number of acked events whose position is safe (`Health.confirmed`).
            committed: Last position that the service confirmed, which becomes the commit's
                position. If None, as for a topic, the position of the last safe write is used.
        """
        safe: list[_Written] = []
        while self._writes and self._writes[0].acked <= events:
            safe.append(self._writes.popleft())
        if not safe:
            return None
        results = [written.result for written in safe]
        with_rows = [result for result in results if result.first_seq is not None]
        last = with_rows[-1] if with_rows else None
        return Commit(
            subscription=self._subscription,
            replay_id=(committed or safe[-1].position).hex(),
            received=sum(result.received for result in results),
            rows=sum(result.rows for result in results),
            duplicates=sum(result.duplicates for result in results),
            set_aside=sum(result.set_aside for result in results),
            batches=sum(result.batch_id is not None for result in results),
            first_seq=with_rows[0].first_seq if with_rows else None,
            conflicts=sum(result.conflicts for result in results),
            last_seq=None if last is None else (last.first_seq or 0) + last.rows - 1,
        )
