"""Where a plain subscription's position lives when the caller keeps it.

A store is touched only in the thread that iterates or acks, never by the stream's own thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from sfpubsub.types import ReplayId, StartPosition


class ReplayStore(ABC):
    """A durable position per topic.

    `set` is called after every event up to the position was acked, so that a new process which
    starts at `get` misses nothing and sees again at most what was not acked.
    """

    @abstractmethod
    def get(self, topic: str) -> StartPosition | None:
        """Return where a subscription to *topic* starts, or None for its default."""

    @abstractmethod
    def set(self, topic: str, replay_id: ReplayId) -> None:
        """Keep *replay_id* as the position of *topic*; durable when this returns."""
