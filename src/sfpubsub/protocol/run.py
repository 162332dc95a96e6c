"""Runs of consecutive events in the ledger, with the extent to which they are acked and confirmed.

::

    │ confirmed │ done: in the acked prefix │ acked: the rest up to the first unacked one │ …

Acks in order move a number. Only events that are acked before an earlier one are marked one by one.
There is no object for an event: its id and position are in two lists, which are cheap to make and
nothing for the garbage collector to go through.
"""

from __future__ import annotations

from typing import NamedTuple

from sfpubsub.types import EventKey, ReplayId


class Entry(NamedTuple):
    """One received position."""

    order: int
    replay_id: ReplayId


# Events in a run: so many that small responses share one, and few enough that the confirmed ones at
# its front, which are forgotten with the last of it, take little memory.
FULL = 100


class Run:
    """Consecutive events, and the keepalive after them. Places count from 0.

    Args:
        first_order: Order of the first event; the others are numbered consecutively.
        first_seq: ``delivery_seq`` of the first event; the others are numbered consecutively.
    """

    __slots__ = (
        "_acked",
        "_early",
        "confirmed",
        "done",
        "first_order",
        "first_seq",
        "ids",
        "keepalive",
        "newest_done",
        "positions",
    )

    def __init__(self, first_order: int, first_seq: int) -> None:
        self.first_order: int = first_order
        self.first_seq: int = first_seq
        self.ids: list[str] = []
        self.positions: list[bytes] = []  # of replay ids: their hash is a call of Python code
        self.keepalive: Entry | None = None
        self.confirmed: int = 0  # events at the front that are forgotten
        self.done: int = 0  # events at the front that belong to the acked prefix of the ledger
        self.newest_done: Entry | None = None
        self._acked = 0  # events at the front that are acked
        self._early: set[int] | None = None  # places after that which are acked as well

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def takes_more(self) -> bool:
        """Whether events can still be appended."""
        return self.keepalive is None and len(self.positions) < FULL

    def entry(self, place: int) -> Entry:
        """Return the entry of an event."""
        return Entry(self.first_order + place, ReplayId(self.positions[place]))

    def key(self, place: int) -> EventKey:
        """Return the key of an event."""
        return self.ids[place], self.positions[place]

    def find(self, key: EventKey) -> int | None:
        """Return the place of an unconfirmed event, or None if it is not in this run."""
        event_id, position = key
        for place in range(self.confirmed, len(self.positions)):
            if self.positions[place] == position and self.ids[place] == event_id:
                return place
        return None

    def ack(self, first_seq: int, last_seq: int) -> int:
        """Ack the events of a range that are in this run; return how many were newly acked."""
        start = max(first_seq - self.first_seq, self._acked)
        stop = min(last_seq + 1 - self.first_seq, len(self.positions))
        if start >= stop:
            return 0
        if start == self._acked and not self._early:
            self._acked = stop
            return stop - start
        early = self._early = self._early or set()
        before = len(early)
        early.update(range(start, stop))
        count = len(early) - before
        while self._acked in early:
            early.remove(self._acked)
            self._acked += 1
        return count

    def finish(self) -> int:
        """Add acked events at the front to the acked prefix; return their number."""
        count = self._acked - self.done
        if count:
            self.done = self._acked
            self.newest_done = self.entry(self.done - 1)
        if self.keepalive is not None and self.is_done:
            self.newest_done = self.keepalive
        return count

    @property
    def is_done(self) -> bool:
        """Whether all events belong to the acked prefix."""
        return self.done == len(self.positions)

    def confirm(self, order: int) -> range:
        """Forget the finished events up to *order*; return their places."""
        start, stop = self.confirmed, min(order + 1 - self.first_order, len(self.positions))
        self.confirmed = max(start, stop)
        return range(start, self.confirmed)

    def is_over(self, order: int) -> bool:
        """Return whether nothing remains after *order*."""
        if self.keepalive is not None and self.keepalive.order > order:
            return False
        return self.confirmed == len(self.positions)
