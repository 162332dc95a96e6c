"""Whether a mirror's stream has continued after its gaps.

A reread that a gap requests must begin after the last event that was lost, so it is requested only
once the stream has a durable position behind the gap. Until then the mirror is not settled. This
module is pure: no I/O, no clock, no threads.
"""

from __future__ import annotations

from sfpubsub.types import Health, ReplayId

# Reasons of gaps that are found while the stream already has its position after them.
_ON_THE_STREAM = frozenset({"expired", "rights", "deselected"})


class OpenGap:
    """Follows the gaps of one subscription. Not thread-safe."""

    def __init__(self) -> None:
        self._lost = 0  # number of gaps seen that the stream had to continue after
        self._at: ReplayId | None = None  # the durable position when the last of them was seen
        self.is_awaited: bool = False
        """Whether the stream lost its position, and its next one is not durable yet."""

    def observe(self, health: Health, position: ReplayId | None) -> bool:
        """Note new gaps after which the stream has to continue; return whether there are any.

        Call this before anything that came after a gap is made durable.

        Args:
            health: The subscription's health.
            position: The durable position after which another process would continue.
        """
        lost = sum(gap.reason not in _ON_THE_STREAM for gap in health.gaps)
        if lost <= self._lost:
            return False
        self._lost, self._at, self.is_awaited = lost, position, True
        return True

    def is_open(self, health: Health, position: ReplayId | None, kept: int) -> bool:
        """Return whether the stream is not known to have continued after all its gaps.

        Args:
            health: The subscription's health.
            position: The durable position after which another process would continue.
            kept: Number of the subscription's gaps that are stored.
        """
        if self.observe(health, position):
            return True
        if self._lost:
            is_behind = position is not None and position != self._at
        # Gaps of an earlier process are resolved once the service accepts the table's position.
        else:
            is_behind = health.last_position is not None
        if not is_behind or kept < len(health.gaps):
            return True
        self.is_awaited = False
        return False
