"""Credit: how many more events to ask for.

A `Window` never sends; it answers how much to request now, or 0. The service adds every request to
what is outstanding and clamps the sum at 100 (Salesforce documentation, flow control). What it may
ask for is passed in as *room*: how many events may be on their way, by number, bytes and acks.

1. *Opening*: ask for what there is room for, or for 1 when there is none, since a subscription's
   first request must ask for something.
2. *Receiving*: what came is owed back. It is returned when 50 or more are owed, or half of what
   there is room for once everything that waits is read. So a busy stream costs one request for
   every 50 events, also where the application is slower than the service and each event it reads
   makes room for one. When it has read everything and nothing is outstanding, all of the room is
   owed, so a stream never stalls.
3. *Held* (no room): nothing is returned. But a stream with nothing pending is closed by the service
   after 60 s, so 1 is asked for within 50 s: the *reserve*.
4. *Disagreement*: if the service says that nothing is pending while we count credit, one of us is
   wrong, or our request was on its way. The reserve asks for 1 here too, and the answer to it is
   believed: without that, credit that the service lost would be missed for ever.
"""

from __future__ import annotations

from sfpubsub.config import RETURN_CREDIT_AT, WINDOW


class Window:
    """The credit of one stream at a time. Not thread-safe; the driver serialises."""

    def __init__(self) -> None:
        self.outstanding: int = 0
        """Events that we may still receive."""
        self._dry = False  # the service's last word was "nothing pending", and nothing went since
        self._probing = False  # a reserve was sent last, and no response came since

    def open(self, room: int) -> int:
        """Return what the first request of a new stream asks for."""
        self._dry = self._probing = False
        self.outstanding = max(1, min(WINDOW, room))
        return self.outstanding

    def received(self, count: int, pending: int | None) -> None:
        """Count *count* events.

        Args:
            count: Events in the response.
            pending: The service's figure; None where it is not to be trusted (commit answers).
        """
        # A service that sends more than was asked for costs memory, and refusing would not help.
        self.outstanding = max(0, self.outstanding - count)
        if pending is None:
            return
        if self._probing:
            # The reserve may have been on its way when this was sent, hence one more.
            self.outstanding = min(self.outstanding, pending + 1)
            self._probing = False
        self._dry = pending == 0

    def grant(self, room: int, room_when_read: int) -> int:
        """Return how many events to request now, or 0.

        Args:
            room: How many events may be on their way now.
            room_when_read: How many may be once everything that waits is read.
        """
        owed = min(WINDOW, room) - self.outstanding
        if owed < max(1, min(RETURN_CREDIT_AT, room_when_read // 2)):
            return 0
        # With this request in flight too, the next figure does not answer the reserve alone.
        self._probing = False
        return self._send(owed)

    @property
    def ample(self) -> bool:
        """Whether so much is outstanding that `grant` answers 0, whatever the room."""
        # More than half of what room there can be: neither 50 nor half of the room is owed.
        return self.outstanding > WINDOW - RETURN_CREDIT_AT

    @property
    def starving(self) -> bool:
        """Whether the stream would be closed by the service if nothing is requested."""
        return self.outstanding == 0 or self._dry

    def reserve(self) -> int:
        """Return the credit that keeps a starving stream open, or 0 when it is not starving."""
        if not self.starving:
            return 0
        self._probing = self.outstanding > 0
        # With a full window the request still has to go; the service clamps it.
        self.outstanding = min(self.outstanding, WINDOW - 1)
        return self._send(1)

    def _send(self, count: int) -> int:
        self.outstanding += count
        self._dry = False
        return count
