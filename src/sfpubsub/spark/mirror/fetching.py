"""Reads under way, in a thread of their own, and the pieces that wait to be merged.

Hands over what is durable in the log, in order, and keeps the thread from running far ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.mirror.log import Marker

# Pieces that are read ahead of the merge: what a kill leaves to be merged, and no more on the disk.
_AHEAD = 4

# Seconds between checks of whether to stop, while there is no room.
_POLL = 0.25

# Seconds that the end waits for a read under way, which looks up between requests: what is read
# after that is read again.
_PATIENCE = 30.0


class StoppedError(Exception):
    """The job ends, and the read with it. The next process continues with it."""


@dataclass(frozen=True)
class Ended:
    """How a read ended."""

    entity: str
    error: BaseException | None


class Fetching:
    """At most one read at a time. For one thread; a context manager.

    Args:
        stopping: Set when the job ends.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._background: Background[None] = Background("read the org", _PATIENCE)
        self._ready: deque[tuple[str, Marker]] = deque()  # appended to by the other thread
        self._under_way: tuple[str, Future[None]] | None = None
        self._last: dict[str, Marker] = {}

    def __enter__(self) -> Fetching:
        self._background.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._background.__exit__(None, None, None)

    def check_stop(self) -> None:
        """Raise if the job ends."""
        if self._stopping.is_set():
            raise StoppedError

    @property
    def is_idle(self) -> bool:
        """Whether no read is under way, and no piece waits."""
        return self._under_way is None and not self._ready

    @property
    def is_busy(self) -> bool:
        """Whether a read is under way."""
        return self._under_way is not None

    def has(self, entity: str) -> bool:
        """Whether pieces of an object's read wait."""
        return any(name == entity for name, _ in self._ready)

    def unfinished(self, entity: str) -> Marker | None:
        """Return the newest marker of a read that was broken off, which can be resumed."""
        last = self._last.get(entity)
        return last if last is not None and not last.is_last else None

    def give_up(self, entity: str) -> None:
        """Forget a read that was broken off, as it cannot be resumed."""
        self._last.pop(entity, None)

    def left(self, entity: str, markers: Iterable[Marker], merged: int) -> None:
        """Take what a process has left that died.

        Args:
            entity: The object.
            markers: Of all pieces in its log, in order.
            merged: Number of the newest piece that was merged and need not be looked at.
        """
        for marker in markers:
            self._last[entity] = marker
            if marker.piece > merged:
                self._ready.append((entity, marker))

    def start(self, entity: str, read: Callable[[], Iterator[Marker]]) -> None:
        """Do a read, which yields the marker of each piece once it is durable."""
        if self._under_way is not None:
            raise AssertionError("one read at a time")

        def work() -> None:
            for marker in read():
                self._last[entity] = marker
                self._ready.append((entity, marker))
                while len(self._ready) >= _AHEAD:
                    self.check_stop()
                    self._stopping.wait(_POLL)

        self._under_way = entity, self._background.start(work)

    def ended(self) -> Ended | None:
        """Return how the read ended, once; None while it is under way, or if no read was begun."""
        if self._under_way is None or not self._under_way[1].done():
            return None
        (entity, future), self._under_way = self._under_way, None
        error = future.exception()
        return Ended(entity, None if isinstance(error, StoppedError) else error)

    def take(self) -> tuple[str, list[Marker]] | None:
        """Return the next pieces of one read that wait, with its object.

        Several at once if several wait: to merge them together costs little more than to merge one.
        """
        if not self._ready:
            return None
        entity, first = self._ready.popleft()
        found = [first]
        while self._ready and self._ready[0][0] == entity and self._ready[0][1].read == first.read:
            found.append(self._ready.popleft()[1])
        return entity, found
