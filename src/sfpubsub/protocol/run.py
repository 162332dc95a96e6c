"""Runs: groups of consecutive events in the ledger (ledger.py), with the progress of their acks.

A run has three counters, each of which counts events at its front:

- *acked*: the events before the run's first unacked event.
- *done*: those of the acked events that belong to the ledger's acked prefix, which ends at the
  first unacked event of all runs. So *done* is 0 as long as an earlier run has an unacked event;
  otherwise `Run.finish` sets it to *acked*.
- *confirmed*: those of the done events whose positions are known to be committed or stored. They
  are removed together with the whole run.

Acks in order only increase a counter; events that are acked before an earlier one are marked one by
one. There is no object per event: ids and positions are in two lists of strings and bytes, which
are cheap to create and add no objects for the garbage collector to traverse.
"""

from __future__ import annotations

from typing import NamedTuple

from sfpubsub.types import EventKey, ReplayId


class Entry(NamedTuple):
    """One received position, and `order`, its number in order of arrival."""

    order: int
    replay_id: ReplayId


# Events in a run: enough for small responses to share one, and few enough that confirmed events,
# which are removed only with the whole run, take little memory.
FULL = 100


class Run:
    """Consecutive events of the ledger, and the keepalive after them.

    A *place* is an event's index in the run.

    Args:
        first_order: `Entry.order` of the first event; the others are numbered consecutively.
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
        # The bytes of replay ids, because the hash of a ReplayId is computed in Python.
        self.positions: list[bytes] = []
        self.keepalive: Entry | None = None
        self.confirmed: int = 0  # number of confirmed events at the front
        self.done: int = 0  # number of events at the front that are in the ledger's acked prefix
        self.newest_done: Entry | None = None
        self._acked = 0  # number of acked events at the front
        self._early: set[int] | None = None  # places of acked events after the first unacked one

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def takes_more(self) -> bool:
        """Whether events can still be appended to the run."""
        return self.keepalive is None and len(self.positions) < FULL

    def entry(self, place: int) -> Entry:
        """Return the ledger entry of the event at index *place*."""
        return Entry(self.first_order + place, ReplayId(self.positions[place]))

    def key(self, place: int) -> EventKey:
        """Return the id and the replay id of the event at index *place*."""
        return self.ids[place], self.positions[place]

    def find(self, key: EventKey) -> int | None:
        """Return an event's index in this run; None if the event is confirmed or not in the run."""
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
        """Add the acked events at the front of the run to the ledger's acked prefix.

        Returns:
            How many events were added.
        """
        count = self._acked - self.done
        if count:
            self.done = self._acked
            self.newest_done = self.entry(self.done - 1)
        if self.keepalive is not None and self.is_done:
            self.newest_done = self.keepalive
        return count

    @property
    def is_done(self) -> bool:
        """Whether all events of the run belong to the ledger's acked prefix."""
        return self.done == len(self.positions)

    def confirm(self, order: int) -> range:
        """Mark the events up to *order* as confirmed.

        Args:
            order: Arrival number of the newest confirmed entry.

        Returns:
            The indexes of the events that were not confirmed before.
        """
        start, stop = self.confirmed, min(order + 1 - self.first_order, len(self.positions))
        self.confirmed = max(start, stop)
        return range(start, self.confirmed)

    def is_over(self, order: int) -> bool:
        """Return whether the run can be removed, because everything in it is confirmed.

        Args:
            order: Arrival number of the newest confirmed entry, which may be the run's keepalive.
        """
        if self.keepalive is not None and self.keepalive.order > order:
            return False
        return self.confirmed == len(self.positions)
