"""A simple, slow version of the ledger, with one object per position and linear searches.

`test_ledger_walk` compares it with `sfpubsub.protocol.ledger`, with which it shares no code.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfpubsub.types import RawEvent, ReplayId


@dataclass
class Position:
    """A received position and its state."""

    order: int
    replay_id: ReplayId
    event_id: str | None  # None for a keepalive
    seq: int
    acked: bool
    seen: bool  # on the current stream

    def is_event(self, event: RawEvent) -> bool:
        return self.event_id == event.id and self.replay_id == event.replay_id


class PlainLedger:
    """Implements the rules in the docstring of `sfpubsub.protocol.ledger` directly."""

    def __init__(self) -> None:
        self.positions: list[Position] = []  # neither committed nor stored
        self.orders = 0
        self.newest_seen = 0
        self.confirmed_events = 0

    def new_stream(self) -> None:
        for position in self.positions:
            position.seen = False
        self.newest_seen = 0

    def add(self, events: tuple[RawEvent, ...], first_seq: int) -> tuple[RawEvent, ...]:
        new = []
        for event in events:
            known = [position for position in self.positions if position.is_event(event)]
            for position in known:
                if position.order > self.newest_seen:
                    self.newest_seen = position.order
                    position.seen = True
            if not known:
                self._append(event.replay_id, event.id, first_seq + len(new))
                new.append(event)
        return tuple(new)

    def add_keepalive(self, replay_id: ReplayId) -> None:
        if self.positions and self.positions[-1].event_id is None:
            self.positions.pop()
        self._append(replay_id, None, -1)

    def _append(self, replay_id: ReplayId, event_id: str | None, seq: int) -> None:
        self.orders += 1
        self.newest_seen = self.orders
        self.positions.append(
            Position(self.orders, replay_id, event_id, seq, event_id is None, True)
        )

    def ack(self, first_seq: int, last_seq: int) -> int:
        ready = [
            position
            for position in self.positions
            if not position.acked and first_seq <= position.seq <= last_seq
        ]
        for position in ready:
            position.acked = True
        return len(ready)

    def confirm(self, order: int) -> None:
        gone = [position for position in self.prefix if position.order <= order]
        self.confirmed_events += sum(position.event_id is not None for position in gone)
        self.positions = self.positions[len(gone) :]

    @property
    def prefix(self) -> list[Position]:
        """The acked positions before the first unacked one."""
        prefix = []
        for position in self.positions:
            if not position.acked:
                break
            prefix.append(position)
        return prefix

    def facts(self) -> dict[str, object]:
        """Return the values of all properties of the ledger, by name."""
        prefix = self.prefix
        events = [position for position in prefix if position.event_id is not None]
        seen = [position for position in prefix if position.seen]
        return {
            "candidate": place(seen),
            "newest_done": place(prefix),
            "newest_done_event": place(events),
            "awaited": events[-1].order - max(self.newest_seen, events[0].order - 1)
            if events and events[-1].order > self.newest_seen
            else 0,
            "held": sum(position.event_id is not None for position in self.positions),
            "open_events": sum(p.event_id is not None for p in self.positions) - len(events),
            "unacked": sum(not position.acked for position in self.positions),
            "done_events": len(events),
            "confirmed_events": self.confirmed_events,
            "holds_events": any(position.event_id is not None for position in self.positions),
        }

    def event_after(self, order: int) -> tuple[str, bytes] | None:
        for position in self.positions:
            if position.order > order and position.event_id is not None:
                return position.event_id, bytes(position.replay_id)
        return None


def place(positions: list[Position]) -> tuple[int, ReplayId] | None:
    """Return the order and replay id of the last of *positions*, or None if there are none."""
    return (positions[-1].order, positions[-1].replay_id) if positions else None
