"""Track where the next stream of a plain subscription starts.

Received events are never dropped, so within a process a stream resumes after the last *received*
position, keepalives included. Before the first one, only the start position is known: for LATEST
that means that a drop may lose events, which is reported. A refused position is never sent again.
"""

from __future__ import annotations

from sfpubsub.types import Gap, ReplayId, ReplayPreset, StartPosition


class Resume:
    """The position of one plain subscription. Not thread-safe; the driver serialises.

    Args:
        name: The topic, for gaps.
        start: Where the first stream starts.
        fallback: Where to continue if a position is rejected; None stops.
    """

    def __init__(self, name: str, start: StartPosition, fallback: StartPosition | None) -> None:
        self._name = name
        self._start = start
        self._fallback = fallback
        self._last: ReplayId | None = None
        self._reported = False

    @property
    def last(self) -> ReplayId | None:
        """The last received position."""
        return self._last

    @property
    def position(self) -> StartPosition:
        """Position where the next stream starts."""
        return self._start if self._last is None else StartPosition.after(self._last)

    def begin_at(self, start: StartPosition) -> None:
        """Change where the first stream starts."""
        self._start = start

    def received(self, replay_id: ReplayId) -> None:
        """Record a received position."""
        self._last = replay_id

    def dropped(self) -> Gap | None:
        """Return the gap caused by the loss of a stream that started at LATEST, once."""
        if self._last is not None or self._start.preset is not ReplayPreset.LATEST:
            return None
        if self._reported:
            return None
        self._reported = True
        return Gap("unanchored", self._name)

    def rejected(self, error_code: str | None, rpc_id: str | None) -> tuple[Gap, bool]:
        """Give up the position.

        Returns:
            The gap, and whether there is another position to continue from.
        """
        refused = self.position.replay_id
        gap = Gap("rejected", self._name, refused, error_code=error_code, rpc_id=rpc_id)
        if self._fallback is None or refused in {None, self._fallback.replay_id}:
            return gap, False
        self._start, self._last = self._fallback, None
        self._reported = True  # what LATEST may miss from here on is part of this gap
        return gap, True
