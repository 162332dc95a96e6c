"""How long the connection has been away, how long to wait before the next try, and when to tell."""

from __future__ import annotations

from sfpubsub.errors import SfPubSubError, StreamUnavailableError
from sfpubsub.streaming.numbers import Pace


class Outage:
    """Counts failures since everything was well last.

    Args:
        pace: Times.
        patience: Seconds until the application is told, and told again; None for never.
    """

    def __init__(self, pace: Pace, patience: float | None) -> None:
        self._pace = pace
        self._patience = patience
        self._since: float | None = None
        self._last: SfPubSubError | None = None
        self.failures = 0

    def failed(
        self, error: SfPubSubError, now: float, chance: float, *, busy: bool = False
    ) -> float:
        """Note a failure; return the seconds to wait.

        Args:
            error: What failed.
            now: Steady seconds.
            chance: A random number from 0 to 1: half of the delay is left to it, so that many
                clients do not come back together.
            busy: Whether the server asked to be left alone.
        """
        self._since = now if self._since is None else self._since
        self._last = error
        self.failures += 1
        doubled = self._pace.backoff_initial * 2 ** min(self.failures - 1, 30)
        ceiling = self._pace.busy if busy else min(self._pace.backoff_max, doubled)
        return ceiling * (0.5 + chance / 2)

    def is_over(self) -> None:
        """Everything is well."""
        self._since = self._last = None
        self.failures = 0

    @property
    def tell_at(self) -> float | None:
        """When the application is to be told; None while there is nothing to tell."""
        if self._since is None or self._patience is None:
            return None
        return self._since + self._patience

    def told(self, now: float) -> StreamUnavailableError:
        """Return what to tell it, and count from *now* until the next time."""
        self._since = now
        error = StreamUnavailableError(
            f"no connection for {self._patience:g} s, and still trying: {self._last}"
        )
        error.__cause__ = self._last
        return error
