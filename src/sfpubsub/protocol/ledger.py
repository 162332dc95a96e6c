"""The ledger: received positions that are not known to be committed or stored, oldest first.

An entry is an event, or a keepalive (which is acked from the start). The *acked prefix* is the
sequence of acked entries at the front: only its positions may be committed, because everything
before them is done. Entries are ordered by arrival; replay ids are only compared for equality.

::

    front ──────────────────────────────────────────────► newest
    │ done: the acked prefix, not yet confirmed │ open: starts with an unacked event │

New events are stored as *runs* (`protocol.run`): one object for many consecutive events.
Single events are marked only if they are acked out of order. Events are looked up by position. An
event that shares its position with another entry, for example after a reset of the stream, is a
*twin* and is looked up by its key.

After a reconnect the service redelivers uncommitted events. A *redelivery*, with the event id and
replay id of an existing entry, is not a new entry: the existing entry is marked as seen on the new
stream. But if the service has moved the subscription back and sends an entry after newer ones, the
entry is not marked, because committing its position would skip the newer ones.
"""

from __future__ import annotations

from bisect import bisect_right

from sfpubsub.protocol.run import Entry, Run
from sfpubsub.types import EventKey, RawEvent, ReplayId, event_keys


class Ledger:
    """The received positions of one subscription that are not known to be committed or stored.

    Not thread-safe; the driver serialises all calls.
    """

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._firsts: list[int] = []  # first seq of each run, for lookup
        self._open = 0  # index of the first run that is not fully acked
        self._by_position: dict[bytes, Run] = {}
        self._twins: dict[EventKey, Run] = {}
        self._next_seq = 0
        self._orders = 0
        self._before_stream = 0  # newest order when the current stream was opened
        self._newest_seen = 0  # order of the newest entry seen on the current stream
        self._again: dict[int, Entry] = {}  # redelivered on the current stream, by order
        self._newest_done: Entry | None = None
        self._done_to = 0  # order of the newest entry ever in the acked prefix
        self._candidate: Entry | None = None
        self.held: int = 0
        """Number of events in the ledger, acked or not."""
        self.unacked: int = 0
        """Number of events received but not acked, whether the application has read them or not."""
        self.done_events: int = 0
        """Number of events in the acked prefix, none of which is known to be committed."""
        self.confirmed_events: int = 0
        """Number of events removed by `confirm`: acked, and committed or stored."""

    # Received events.

    def new_stream(self) -> None:
        """Start a new stream, on which nothing has been seen yet."""
        self._before_stream = self._orders
        self._newest_seen = 0
        self._again.clear()
        self._candidate = None

    def add(self, events: tuple[RawEvent, ...], first_seq: int) -> tuple[RawEvent, ...]:
        """Append those of *events* that are not redeliveries, as unacked entries.

        Args:
            events: Events of one response.
            first_seq: ``delivery_seq`` of the first new event; the others are numbered
                consecutively.

        Returns:
            The new events.
        """
        ids = [event.id for event in events]
        positions = [event.replay_id._value for event in events]
        if not self._twins:
            run = self._last_run(first_seq)
            index = dict.fromkeys(positions, run)
            if len(index) == len(positions) and self._by_position.keys().isdisjoint(index):
                self._by_position.update(index)
                self._extend(run, ids, positions)
                return events
        # One at a time: an event may occur twice in one response.
        new: list[RawEvent] = []
        for event, key in zip(events, zip(ids, positions, strict=True), strict=True):
            if not self._is_known(key):
                self._add_one(key, first_seq + len(new))
                new.append(event)
        return tuple(new)

    def _add_one(self, key: EventKey, seq: int) -> None:
        run = self._last_run(seq)
        if key[1] in self._by_position:
            self._twins[key] = run
        else:
            self._by_position[key[1]] = run
        self._extend(run, [key[0]], [key[1]])

    def _last_run(self, first_seq: int) -> Run:
        """Return the run for the next event; `_extend` stores it if it is new."""
        if self._runs and self._runs[-1].takes_more:
            return self._runs[-1]
        return Run(self._orders + 1, first_seq)

    def _extend(self, run: Run, ids: list[str], positions: list[bytes]) -> None:
        if not run.positions:
            self._append(run)
        run.ids += ids
        run.positions += positions
        # If the last run was fully acked, `_open` is past it: go back, because it has unacked
        # events again.
        self._open = min(self._open, len(self._runs) - 1)
        count = len(positions)
        self._orders += count
        self._newest_seen = self._orders
        self._next_seq = run.first_seq + len(run.positions)
        self.held += count
        self.unacked += count

    def _append(self, run: Run) -> None:
        self._runs.append(run)
        self._firsts.append(run.first_seq)

    def is_known(self, event: RawEvent) -> bool:
        """Return whether *event* is a redelivery.

        If so, its entry is marked as seen on this stream, unless a newer one was seen before.
        """
        return self._is_known(*event_keys((event,)))

    def _is_known(self, key: EventKey) -> bool:
        entry = self._find(key)
        if entry is None:
            return False
        if entry.order > self._newest_seen:
            self._newest_seen = entry.order
            self._again[entry.order] = entry
            if entry.order <= self._done_to:
                # It is newer than the previous candidate: redeliveries only move forward.
                self._candidate = entry
        return True

    def _find(self, key: EventKey) -> Entry | None:
        for run in (self._by_position.get(key[1]), self._twins.get(key)):
            place = None if run is None else run.find(key)
            if run is not None and place is not None:
                return run.entry(place)
        return None

    def add_keepalive(self, replay_id: ReplayId) -> None:
        """Append the position of a keepalive, as an acked entry."""
        self._orders += 1
        self._newest_seen = self._orders
        if not self._runs:
            self._append(Run(self._orders, self._next_seq))
        # Replaces an earlier one: only the last of several keepalives matters.
        self._runs[-1].keepalive = Entry(self._orders, replay_id)
        # If the last run was fully acked, `_open` is past it: go back, so that `_advance` sees the
        # keepalive.
        self._open = min(self._open, len(self._runs) - 1)
        self._advance()

    # Acks of the application.

    def ack(self, first_seq: int, last_seq: int) -> int:
        """Ack a range of events, ignoring those already acked or unknown.

        Returns:
            The number of newly acked events.
        """
        count = 0
        index = max(0, bisect_right(self._firsts, first_seq) - 1)
        while index < len(self._runs) and self._firsts[index] <= last_seq:
            count += self._runs[index].ack(first_seq, last_seq)
            index += 1
        if count:
            self.unacked -= count
            self._advance()
        return count

    def _advance(self) -> None:
        """Extend the acked prefix by the acked events at the front of the open runs."""
        newest: Entry | None = None
        while self._open < len(self._runs):
            run = self._runs[self._open]
            self.done_events += run.finish()
            newest = run.newest_done or newest
            if not run.is_done:
                break
            self._open += 1
        before = self._done_to
        if newest is None or newest.order <= before:
            return
        self._newest_done, self._done_to = newest, newest.order
        if newest.order > self._before_stream:
            self._candidate = newest
        else:
            for entry in self._again.values():  # ascending: the newest wins
                if before < entry.order <= newest.order:
                    self._candidate = entry

    # Positions that may be committed or stored.

    @property
    def candidate(self) -> Entry | None:
        """The newest entry of the acked prefix that was seen on the current stream, or None.

        An entry of an earlier stream counts as seen once it has been redelivered.
        """
        return self._candidate

    @property
    def newest_done(self) -> Entry | None:
        """The newest entry of the acked prefix, from any stream; None if the prefix is empty."""
        return self._newest_done

    @property
    def newest_done_event(self) -> Entry | None:
        """The newest event of the acked prefix; None if the prefix has no event."""
        for run in reversed(self._runs[: self._open + 1]):
            if run.done > run.confirmed:
                return run.entry(run.done - 1)
        return None

    @property
    def awaited(self) -> int:
        """How many more entries the stream must redeliver until the acked prefix can be committed.

        0 if the prefix has no event, or if the stream has sent its newest event.
        """
        newest = self.newest_done_event
        if newest is None or newest.order <= self._newest_seen:
            return 0
        oldest = next(run for run in self._runs if len(run) > run.confirmed)
        return newest.order - max(self._newest_seen, oldest.first_order + oldest.confirmed - 1)

    @property
    def open_events(self) -> int:
        """Number of events that are unacked, or were received after an unacked one."""
        return self.held - self.done_events

    def confirm(self, order: int) -> None:
        """Remove acked entries, because they are now committed or stored.

        Args:
            order: Arrival number of the newest entry to remove.
        """
        gone, to = 0, min(order, self._done_to)
        for run in self._runs:
            places = run.confirm(to)
            self._forget(run, places)
            self.confirmed_events += len(places)
            self.held -= len(places)
            self.done_events -= len(places)
            if not run.is_over(to):
                break
            gone += 1
        del self._runs[:gone], self._firsts[:gone]
        self._open -= gone
        if self._newest_done is not None and self._newest_done.order <= order:
            self._newest_done = None
        if self._candidate is not None and self._candidate.order <= order:
            self._candidate = None

    def _forget(self, run: Run, places: range) -> None:
        # No two entries share a key: a redelivery is not a new entry.
        if self._twins:
            for place in places:
                if self._twins.pop(run.key(place), None) is None:
                    del self._by_position[run.positions[place]]
        else:
            index = self._by_position
            for position in run.positions[places.start : places.stop]:
                del index[position]

    # Start of a stream.

    def event_after(self, order: int) -> EventKey | None:
        """Return the event id and replay id of the first event after entry number *order*.

        Return None if there is no such event.
        """
        for run in self._runs:
            place = max(run.confirmed, order + 1 - run.first_order)
            if place < len(run):
                return run.key(place)
        return None

    def begins_right_after(self, order: int, first: RawEvent | None) -> bool:
        """Return whether a stream that begins with *first* resumed right after an entry.

        Args:
            order: Arrival number of the entry; 0 means the last confirmed position.
            first: The stream's first event; None if it began with a keepalive, which the service
                sends only if there is nothing to deliver.
        """
        expected = self.event_after(order)
        if first is None or expected is None:
            # After the end of the ledger, any new event may follow.
            return expected is None and (first is None or not self.holds(first))
        return [expected] == event_keys((first,))

    def holds(self, event: RawEvent) -> bool:
        """Return whether *event* has an entry in the ledger."""
        return self._find(*event_keys((event,))) is not None

    @property
    def holds_events(self) -> bool:
        """Whether the ledger contains any event, as opposed to only keepalives."""
        return bool(self._by_position or self._twins)
