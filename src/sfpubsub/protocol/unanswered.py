"""Events submitted to a publisher that have no result yet: queued, or in flight.

The queue is in submission order: an event that is resent precedes all that were submitted after it.
A result is matched to its event by the event's id, which is the correlation key. If several events
in flight have the same id, results are assigned to them in order: by using the same id, the caller
has declared them to be the same event. A result without a key is matched by its place: the results
of a response are in the order of its request (Salesforce documentation, Publish RPC).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sfpubsub.config import EVENT_OVERHEAD, MAX_PUBLISH_BYTES, MAX_PUBLISH_EVENTS
from sfpubsub.types import ProducerEvent, PublishResult


def size_of(event: ProducerEvent) -> int:
    """Return an upper bound for the size of *event* in a request, in bytes."""
    headers = sum(len(key.encode()) + len(value) + 8 for key, value in event.headers)
    ids = len(event.id.encode()) + len(event.schema_id.encode())
    return len(event.payload) + headers + ids + EVENT_OVERHEAD


@dataclass(slots=True, eq=False)
class Request:
    """A publish request that has not been answered completely."""

    sent_at: float
    left: int
    """Number of the request's events that have no result yet."""
    entries: list[Entry] = field(default_factory=list)
    """The request's events, in order."""


@dataclass(slots=True, eq=False)
class Entry:
    """An event that has no result yet (is not *settled*), or whose request is still in flight."""

    ticket: int
    event: ProducerEvent
    size: int
    expires_at: float
    tried: set[str] = field(default_factory=set)
    """Ids of the schemas that the event was rejected with, or will be sent with next."""
    attempts: int = 0
    unheard: bool = False
    """Whether the event was sent in a request that was not answered: it may have been published,
    whatever is answered later.
    """
    request: Request | None = None
    """The request in flight that contains the event, if any."""
    queued: bool = False
    settled: bool = False


