"""Delays between retries: exponential, capped, with full jitter."""

from __future__ import annotations


class Backoff:
    """Computes increasing delays between retries, starting over after `reset`.

    Args:
        initial: Upper bound of the first delay, in seconds.
        maximum: Upper bound at which the delays stop doubling, in seconds.
    """

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial = initial
        self._maximum = maximum
        self._ceiling = initial

    def next(self, jitter: float = 1.0) -> float:
        """Return the next delay in seconds.

        Args:
            jitter: A uniform random number in [0, 1). The delay is this fraction of the upper
                bound, so that clients which failed together do not retry together; 1.0 for the
                bound itself, where nothing is shared.
        """
        delay = jitter * self._ceiling
        self._ceiling = min(self._maximum, 2 * self._ceiling)
        return delay

    def reset(self) -> None:
        """Return to the initial delay, after a success."""
        self._ceiling = self._initial
