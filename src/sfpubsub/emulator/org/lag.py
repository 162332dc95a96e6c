"""How many events managed subscriptions are behind, now and before. Shown to people only.

The past is not sampled: it follows from when events were published, which the log knows, and from
when positions were committed, which is remembered here as long as the process lives.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_COMMITS = 2000
"""Commits remembered of each subscription; at one a second half an hour."""

COUNTED = 10_000
"""Most events behind that are counted; more are shown as that many."""


@dataclass(frozen=True)
class Lag:
    """How many events a subscription was behind at a time, in seconds since 1970 UTC."""

    at: float
    events: int


class CommitHistory:
    """When what was committed. Thread-safe.

    Args:
        before: Position by id of what was committed before the process began, if anything was.
    """

    def __init__(self, before: Mapping[str, int | None]) -> None:
        self._lock = threading.Lock()  # guards _commits
        self._commits: dict[str, deque[tuple[float, int]]] = {}
        for subscription_id, position in before.items():
            if position is not None:
                self.note(subscription_id, position, 0.0)

    def note(self, subscription_id: str, position: int, at: float) -> None:
        """A position was committed, at a time in seconds since 1970 UTC."""
        with self._lock:
            known = self._commits.setdefault(subscription_id, deque(maxlen=_COMMITS))
            known.append((at, position))

    def of(self, subscription_id: str) -> list[tuple[float, int]]:
        """Times and positions of a subscription's commits, the oldest first."""
        with self._lock:
            return list(self._commits.get(subscription_id, ()))


def series(
    published: Sequence[tuple[int, float]],
    commits: Sequence[tuple[float, int]],
    times: Sequence[float],
) -> list[Lag]:
    """The lag at each of some times.

    Args:
        published: Position and time of the topic's events, in order.
        commits: As of `CommitHistory.of`; before the first of them nothing was committed.
        times: In order.
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
