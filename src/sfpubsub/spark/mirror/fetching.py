"""Run reads in a background thread, and queue their pieces for merging.

A read of the org consists of pieces, which are stored in the read log (log.py). Pieces are returned
in order, and only after they are durable in the log. The thread reads ahead until `_AHEAD` pieces
are waiting, and then pauses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.mirror.log import Marker

# Maximum number of pieces read ahead of the merge. Merging several pieces together saves about a
# second for each merge avoided, but events have to wait during a merge, which takes a few seconds.
_AHEAD = 8

# Seconds between checks of the stop flag while the queue is full.
_POLL = 0.25

# Seconds to wait on exit for a read in progress, which checks the stop flag between requests. Data
# that it reads after that time is read again.
_PATIENCE = 30.0


class StoppedError(Exception):
    """Raised to end a read because the job is stopping. The next process resumes the read."""


@dataclass(frozen=True)
class Ended:
    """How a read ended. *error* is None if the read succeeded or was stopped."""

    entity: str
    error: BaseException | None


class Fetching:
    """Runs at most one read at a time in a background thread. A context manager; not thread-safe.

    Args:
        stopping: Event that stops the reads. Set by the caller, or on leaving the ``with`` block.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._background: Background[None] = Background("read the org", _PATIENCE)
        self._ready: deque[tuple[str, Marker]] = deque()  # the background thread appends to it
        self._under_way: tuple[str, Future[None]] | None = None
        self._last: dict[str, Marker] = {}
        self._lock = threading.Lock()  # guards changes of `_ready`
        self._abandoned = threading.Event()

    def __enter__(self) -> Fetching:
        self._background.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._background.__exit__(None, None, None)

    def check_stop(self) -> None:
        """Raise StoppedError if the job is stopping, or the running read was abandoned."""
        if self._stopping.is_set() or self._abandoned.is_set():
            raise StoppedError

    @property
    def is_idle(self) -> bool:
        """Whether no read is running and no piece is waiting to be merged."""
        return self._under_way is None and not self._ready

    @property
    def is_busy(self) -> bool:
        """Whether a read is running."""
        return self._under_way is not None

    @property
    def has_pieces(self) -> bool:
        """Whether pieces are waiting to be merged."""
        return bool(self._ready)

    def has(self, entity: str) -> bool:
        """Return whether pieces of an object are waiting to be merged."""
        return any(name == entity for name, _ in list(self._ready))

    def reads(self, entity: str) -> bool:
        """Return whether an object's read is running, or its pieces are waiting to be merged."""
        running = self._under_way is not None and self._under_way[0] == entity
        return running or self.has(entity)

    def unfinished(self, entity: str) -> Marker | None:
        """Return the newest marker of the object's read if it was interrupted; otherwise None."""
        last = self._last.get(entity)
        return last if last is not None and not last.is_last else None

    def give_up(self, entity: str) -> None:
        """Forget an object's interrupted read, which cannot be resumed."""
        self._last.pop(entity, None)

    def abandon(self, entity: str) -> bool:
        """Stop an object's read, and forget its pieces.

        Returns:
            Whether that is done. Otherwise the read is still ending: call this again after `ended`
            has returned it.
        """
        if self._under_way is not None and self._under_way[0] == entity:
            self._abandoned.set()
            return False
        self.give_up(entity)
        with self._lock:
            kept = [each for each in self._ready if each[0] != entity]
            self._ready.clear()
            self._ready.extend(kept)
        return True

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
                self._ready.append((entity, marker))

    def start(self, entity: str, read: Callable[[], Iterator[Marker]]) -> None:
        """Start a read in the background thread.

        Args:
            entity: The object.
            read: Returns an iterator over the markers of the read's pieces. It must yield a marker
                only once its piece is durable.
        """
        if self._under_way is not None:
            raise AssertionError("another read is already running")

        def work() -> None:
            for marker in read():
                self._last[entity] = marker
                with self._lock:
                    self._ready.append((entity, marker))
                while len(self._ready) >= _AHEAD:
                    self.check_stop()
                    self._stopping.wait(_POLL)

        self._abandoned.clear()
        self._under_way = entity, self._background.start(work)

    def ended(self) -> Ended | None:
        """Return how the read ended, if it has ended since the previous call; otherwise None."""
        if self._under_way is None or not self._under_way[1].done():
            return None
        (entity, future), self._under_way = self._under_way, None
        error = future.exception()
        return Ended(entity, None if isinstance(error, StoppedError) else error)

    def put_back(self, entity: str, markers: Sequence[Marker]) -> None:
        """Make the pieces that `take` has returned wait again, as the first ones."""
        self._ready.extendleft((entity, marker) for marker in reversed(markers))

    def take(self) -> tuple[str, list[Marker]] | None:
        """Remove the waiting pieces of one read; return its object and the markers of the pieces.

        All waiting pieces of the read are returned, because merging several pieces costs little
        more than merging one. Return None if no pieces are waiting.
        """
        with self._lock:
            if not self._ready:
                return None
            entity, first = self._ready.popleft()
            found = [first]
            while self._ready:
                name, marker = self._ready[0]
                if name != entity or marker.read != first.read:
                    break
                found.append(marker)
                self._ready.popleft()
        return entity, found
