"""Every position received and not yet known to be committed or stored, in order of arrival.

An entry is an event, or a keepalive (which is acked from the start). The *acked prefix* is the run
of acked entries at the front: only its positions may be committed, because everything before them
is done. Order is order of arrival; replay ids are only compared for equality.

::

    front ──────────────────────────────────────────────► newest
    │ done: the acked prefix, not yet confirmed │ open: starts with an unacked event │

After a reconnect the service sends again what was not committed. Such a *redelivery*, equal in
event id and replay id to an entry, is not a new entry: the old one is bound to the new stream.
A position counts as seen on a stream only if its entry is bound to it. Where a service that has
moved the subscription back sends an entry behind newer ones, the entry stays unbound: its position
would pass over theirs.
"""

from __future__ import annotations

from collections import deque

from sfpubsub.types import RawEvent, ReplayId

Key = tuple[str, ReplayId]


class Entry:
    """One received position."""

    __slots__ = ("acked", "key", "order", "replay_id", "seq", "stream")

    def __init__(
        self, order: int, replay_id: ReplayId, stream: int, key: Key | None, seq: int
    ) -> None:
        self.order = order
        self.replay_id = replay_id
        self.stream = stream
        self.key = key  # None for a keepalive
        self.seq = seq  # delivery_seq; meaningless for a keepalive
        self.acked = key is None


class Ledger:
    """The entries of one subscription. Not thread-safe; the driver serialises."""

    def __init__(self) -> None:
        self._done: deque[Entry] = deque()
        self._open: deque[Entry] = deque()
        self._by_key: dict[Key, Entry] = {}
        self._by_seq: dict[int, Entry] = {}
        self._orders = 0
        self._stream = 0
        self._newest_seen = 0  # order of the newest entry seen on the current stream
        self._candidate: Entry | None = None
        self.confirmed_events = 0
        """Events that `confirm` has forgotten: each was acked, and its position is safe."""

    # What arrives.

    def new_stream(self, stream: int) -> None:
        """Bind what comes from here on to *stream*; nothing has been seen on it yet."""
        self._stream = stream
        self._newest_seen = 0
        self._candidate = None

    def is_known(self, event: RawEvent) -> bool:
        """Whether *event* is a redelivery of an entry; if so, the entry is seen on this stream."""
        entry = self._by_key.get((event.id, event.replay_id))
        if entry is None:
            return False
        if entry.order > self._newest_seen:
            self._newest_seen = entry.order
            entry.stream = self._stream
            self._consider(entry)
        return True

    def add_event(self, event: RawEvent, seq: int) -> None:
        """Append a new event, not acked."""
        key = (event.id, event.replay_id)
        entry = self._append(event.replay_id, key, seq)
        self._by_key[key] = entry
        self._by_seq[seq] = entry
        self._open.append(entry)

    def add_keepalive(self, replay_id: ReplayId) -> None:
        """Append the position of a keepalive, acked."""
        entry = self._append(replay_id, None, -1)
        queue = self._open or self._done
        # A run of keepalives says no more than its last one.
        if queue and queue[-1].key is None:
            queue.pop()
        queue.append(entry)
        if queue is self._done:
            self._consider(entry)

    def _append(self, replay_id: ReplayId, key: Key | None, seq: int) -> Entry:
        self._orders += 1
        self._newest_seen = self._orders
        return Entry(self._orders, replay_id, self._stream, key, seq)

    # What the application says.

    def ack(self, first_seq: int, last_seq: int) -> int:
        """Ack a run of events; those acked before, or unknown, are passed over.

        Returns:
            How many were acked by this call.
        """
        count = 0
        for seq in range(first_seq, last_seq + 1):
            entry = self._by_seq.pop(seq, None)
            if entry is not None:
                entry.acked = True
                count += 1
        while self._open and self._open[0].acked:
            entry = self._open.popleft()
            self._done.append(entry)
            self._consider(entry)
        return count

    def _consider(self, entry: Entry) -> None:
        # Called for every entry that becomes acked prefix or is seen on the current stream.
        if entry.stream != self._stream or (self._open and entry.order >= self._open[0].order):
            return
        self._candidate = entry  # newer than the one before: both callers go forward only

    # What may be committed or stored.

    @property
    def candidate(self) -> Entry | None:
        """The newest entry of the acked prefix that was seen on the current stream."""
        return self._candidate

    @property
    def newest_done(self) -> Entry | None:
        """The newest entry of the acked prefix, seen on this stream or not."""
        return self._done[-1] if self._done else None

    @property
    def newest_done_event(self) -> Entry | None:
        """The newest event of the acked prefix."""
        return next((entry for entry in reversed(self._done) if entry.key is not None), None)

    @property
    def awaits_redelivery(self) -> bool:
        """Whether the current stream has not shown the newest acked event yet."""
        newest = self.newest_done_event
        return newest is not None and newest.stream != self._stream

    @property
    def unacked(self) -> int:
        """Events delivered and not acked, wherever they stand."""
        return len(self._by_seq)

    @property
    def done_events(self) -> int:
        """Acked events whose position is not known to be committed."""
        return sum(entry.key is not None for entry in self._done)

    def confirm(self, order: int) -> None:
        """Forget everything up to *order*: it is committed or stored."""
        while self._done and self._done[0].order <= order:
            entry = self._done.popleft()
            # `is_known` comes before `add_event`, so no two entries share a key.
            if entry.key is not None:
                del self._by_key[entry.key]
                self.confirmed_events += 1
        if self._candidate is not None and self._candidate.order <= order:
            self._candidate = None

    # Where the service began.

    def event_after(self, order: int) -> Key | None:
        """Return the key of the first event behind *order*, or None when there is none."""
        for queue in (self._done, self._open):
            for entry in queue:
                if entry.order > order and entry.key is not None:
                    return entry.key
        return None

    def begins_right_after(self, order: int, first: RawEvent | None) -> bool:
        """Whether a stream that begins with *first* resumed right after *order*.

        Args:
            order: Of an entry; 0 for what was confirmed last.
            first: The stream's first event; None when it began with a keepalive, which the service
                sends only when there is nothing to deliver.
        """
        expected = self.event_after(order)
        if first is None or expected is None:
            # Behind the ledger's end anything new may come.
            return expected is None and (first is None or not self.holds(first))
        return expected == (first.id, first.replay_id)

    def holds(self, event: RawEvent) -> bool:
        """Whether *event* is an entry."""
        return (event.id, event.replay_id) in self._by_key

    @property
    def holds_events(self) -> bool:
        """Whether any event is not known to be committed."""
        return bool(self._by_key)
