"""Summarise the state of a command's subscriptions in one line of text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from sfpubsub.monitoring.observation import Facts
from sfpubsub.monitoring.text import counted, span

# Seconds over which the rate is averaged: long enough to be steady, short enough to be current.
_RATE_OVER = 10.0


class Summary:
    """Summarises subscriptions as text: events, rate, lag, last commit, reconnects and gaps.

    Args:
        facts: Returns the current state of each subscription.
        clock: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self, facts: Callable[[], Sequence[Facts]], clock: Callable[[], float] = time.time
    ) -> None:
        self._facts = facts
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def __call__(self) -> str:
        """Return the summary, such as ``5 events, 2/s``; empty if no subscription is open yet."""
        now, all_facts = self._clock(), self._facts()
        if not all_facts:
            self._seen = deque([(now, 0)])  # the rate counts from here on
            return ""
        events = sum(facts.health.delivered for facts in all_facts)
        parts = [counted(events, "event"), f"{self._rate(now, events):,.0f}/s"]
        lags = [lag for facts in all_facts if (lag := facts.lag(now)) is not None]
        if lags:
            parts.append(f"{span(max(lags))} behind")
        commits = [facts.last_commit_at for facts in all_facts if facts.last_commit_at is not None]
        if commits:
            parts.append(f"committed {span(max(0.0, now - max(commits)))} ago")
        reconnects = sum(facts.health.reconnects for facts in all_facts)
        if reconnects:
            parts.append(counted(reconnects, "reconnect"))
        gaps = sum(len(facts.health.gaps) for facts in all_facts)
        if gaps:
            parts.append(counted(gaps, "gap"))
        return ", ".join(parts)

    def _rate(self, now: float, events: int) -> float:
        self._seen.append((now, events))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _RATE_OVER:
            self._seen.popleft()
        since, before = self._seen[0]
        return (events - before) / (now - since) if now > since else 0.0
