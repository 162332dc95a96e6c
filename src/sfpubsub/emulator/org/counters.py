"""Counters for display and tests: publications, deliveries, redeliveries and commits.

Deliveries and commits are counted from the start of the process, publications over the lifetime of
the data directory. An event that a gRPC stream sends is also counted as redelivered if a gRPC
stream of the same topic or managed subscription has already sent the event at this position since
the process started. For the Streaming API, only deliveries are counted. The counters have no effect
on the emulator's behaviour.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence

from sfpubsub.emulator.org.usage import Usage


class Count:
    """The counts of one topic or one managed subscription.

    `sent` is thread-safe. Some callers also change counts directly, without a lock, so a count can
    be slightly too low.

    Attributes:
        published: Number of events published (topics only).
        delivered: Number of events sent, including redeliveries.
        redelivered: Number of events sent that had been sent before.
        commits_accepted: Number of accepted commits (managed subscriptions only).
        commits_refused: Number of commits that were answered with an error.
        keepalives: Number of empty responses sent.
    """

    def __init__(self) -> None:
        self.published = 0
        self.delivered: int = 0
        self.redelivered: int = 0
        self.commits_accepted = 0
        self.commits_refused = 0
        self.keepalives = 0
        self._lock = threading.Lock()  # guards the sent ranges: several streams may share a topic
        # Disjoint sorted ranges (start, end] of positions sent. A stream sends every event of its
        # topic between two positions, so ranges are equivalent to a set of positions.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def sent(self, after: int, positions: Sequence[int]) -> None:
        """Count the events in one response.

        Args:
            after: The stream's position before the response.
            positions: Positions of the events, in order: all events of the topic that follow
                *after*, up to the last one sent.
        """
        with self._lock:
            self.delivered += len(positions)
            self.redelivered += self._sent_before(positions)
            self._add(after, positions[-1])

    def _sent_before(self, positions: Sequence[int]) -> int:
        """Return how many of *positions* (in ascending order) have already been sent. Only the sent
        ranges that overlap them are examined, usually one or none.
        """
        count = 0
        index = bisect.bisect_left(self._ends, positions[0])
        while index < len(self._ends) and self._starts[index] < positions[-1]:
            end = bisect.bisect_right(positions, self._ends[index])
            count += end - bisect.bisect_right(positions, self._starts[index])
            index += 1
        return count

    def _add(self, start: int, end: int) -> None:
        # Merge all ranges that touch (start, end].
        low = bisect.bisect_left(self._ends, start)
        high = bisect.bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]


class Counters:
    """Counts the publications, deliveries and commits of one emulator. Thread-safe.

    Attributes:
        usage: The deliveries, by schema and time.
    """

    def __init__(self) -> None:
        self.usage: Usage = Usage()
        self._lock = threading.Lock()  # guards the creation of counts
        self._topics: dict[str, Count] = {}
        self._managed: dict[str, Count] = {}

    def of_topic(self, name: str) -> Count:
        """Return the counts of a topic: its published events, and its deliveries, excluding those
        of managed subscriptions.
        """
        with self._lock:
            return self._topics.setdefault(name, Count())

    def of_managed(self, subscription_id: str) -> Count:
        """Return the counts of a managed subscription: its deliveries and its commits."""
        with self._lock:
            return self._managed.setdefault(subscription_id, Count())
