"""Credit: the number of events to request.

A `Window` never sends anything; it computes how many events to request now, possibly 0. The service
adds every request to the outstanding events and caps the sum at 100 (Salesforce documentation, flow
control). The caller passes in the *room*: how many events may be in flight, limited by number,
bytes and acks.

1. *Opening*: request as many events as there is room for; at least 1, because the first request of
   a stream must request something.
2. *Receiving*: the room, but at most 100, minus the outstanding events is the *owed* credit. It is
   requested once it reaches 50 events. If the application will have room for fewer than 100 events
   even after reading all waiting ones, half of that room is enough. So a busy stream costs one
   request per 50 events, even if the application is slower than the service and makes room for one
   event at a time. Once the application has read everything and nothing is outstanding, the whole
   room is owed, so a stream never stalls.
3. *No room*: nothing is requested. But the service closes a stream that has had nothing pending for
   60 s, so 1 event is requested within 50 s: the *reserve*.
4. *Disagreement*: if the service reports that nothing is pending while we count events as
   outstanding, either one side is wrong, or our request was still in flight. The reserve requests 1
   event here too, and the number in its response is adopted. Otherwise, credit that the service has
   lost would never be requested again.
"""

from __future__ import annotations

from sfpubsub.config import RETURN_CREDIT_AT, WINDOW


class Window:
    """Computes how many events to request on the current stream.

    Not thread-safe; the driver serialises all calls.
    """

    def __init__(self) -> None:
        self.outstanding: int = 0
        """Number of requested events that we may still receive."""
        # Whether the service last reported nothing as pending, and nothing was requested since.
        self._dry = False
        self._probing = False  # whether the reserve was sent last, and has not been answered yet

    def open(self, room: int) -> int:
        """Reset the credit for a new stream; return the number of events for its first request."""
        self._dry = self._probing = False
        self.outstanding = max(1, min(WINDOW, room))
        return self.outstanding

    def received(self, count: int, pending: int | None) -> None:
        """Update the credit after a response.

        Args:
            count: Number of events in the response.
            pending: How many requested events the service has yet to send, according to the
                response; None for a commit response, whose number is not reliable.
        """
        # A service that sends more than was requested costs memory; refusing it would not help.
        self.outstanding = max(0, self.outstanding - count)
        if pending is None:
            return
        if self._probing:
            # Plus one, because the reserve may have been in flight when the response was sent.
            self.outstanding = min(self.outstanding, pending + 1)
            self._probing = False
        self._dry = pending == 0

    def grant(self, room: int, room_when_read: int) -> int:
        """Return how many events to request now (possibly 0), and count them as outstanding.

        Args:
            room: Number of events that may be in flight now.
            room_when_read: Number of events that may be in flight after the application has read
                all waiting ones.
        """
        owed = min(WINDOW, room) - self.outstanding
        if owed < max(1, min(RETURN_CREDIT_AT, room_when_read // 2)):
            return 0
        # With this request in flight as well, the next response does not answer the reserve alone.
        self._probing = False
        return self._send(owed)

    @property
    def ample(self) -> bool:
        """Whether so many events are outstanding that `grant` returns 0 for any room."""
        # Then `owed` in `grant` is less than RETURN_CREDIT_AT, and less than half of any room.
        return self.outstanding > WINDOW - RETURN_CREDIT_AT

    @property
    def starving(self) -> bool:
        """Whether the service will close the stream unless events are requested soon."""
        return self.outstanding == 0 or self._dry

    def reserve(self) -> int:
        """Return how many events to request to keep the stream open: 1 if `starving`, else 0."""
        if not self.starving:
            return 0
        self._probing = self.outstanding > 0
        # Even with a full window, the request must be sent; the service caps the sum.
        self.outstanding = min(self.outstanding, WINDOW - 1)
        return self._send(1)

    def _send(self, count: int) -> int:
        self.outstanding += count
        self._dry = False
        return count
