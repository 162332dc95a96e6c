"""Helpers for the tests of monitoring: a manual clock, and a subscription whose health
the test sets.
"""

from __future__ import annotations

import dataclasses

from sfpubsub.monitoring.observation import NEW
from sfpubsub.types import Health

HOUR = 3600.0
NOW = 1_800_000_000.0


class Clock:
    """A clock whose time, in seconds since 1970 UTC, is set by the test."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Subscription:
    """A subscription whose health is set by the test."""

    def __init__(self, **values) -> None:
        self.said = dataclasses.replace(NEW, state="streaming", outstanding=100, **values)

    def health(self) -> Health:
        return self.said

    def becomes(self, **changes) -> None:
        self.said = dataclasses.replace(self.said, **changes)
