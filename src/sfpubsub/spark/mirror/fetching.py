"""Run the reads of a mirror in a background thread, one at a time.

The thread reads ahead until `_AHEAD` pieces are waiting to be merged, and then pauses. It decides
nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

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


class Fetching:
    """Runs at most one read at a time in a background thread. A context manager; not thread-safe.

    Args:
        stopping: Event that stops the reads. Set by the caller, or on leaving the ``with`` block.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._background: Background[None] = Background("read the org", _PATIENCE)
        self._stored: SimpleQueue[Marker] = SimpleQueue()
        self._running: tuple[str, Future[None]] | None = None
        self._is_given_up = threading.Event()
        self.unmerged: int = 0
        """Number of pieces that `stored` has returned, and that are not merged yet."""

    def __enter__(self) -> Fetching:
        self._background.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._background.__exit__(None, None, None)

    @property
    def is_busy(self) -> bool:
        """Whether a read is running."""
        return self._running is not None

    def start(self, entity: str, read: Callable[[], Iterator[Marker]]) -> None:
        """Start a read in the background thread.

        Args:
            entity: The object.
            read: Returns an iterator over the markers of the read's pieces. It must yield a marker
                only once its piece is durable.
        """
        if self._running is not None:
            raise AssertionError("another read is already running")

        def work() -> None:
            for marker in read():
                self._stored.put(marker)
                while self._stored.qsize() + self.unmerged >= _AHEAD:
                    self.check_stop()
                    self._stopping.wait(_POLL)

        self._is_given_up.clear()
        self._running = entity, self._background.start(work)

    def give_up(self) -> None:
        """Stop the read that is running soon. `ended` returns its end."""
        self._is_given_up.set()

    def check_stop(self) -> None:
        """Raise StoppedError if the job is stopping, or the running read was given up."""
        if self._stopping.is_set() or self._is_given_up.is_set():
            raise StoppedError

    def news(self) -> tuple[str, list[Marker], Future[None] | None] | None:
        """Return what has happened to the running read since the last call; None without a read.

        Returns:
            Its object; the markers of its new pieces; and its result, if it has ended.
        """
        if self._running is None:
            return None
        (entity, future), markers = self._running, []
        has_ended = future.done()  # looked at before the pieces, so that none is missed
        while not self._stored.empty():
            markers.append(self._stored.get())
        self._running = None if has_ended else self._running
        return entity, markers, future if has_ended else None
