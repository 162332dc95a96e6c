"""Compute the lag, in events, of a managed subscription at given times. For display only.

The lag is not sampled. It is computed from the publication times in the log and from the commit
times, which this module stores in memory.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_COMMITS = 2000
"""Number of commits stored for each subscription; at one per second they cover half an hour."""

COUNTED = 10_000
"""Maximum lag that is counted; a larger lag is shown as this number."""


@dataclass(frozen=True)
class Lag:
    """The lag of a subscription, in events, at the time `at` (seconds since the epoch)."""

    at: float
    events: int


class CommitHistory:
    """The newest 2,000 commits of each subscription, with their times. Thread-safe.

    Args:
        before: For each subscription id, the position that was committed when the process started;
            None if no position was committed.
    """

    def __init__(self, before: Mapping[str, int | None]) -> None:
        self._lock = threading.Lock()  # guards _commits
        self._commits: dict[str, deque[tuple[float, int]]] = {}
        for subscription_id, position in before.items():
            if position is not None:
                self.note(subscription_id, position, 0.0)

    def note(self, subscription_id: str, position: int, at: float) -> None:
        """Store a commit of *position* at the time *at* (seconds since the epoch)."""
        with self._lock:
            known = self._commits.setdefault(subscription_id, deque(maxlen=_COMMITS))
            known.append((at, position))

    def of(self, subscription_id: str) -> list[tuple[float, int]]:
        """Return the time (seconds since the epoch) and the position of each stored commit of a
        subscription, oldest first.
        """
        with self._lock:
            return list(self._commits.get(subscription_id, ()))


def series(
    published: Sequence[tuple[int, float]],
    commits: Sequence[tuple[float, int]],
    times: Sequence[float],
) -> list[Lag]:
    """Return the lag at each of the given times.

    Args:
        published: Position and publication time of each event of the topic, in order.
        commits: The commits, as returned by `CommitHistory.of`. Before the first of them, the
            committed position counts as 0.
        times: Times in seconds since the epoch, in order.
    """
    positions = [position for position, _ in published]
    ages = [at for _, at in published]
    moments = [at for at, _ in commits]
    found = []
    for at in times:
        index = bisect.bisect_right(moments, at) - 1
        position = commits[index][1] if index >= 0 else 0
        behind = bisect.bisect_right(ages, at) - bisect.bisect_right(positions, position)
        found.append(Lag(at, max(0, behind)))
    return found
