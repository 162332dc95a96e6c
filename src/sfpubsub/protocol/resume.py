"""Track where the next stream of a plain subscription starts.

Received events are never dropped, so within a process a stream resumes after the last *received*
position, which may be that of a keepalive. Before the first position is received, only the start
position is known: with LATEST, events may be lost if the stream is lost, which is reported as a
gap. A rejected position is never sent again.
"""

from __future__ import annotations

from sfpubsub.types import Gap, ReplayId, ReplayPreset, StartPosition


class Resume:
    """The position of one plain subscription. Not thread-safe; the driver serialises all calls.

    Args:
        name: The topic that gaps are reported for.
        start: Where the first stream starts.
        fallback: Where to continue if a position is rejected; None ends the subscription.
    """

    def __init__(self, name: str, start: StartPosition, fallback: StartPosition | None) -> None:
        self._name = name
        self._start = start
        self._fallback = fallback
        self._last: ReplayId | None = None
        self._reported = False

    @property
    def last(self) -> ReplayId | None:
        """The last received position; None before the first."""
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
        """Record the loss of a stream.

        Returns:
            A gap if the stream started at LATEST and no position has been received, because events
            may have been lost; None otherwise. Only the first such loss is reported.
        """
        if self._last is not None or self._start.preset is not ReplayPreset.LATEST:
            return None
        if self._reported:
            return None
        self._reported = True
        return Gap("unanchored", self._name)

    def rejected(self, error_code: str | None, rpc_id: str | None) -> tuple[Gap, bool]:
        """Give up the rejected position, and continue from the fallback if possible.

        Returns:
            The gap to report, and whether the subscription continues.
        """
        refused = self.position.replay_id
        gap = Gap("rejected", self._name, refused, error_code=error_code, rpc_id=rpc_id)
        if self._fallback is None or refused in {None, self._fallback.replay_id}:
            return gap, False
        self._start, self._last = self._fallback, None
        self._reported = True  # events lost with LATEST from here on are part of this gap
        return gap, True