class Unanswered:
    """The events of one publisher that have no result yet: queued, or in flight.

    Not thread-safe; the driver serialises all calls.
    """

    def __init__(self) -> None:
        self._tickets = 0
        self._entries: dict[int, Entry] = {}  # not settled, in submission order
        self._queue: list[tuple[int, Entry]] = []  # events to send: a heap by ticket
        self._queued = 0
        self._queued_size = 0
        self._flying: dict[str, list[Entry]] = {}
        self._requests: dict[Request, None] = {}  # in the order sent
        self.size: int = 0
        """Bytes of all events that are not settled."""
        self._recoding: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: ProducerEvent, expires_at: float) -> int:
        """Append an event to the queue and return its ticket.

        Args:
            event: The event.
            expires_at: When the event expires if it has no result by then, in seconds of the
                caller's monotonic clock.
        """
        self._tickets += 1
        entry = Entry(self._tickets, event, size_of(event), expires_at, {event.schema_id})
        self._entries[entry.ticket] = entry
        self.size += entry.size
        self.put_back(entry)
        return entry.ticket

    def put_back(self, entry: Entry) -> None:
        """Put *entry* into the queue, at its place in submission order."""
        entry.request = None
        heapq.heappush(self._queue, (entry.ticket, entry))
        entry.queued = True
        self._queued += 1
        self._queued_size += entry.size

    def _off_queue(self, entry: Entry) -> None:
        entry.queued = False
        self._queued -= 1
        self._queued_size -= entry.size

    @property
    def waiting(self) -> bool:
        """Whether the queue has events to send."""
        return bool(self._queued)

    @property
    def fills_request(self) -> bool:
        """Whether the queue has enough events to fill a request."""
        return self._queued >= MAX_PUBLISH_EVENTS or self._queued_size >= MAX_PUBLISH_BYTES

    @property
    def requests(self) -> int:
        """Number of requests in flight."""
        return len(self._requests)

    @property
    def recoding(self) -> bool:
        """Whether any event is being re-encoded with another schema."""
        return bool(self._recoding)

    def send(self, now: float) -> tuple[ProducerEvent, ...]:
        """Take the events for one request from the queue; they are then in flight."""
        events: list[ProducerEvent] = []
        request = Request(now, 0)
        size = 0
        while self.waiting and len(events) < MAX_PUBLISH_EVENTS:
            _, entry = self._queue[0]
            if entry.queued and events and size + entry.size > MAX_PUBLISH_BYTES:
                break
            heapq.heappop(self._queue)
            if not entry.queued:  # settled while it was in the queue
                continue
            self._off_queue(entry)
            size += entry.size
            entry.attempts += 1
            entry.request = request
            request.entries.append(entry)
            self._flying.setdefault(entry.event.id, []).append(entry)
            events.append(entry.event)
        request.left = len(events)
        self._requests[request] = None
        return tuple(events)

    def answered(
        self, results: Sequence[PublishResult]
    ) -> tuple[list[tuple[Entry, PublishResult]], list[PublishResult]]:
        """Match the results of one response to the events in flight.

        Returns:
            The events that were not settled before, each with its result; and the results that
            match no event in flight.
        """
        matched: list[tuple[Entry, PublishResult] | None] = []
        request: Request | None = None
        for result in results:
            same = self._flying.get(result.correlation_key)
            entry = same[0] if same else None
            if entry is not None:
                request = entry.request
                self._landed(entry)
            matched.append(None if entry is None else (entry, result))
        strangers: list[PublishResult] = []
        if None in matched:
            request = request or self._oldest_of(len(results))
            for place, result in enumerate(results):
                if matched[place] is not None:
                    continue
                entry = self._at(request, place, len(results))
                if result.correlation_key or entry is None:
                    strangers.append(result)
                else:
                    self._landed(entry)
                    matched[place] = entry, replace(result, correlation_key=entry.event.id)
        return [each for each in matched if each is not None and not each[0].settled], strangers

    def _oldest_of(self, count: int) -> Request | None:
        return next((each for each in self._requests if len(each.entries) == count), None)

    def _at(self, request: Request | None, place: int, count: int) -> Entry | None:
        """Return the event at a place of a request with *count* events, if it is in flight."""
        if request is None or len(request.entries) != count:
            return None
        entry = request.entries[place]
        return entry if entry.request is request else None

    def _landed(self, entry: Entry) -> None:
        """Record that an event in flight has a result."""
        same = self._flying[entry.event.id]
        same.remove(entry)
        if not same:
            del self._flying[entry.event.id]
        request, entry.request = entry.request, None
        assert request is not None  # noqa: S101  # an event in flight has a request
        request.left -= 1
        if not request.left:
            del self._requests[request]

    def settle(self, entry: Entry) -> None:
        """Remove an event that now has its result, which may be an error."""
        entry.settled = True
        del self._entries[entry.ticket]
        self.size -= entry.size
        self._recoding.discard(entry.ticket)
        if entry.queued:
            self._off_queue(entry)

    def lost(self) -> None:
        """Put all events in flight back into the queue, because their stream has ended."""
        for entries in self._flying.values():
            for entry in entries:
                if not entry.settled:
                    entry.unheard = True
                    self.put_back(entry)
        self._flying.clear()
        self._requests.clear()

    def recode(self, entry: Entry, schema_id: str) -> None:
        """Record that an event is being re-encoded with the schema *schema_id*."""
        entry.tried.add(schema_id)
        self._recoding.add(entry.ticket)

    def recoded(self, ticket: int) -> Entry | None:
        """Record that the re-encoding of an event has ended, and return the event.

        The event is not in the queue until `replace` or `put_back_unchanged` is called.

        Returns:
            The event; None if it was not being re-encoded, or is already settled.
        """
        if ticket not in self._recoding:
            return None
        self._recoding.discard(ticket)
        return self._entries[ticket]

    def replace(self, entry: Entry, event: ProducerEvent) -> None:
        """Put an event back into the queue in a new encoding."""
        self.size -= entry.size
        entry.event, entry.size = event, size_of(event)
        self.size += entry.size
        self.put_back(entry)

    def put_back_unchanged(self, entry: Entry) -> None:
        """Put an event back into the queue unchanged, in the encoding that was rejected."""
        entry.tried = {entry.event.schema_id}
        self.put_back(entry)

    def entries(self) -> list[Entry]:
        """Return all events that are not settled, in submission order."""
        return list(self._entries.values())

    @property
    def expires_at(self) -> float | None:
        """When the oldest event expires (monotonic clock); None if there are no events."""
        for entry in self._entries.values():
            return entry.expires_at
        return None

    def expired(self, now: float) -> list[Entry]:
        """Return the events that have expired."""
        found: list[Entry] = []
        for entry in self._entries.values():
            if entry.expires_at > now:
                break
            found.append(entry)
        return found

    @property
    def sent_at(self) -> float | None:
        """When the oldest request in flight was sent (monotonic clock); None if there is none."""
        for request in self._requests:
            return request.sent_at
        return None
