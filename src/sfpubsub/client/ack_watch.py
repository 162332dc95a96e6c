"""Decides when to warn that an application gets events but acks none.

No I/O, no clock, no threads. It is easy to forget acks with ``ack="manual"``: the events arrive,
and much later the subscription stalls, or a restart delivers everything again.
"""

from __future__ import annotations

# How many times longer each wait for the next warning is, so that a long run does not fill the log.
_SLOWER = 4


class AckWatch:
    """The time since events were handed out without any ack. Not thread-safe, except for `acked`.

    Args:
        after: Seconds without an ack after which to warn.
    """

    def __init__(self, after: float) -> None:
        self._after = after
        self._wait = after
        self._since: float | None = None  # when the first event after the last ack was handed out

    def handed_out(self, now: float) -> None:
        """Record that events were handed out which the application must ack."""
        if self._since is None:
            self._since = now

    def acked(self) -> None:
        """Record that an event was acked."""
        self._since, self._wait = None, self._after

    @property
    def due(self) -> float | None:
        """When `warns` may return a time; None if no event waits for an ack."""
        since = self._since
        return None if since is None else since + self._wait

    def warns(self, now: float) -> float | None:
        """Return for how many seconds nothing was acked, if this is to be said now."""
        since = self._since
        if since is None or now < since + self._wait:
            return None
        self._wait *= _SLOWER
        return now - since
