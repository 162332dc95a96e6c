"""The ids received from one channel: which events are new, and where the channel can resume.

A server puts an event into one response only, and forgets it. With two requests in flight, it may
put the next event into either response. So while a request is in flight, it may carry any event
that is newer than the last one received when it was sent: that is its *mark*. The channel can
resume at the oldest mark, whatever has arrived since. A request whose response was lost keeps its
mark until the channel is subscribed again.

After a resumption, the server sends again what had already arrived since. Such events are
recognised by their ids, of which as many are kept as needed: an id is never taken as known because
it is low. An id below the position of the resumption cannot be in the same numbering: the org has
begun a new one, in which everything is new.

No I/O, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from sfpubsub.streaming.bayeux import Lane
from sfpubsub.streaming.positions import ALL_EVENTS, NEW_EVENTS

# Ids that are kept at least, in case the server repeats one; and ids that may arrive while one
# request is in flight before fetching pauses. Five full responses of the service.
_IDS = 5_000


class Mark(NamedTuple):
    """What had been received of a channel at some moment. An older mark is the smaller one."""

    arrived: int
    """Number of ids received before."""
    high: int
    """Where the channel could resume if nothing was in flight."""


class Arrival(NamedTuple):
    """What to do with events that have arrived."""

    places: Sequence[int] | None
    """The indexes of the new ones; None if all are new."""
    reset_at: int | None
    """The first id of a new numbering, if one has begun with these events."""
    late: int
    """Number of new events that follow one with a higher id."""


class Received:
    """The ids received from one channel. Not thread-safe; the driver serialises all calls.

    Args:
        start: Where the channel starts: an id, -1 or -2.
    """

    def __init__(self, start: int) -> None:
        self._high = start  # where to resume if nothing is in flight
        self._top = NEW_EVENTS  # the highest id delivered in this numbering
        self._ids: list[int] = []  # the newest ids in order of arrival, also repeated ones
        self._count = 0  # how many ids have ever arrived
        self._marks: dict[Lane, Mark] = {}  # of the requests in flight
        self._floor: Mark | None = None  # the oldest mark of the requests that were lost
        self._again: set[int] = set()  # received before the resumption; the server sends them again
        self._resumed_at = ALL_EVENTS  # an id that is lower belongs to a new numbering

    # Requests.

    def sent(self, lane: Lane) -> None:
        """Record that a request is sent."""
        self._marks[lane] = self._now

    def answered(self, lane: Lane) -> None:
        """Record that all events of the response on *lane* have been passed to `arrived`."""
        self._marks.pop(lane, None)

    def lost(self, lane: Lane) -> None:
        """Record that the request on *lane* has ended, but its response may be lost."""
        mark = self._marks.pop(lane, None)
        if mark is not None:
            self._floor = mark if self._floor is None else min(self._floor, mark)

    def resume(self, in_flight: Iterable[Lane]) -> None:
        """Record that a subscribe request is sent with the position `resumes_at`.

        Args:
            in_flight: The lanes of the requests in flight, which may carry the channel's events.
        """
        position = self.resumes_at
        known = chain(self._again, self._ids)
        self._again = set() if position == NEW_EVENTS else {i for i in known if i > position}
        if position >= 0:
            self._again.add(position)
        self._high = self._resumed_at = position
        self._floor = None
        self._marks = dict.fromkeys(in_flight, self._now)

    @property
    def position(self) -> int:
        """Where the channel can resume without losing an event that is in flight."""
        return self._oldest.high

    @property
    def resumes_at(self) -> int:
        """The position for a subscribe request.

        If a channel that started with new events has lost some before the first that it received,
        they cannot be fetched, and this is not `position`.
        """
        return self._high if self.position == NEW_EVENTS else self.position

    def is_complete_but_for(self, lane: Lane | None) -> bool:
        """Whether nothing can be missing, apart from what comes with the response on *lane*."""
        return self._floor is None and self._marks.keys() <= {lane}

    @property
    def is_full(self) -> bool:
        """Whether fetching must pause: too many ids have arrived while a request is in flight."""
        return bool(self._marks) and self._count - self._oldest.arrived > _IDS

    @property
    def _now(self) -> Mark:
        return Mark(self._count, self._high)

    @property
    def _oldest(self) -> Mark:
        """The oldest mark: everything up to it has been received."""
        floor = () if self._floor is None else (self._floor,)
        return min((*self._marks.values(), *floor), default=self._now)

    # Events.

    def arrived(self, ids: Sequence[int | None]) -> Arrival:
        """Record ids that have arrived, before the request that they came with is `answered`."""
        numbers = [number for number in ids if number is not None]
        if not numbers:
            return Arrival(None, None, 0)
        low, reset_at = min(numbers), None
        if low < self._resumed_at:
            reset_at = low
            self._begin_anew()
        oldest = self._oldest.arrived
        places, late = None, 0
        # Usually the ids ascend, and are higher than all before.
        is_usual = low > max(self._top, self._high) and numbers == sorted(set(numbers))
        if self._again or not is_usual:
            since = len(self._ids) - self._since(oldest)
            places, late = self._sorted_out(ids, set(self._ids[since:]))
        self._ids += numbers
        self._count += len(numbers)
        self._high = max(self._ids[-self._since(oldest) :])
        self._top = max(self._top, *numbers)
        if len(self._ids) > 2 * _IDS:
            del self._ids[: -max(_IDS, self._since(oldest))]
        return Arrival(places, reset_at, late)

    def _since(self, count: int) -> int:
        return self._count - count

    def _sorted_out(self, ids: Sequence[int | None], known: set[int]) -> tuple[list[int], int]:
        """Return the indexes of the new ids, and how many of them are lower than one before.

        *known* are the ids that have arrived while the same requests were in flight.
        """
        places, late, top = [], 0, self._top
        for place, number in enumerate(ids):
            if number is not None:
                if number in known or number in self._again:
                    known.add(number)
                    self._again.discard(number)  # the server sends it only once in a session
                    continue
                known.add(number)
                late += number < top
                top = max(top, number)
            places.append(place)
        return places, late

    def _begin_anew(self) -> None:
        """Forget the old numbering. Nothing of the new one is known to have been received."""
        self._top = NEW_EVENTS
        self._high = self._resumed_at = ALL_EVENTS
        self._ids, self._again, self._floor = [], set(), None
        self._marks = {lane: Mark(self._count, ALL_EVENTS) for lane in self._marks}
