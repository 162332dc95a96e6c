"""Process received messages: events go to the application, positions to the ledger.

`Intake` numbers events in order of arrival and drops redeliveries.
"""

from __future__ import annotations

from sfpubsub.protocol.commands import Command, Deliver, Wake
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.receive_limits import ReceiveLimits
from sfpubsub.protocol.resume import Resume
from sfpubsub.types import RawEvent, ReplayId


class Intake:
    """The receiving side of one subscription. Not thread-safe; the driver serialises all calls.

    Args:
        receive_limits: Tracks received and waiting events.
        ledger: Records positions; None if acks are not tracked.
        resume: Position of a plain subscription; None for a managed one.
    """

    def __init__(
        self, receive_limits: ReceiveLimits, ledger: Ledger | None, resume: Resume | None
    ) -> None:
        self._receive_limits = receive_limits
        self._ledger = ledger
        self._resume = resume
        self._next_seq = 1
        self.delivered: int = 0
        self.redelivered: int = 0
        self.last_position: ReplayId | None = None
        self.caught_up: bool = False
        """Whether the newest message of this stream was a keepalive."""
        self.redelivering: bool = True
        """Whether this stream may still redeliver events, which precede all new events."""

    def new_stream(self) -> None:
        """Reset the state that belongs to the previous stream."""
        self.caught_up = False
        self.redelivering = True

    def taken(self, count: int, size: int) -> None:
        """Count a batch as read by the application."""
        self._receive_limits.taken(count, size)
        self.delivered += count

    def discarded(self) -> None:
        """Count all unread events as dropped."""
        self._receive_limits.discarded()

    @property
    def confirmed(self) -> int:
        """Number of acked events whose position was committed, or passed to the replay store."""
        return 0 if self._ledger is None else self._ledger.confirmed_events

    @property
    def unacked(self) -> int:
        """Number of events read by the application and not acked."""
        return (
            0 if self._ledger is None else self._ledger.unacked - self._receive_limits.waiting_count
        )

    @property
    def stuck(self) -> int:
        """Number of events read by the application, from the first unacked one on.

        None of them can be committed, even if it is acked, until the first one is acked.
        """
        return (
            0
            if self._ledger is None
            else self._ledger.open_events - self._receive_limits.waiting_count
        )

    @property
    def room(self) -> int:
        """Number of events that may be in flight now."""
        return self._receive_limits.room(self._held)

    @property
    def room_when_read(self) -> int:
        """Number of events that may be in flight once the application has read all waiting ones."""
        return self._receive_limits.room_when_read(self._held)

    @property
    def _held(self) -> int:
        if self._ledger is None:
            return 0
        # Acked positions of a plain subscription do not stay: the newest one is stored at once.
        return self._ledger.held if self._resume is None else self._ledger.open_events

    def take_in(self, response: Response) -> list[Command]:
        """Deliver the new events of *response* and record every position."""
        if not response.events:
            return self._take_keepalive(response.keepalive)
        self._note(response.events[-1].replay_id, caught_up=False)
        new, size = response.events, _size(response.events)
        self._receive_limits.seen(new, size)
        if self._ledger is not None:
            new = self._ledger.add(new, self._next_seq)
            again = len(response.events) - len(new)
            if again:
                self.redelivered += again
                size = _size(new)
        if not new:
            return []
        self.redelivering = False
        return [self._deliver(new, size, response.rpc_id)]

    def _take_keepalive(self, position: ReplayId | None) -> list[Command]:
        if position is None:
            return []
        self._note(position, caught_up=True)
        self.redelivering = False
        if self._ledger is None:
            return []
        self._ledger.add_keepalive(position)
        return [] if self._resume is None else [Wake()]

    def _note(self, position: ReplayId, *, caught_up: bool) -> None:
        self.last_position = position
        self.caught_up = caught_up
        if self._resume is not None:
            self._resume.received(position)

    def recognise(self, response: Response) -> None:
        """While draining, record redeliveries, and drop all events of *response*.

        Redeliveries are recorded only until the stream's first new event or keepalive.
        """
        for event in response.events:
            if self._ledger is None or not self.redelivering or not self._ledger.is_known(event):
                self.redelivering = False
                return
            self.redelivered += 1
        if response.keepalive is not None:
            self.redelivering = False

    def _deliver(self, events: tuple[RawEvent, ...], size: int, rpc_id: str) -> Deliver:
        first_seq = self._next_seq
        self._next_seq += len(events)
        self._receive_limits.delivered(len(events), size)
        return Deliver(events, first_seq, rpc_id, size)


def _size(events: tuple[RawEvent, ...]) -> int:
    return sum([len(event.payload) for event in events])
