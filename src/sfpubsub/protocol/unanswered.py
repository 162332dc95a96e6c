"""Events that were given to a publisher and are not settled: what waits, what is in flight.

An event keeps the place that it was given in: one that has to be sent again goes before all that
came after it. Results find their event by its id, which is the correlation key; two events in
flight under one id are taken in order, since the caller declares them the same by using one id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from sfpubsub.config import EVENT_OVERHEAD, MAX_PUBLISH_BYTES, MAX_PUBLISH_EVENTS
from sfpubsub.types import ProducerEvent, PublishResult


def size_of(event: ProducerEvent) -> int:
    """Return the bytes that *event* takes in a request, at most."""
    headers = sum(len(key.encode()) + len(value) + 8 for key, value in event.headers)
    ids = len(event.id.encode()) + len(event.schema_id.encode())
    return len(event.payload) + headers + ids + EVENT_OVERHEAD


@dataclass(slots=True, eq=False)
class Request:
    """One request in flight."""

    sent_at: float
    left: int
    """Events of it without a result."""


@dataclass(slots=True, eq=False)
class Entry:
    """One event until it is settled, and then until its request is answered."""

    ticket: int
    event: ProducerEvent
    size: int
    expires_at: float
    tried: set[str] = field(default_factory=set)
    """Schemas that it was refused with, or is about to be sent with."""
    attempts: int = 0
    request: Request | None = None
    """The one it is in flight with."""
    queued: bool = False
    settled: bool = False


class Unanswered:
    """The events of one publisher. Not thread-safe; the driver serialises."""

    def __init__(self) -> None:
        self._tickets = 0
        self._entries: dict[int, Entry] = {}  # not settled, in the order given
        self._queue: list[tuple[int, Entry]] = []  # a heap by ticket of what waits to be sent
        self._queued = 0
        self._queued_size = 0
        self._flying: dict[str, list[Entry]] = {}
        self._requests: dict[Request, None] = {}  # in the order sent
        self.size: int = 0
        """Bytes of all that is not settled."""
        self._recoding: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, event: ProducerEvent, expires_at: float) -> int:
        """Take an event in after all others and return its ticket."""
        self._tickets += 1
        entry = Entry(self._tickets, event, size_of(event), expires_at, {event.schema_id})
        self._entries[entry.ticket] = entry
        self.size += entry.size
        self.put_back(entry)
        return entry.ticket

    def put_back(self, entry: Entry) -> None:
        """Have *entry* wait to be sent, at its place."""
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
        """Whether an event waits to be sent."""
        return bool(self._queued)

    @property
    def fills_request(self) -> bool:
        """Whether what waits is a whole request."""
        return self._queued >= MAX_PUBLISH_EVENTS or self._queued_size >= MAX_PUBLISH_BYTES

    @property
    def requests(self) -> int:
        """How many requests are in flight."""
        return len(self._requests)

    @property
    def recoding(self) -> bool:
        """Whether an event is being encoded by another schema."""
        return bool(self._recoding)

    def send(self, now: float) -> tuple[ProducerEvent, ...]:
        """Put into flight what one request takes of those that wait, and return it."""
        events: list[ProducerEvent] = []
        request = Request(now, 0)
        size = 0
        while self.waiting and len(events) < MAX_PUBLISH_EVENTS:
            _, entry = self._queue[0]
            if entry.queued and events and size + entry.size > MAX_PUBLISH_BYTES:
                break
            heapq.heappop(self._queue)
            if not entry.queued:  # settled while it waited
                continue
            self._off_queue(entry)
            size += entry.size
            entry.attempts += 1
            entry.request = request
            self._flying.setdefault(entry.event.id, []).append(entry)
            events.append(entry.event)
        request.left = len(events)
        self._requests[request] = None
        return tuple(events)

    def answered(self, results: Iterable[PublishResult]) -> list[tuple[Entry, PublishResult]]:
        """Return each event that has its result now; those already settled are left out."""
        found: list[tuple[Entry, PublishResult]] = []
        for result in results:
            same = self._flying.get(result.correlation_key)
            if same is None:
                continue  # not of this stream: nobody waits for it
            entry = same.pop(0)
            if not same:
                del self._flying[result.correlation_key]
            request, entry.request = entry.request, None
            assert request is not None  # noqa: S101  # what flies has a request
            request.left -= 1
            if not request.left:
                del self._requests[request]
            if not entry.settled:
                found.append((entry, result))
        return found

    def settle(self, entry: Entry) -> None:
        """Forget an event: its outcome is known, or was given up."""
        entry.settled = True
        del self._entries[entry.ticket]
        self.size -= entry.size
        self._recoding.discard(entry.ticket)
        if entry.queued:
            self._off_queue(entry)

    def lost(self) -> None:
        """Have all that is in flight wait again: its stream is gone."""
        for entries in self._flying.values():
            for entry in entries:
                if not entry.settled:
                    self.put_back(entry)
        self._flying.clear()
        self._requests.clear()

    def recode(self, entry: Entry, schema_id: str) -> None:
        """Set an event aside until it is encoded by another schema."""
        entry.tried.add(schema_id)
        self._recoding.add(entry.ticket)

    def recoded(self, ticket: int) -> Entry | None:
        """Return an event that was set aside, if it is not settled; it waits nowhere."""
        if ticket not in self._recoding:
            return None
        self._recoding.discard(ticket)
        return self._entries[ticket]

    def replace(self, entry: Entry, event: ProducerEvent) -> None:
        """Have another form of the same event wait to be sent."""
        self.size -= entry.size
        entry.event, entry.size = event, size_of(event)
        self.size += entry.size
        self.put_back(entry)

    def as_it_was(self, entry: Entry) -> None:
        """Have an event wait to be sent by the schema that it was refused with."""
        entry.tried = {entry.event.schema_id}
        self.put_back(entry)

    def entries(self) -> list[Entry]:
        """Return all that is not settled, in the order given."""
        return list(self._entries.values())

    @property
    def expires_at(self) -> float | None:
        """When the first of them is given up. Each has the same time, so it is the oldest."""
        for entry in self._entries.values():
            return entry.expires_at
        return None

    def expired(self, now: float) -> list[Entry]:
        """Return those whose time is over."""
        found: list[Entry] = []
        for entry in self._entries.values():
            if entry.expires_at > now:
                break
            found.append(entry)
        return found

    @property
    def sent_at(self) -> float | None:
        """When the oldest request in flight was sent."""
        for request in self._requests:
            return request.sent_at
        return None
