"""The read that is running, and the pieces of reads that wait to be merged.

Pieces arrive in order, and only after they are durable in the read log (log.py). This module is
pure: no I/O, no clock, no threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from sfpubsub.spark.mirror.log import Marker


class Pieces:
    """The pieces of all objects' reads that are not merged yet. Not thread-safe."""

    def __init__(self) -> None:
        self.running: str | None = None
        """The object whose read is running; None if no read is running."""
        self._waiting: deque[tuple[str, Marker]] = deque()
        self._last: dict[str, Marker] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def stored(self, entity: str, marker: Marker) -> None:
        """Add a piece of the object's read, which is durable by now."""
        self._last[entity] = marker
        self._waiting.append((entity, marker))

    def left(self, entity: str, markers: Iterable[Marker], merged: int) -> None:
        """Restore the state of an object's reads from the log that an earlier process left.

        Args:
            entity: The object.
            markers: Markers of all pieces in the object's log, in order.
            merged: Number of the newest piece that is already merged.
        """
        for marker in markers:
            self._last[entity] = marker
            if marker.piece > merged:
                self._waiting.append((entity, marker))

    def has(self, entity: str) -> bool:
        """Return whether pieces of an object are waiting to be merged."""
        return any(name == entity for name, _ in self._waiting)

    def unfinished(self, entity: str) -> Marker | None:
        """Return the newest marker of the object's read if it was interrupted; otherwise None."""
        last = self._last.get(entity)
        return last if last is not None and not last.is_last else None

    def give_up(self, entity: str) -> None:
        """Forget an object's interrupted read, which cannot be resumed."""
        self._last.pop(entity, None)

    def drop(self, entity: str) -> None:
        """Forget an object's read and its pieces."""
        self.give_up(entity)
        self._waiting = deque(each for each in self._waiting if each[0] != entity)

    def first(self) -> tuple[str, list[Marker]]:
        """Return the object whose pieces have waited longest, and the pieces of that read.

        All waiting pieces of the read are returned, because merging several pieces costs little
        more than merging one. There must be a piece.
        """
        entity, first = self._waiting[0]
        found = []
        for name, marker in self._waiting:
            if name != entity or marker.read != first.read:
                break
            found.append(marker)
        return entity, found

    def merged(self, count: int) -> None:
        """Remove the first *count* pieces."""
        for _ in range(count):
            self._waiting.popleft()
