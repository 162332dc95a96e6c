"""What comes in: events into the application's queue, positions into the ledger.

Counts what waits to be read, and drops redeliveries.
"""

from __future__ import annotations

from sfpubsub.config import Limits
from sfpubsub.protocol.commands import Command, Deliver, Wake
from sfpubsub.protocol.events import Response
from sfpubsub.protocol.ledger import Ledger
from sfpubsub.protocol.resume import Resume
from sfpubsub.types import RawEvent, ReplayId


class Intake:
    """The receiving side of one subscription. Not thread-safe; the driver serialises.

    Args:
        limits: Bounds of memory.
        ledger: Takes the positions; None when nothing is tracked.
        resume: Moves with a plain subscription; None for a managed one.
    """

    def __init__(self, limits: Limits, ledger: Ledger | None, resume: Resume | None) -> None:
        self._limits = limits
        self._ledger = ledger
        self._resume = resume
        self._next_seq = 1
        self.queued_count = 0
        self.queued_bytes = 0
        self.delivered = 0
        self.redelivered = 0
        self.last_position: ReplayId | None = None
        self.caught_up = False
        """Whether the newest message of this stream was a keepalive."""

    def new_stream(self) -> None:
        """Forget what the old stream said of itself."""
        self.caught_up = False

    def taken(self, count: int, size: int) -> None:
        """Count a batch as read by the application."""
        self.queued_count -= count
        self.queued_bytes -= size
        self.delivered += count

    def discarded(self) -> None:
        """Count everything unread as gone."""
        self.queued_count = self.queued_bytes = 0

    @property
    def confirmed(self) -> int:
        """Acked events whose position is safe."""
        return 0 if self._ledger is None else self._ledger.confirmed_events

    @property
    def unacked(self) -> int:
        """Events read by the application and not acked."""
        return 0 if self._ledger is None else self._ledger.unacked - self.queued_count

    @property
    def too_many_unacked(self) -> bool:
        """Whether `Limits.max_unacked` is reached."""
        return self.unacked >= self._limits.max_unacked

    @property
    def full(self) -> bool:
        """Whether no more events should be asked for."""
        return (
            self.queued_count >= self._limits.max_pending_count
            or self.queued_bytes >= self._limits.max_bytes
            or self.too_many_unacked
        )

    @property
    def overfull(self) -> bool:
        """Whether even the stream is too much: what was outstanding has come in as well."""
        return self.queued_bytes >= 2 * self._limits.max_bytes

    def take_in(self, response: Response) -> list[Command]:
        """Deliver the new events of *response* and note every position."""
        keepalive, position = response.keepalive, response.position
        if position is None:
            return []
        out: list[Command] = []
        self.last_position = position
        self.caught_up = keepalive is not None
        if self._resume is not None:
            self._resume.received(position)
        if self._ledger is not None and keepalive is not None:
            self._ledger.add_keepalive(keepalive)
            if self._resume is not None:
                out.append(Wake())
        new = response.events
        if self._ledger is not None:
            new = self._note(new, self._ledger)
            self.redelivered += len(response.events) - len(new)
        if new:
            out.append(self._deliver(new, response.rpc_id))
        return out

    def _note(self, events: tuple[RawEvent, ...], ledger: Ledger) -> tuple[RawEvent, ...]:
        # One at a time: an event may stand twice in one response.
        new: list[RawEvent] = []
        for event in events:
            if not ledger.is_known(event):
                ledger.add_event(event, self._next_seq + len(new))
                new.append(event)
        return tuple(new)

    def _deliver(self, events: tuple[RawEvent, ...], rpc_id: str) -> Deliver:
        first_seq = self._next_seq
        self._next_seq += len(events)
        size = sum([len(event.payload) for event in events])
        self.queued_count += len(events)
        self.queued_bytes += size
        return Deliver(events, first_seq, rpc_id, size)
