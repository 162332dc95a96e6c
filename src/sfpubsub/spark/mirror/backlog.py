"""Which events are in the raw table and not yet in the tables, and since when.

The stream adds a mark with each write, and the mirror removes marks as it applies rows, so nothing
has to be read to know the age of the oldest event. This module is pure: no I/O, no clock.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

# Maximum number of marks per event type: more than a mirror writes in two hours. Beyond it, the
# last mark stands for newer rows too, so that a mirror that is paused for days stays small.
_MOST = 1000


class _Mark(NamedTuple):
    seq: int
    at: float


class Backlog:
    """The rows of a raw table that are not applied yet, as marks by event type. Thread-safe."""

    def __init__(self) -> None:
        self._marks: dict[str, deque[_Mark]] = {}
        self._applied = -1
        self._lock = threading.Lock()

    def add(self, event_name: str, seq: int, at: float) -> None:
        """Record that rows were written.

        Args:
            event_name: Name of the event type, such as ``AccountChangeEvent``; empty if unknown.
            seq: ``ingest_seq`` of the last of the rows.
            at: When the first of the rows was received, in seconds since the epoch.
        """
        with self._lock:
            if seq <= self._applied:
                return  # applied before the writer reported it
            marks = self._marks.setdefault(event_name, deque())
            if len(marks) >= _MOST:
                marks[-1] = _Mark(max(seq, marks[-1].seq), min(at, marks[-1].at))
            else:
                marks.append(_Mark(seq, at))

    def applied(self, seq: int) -> None:
        """Record that all rows up to an ``ingest_seq`` are in the tables."""
        with self._lock:
            self._applied = max(seq, self._applied)
            for marks in self._marks.values():
                while marks and marks[0].seq <= seq:
                    marks.popleft()

    def oldest(self, event_name: str) -> float | None:
        """Return when the oldest row that is not applied was received, in seconds since the epoch.

        Rows whose event type is unknown count for every type.

        Args:
            event_name: Name of the event type.

        Returns:
            The time; None if all rows are applied.
        """
        with self._lock:
            found = [self._marks.get(name) for name in (event_name, "")]
            return min((marks[0].at for marks in found if marks), default=None)
