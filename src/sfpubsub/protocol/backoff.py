"""How long to wait before trying again: exponential, capped, with full jitter."""

from __future__ import annotations


class Backoff:
    """Gives one delay after another, until it is reset by a sign of success.

    Args:
        initial: Ceiling of the first delay, in seconds.
        maximum: Ceiling that the doubling stops at, in seconds.
    """

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial = initial
        self._maximum = maximum
        self._ceiling = initial

    def next(self, jitter: float) -> float:
        """Return the next delay in seconds.

        Args:
            jitter: A uniform random number in [0, 1). The delay is that part of the ceiling, so
                that clients which failed together do not come back together.
        """
        delay = jitter * self._ceiling
        self._ceiling = min(self._maximum, 2 * self._ceiling)
        return delay

    def reset(self) -> None:
        """Start over: a response came."""
        self._ceiling = self._initial
