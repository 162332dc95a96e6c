"""Events as they go over the wire: read and encoded once for all streams that are at one place.

What makes a stream fast is that its next page is there when it is asked for: a stream prepares it
while its client still handles the last one. What makes many streams cheap is that those that wait
for the same event share a page.

A page is good as long as the bus has lost no event since, and either it is full or the bus has no
newer event. It is of one topic, behind one position: events there never change.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event
from sfpubsub_grpc import pubsub_api_pb2 as pb

_KEPT_BYTES = 16 * 1024 * 1024
"""Of all pages kept, as they go over the wire: some 20,000 change events of 0.7 KiB, more than most
tests have, in a third of what the process takes without any event."""

_PAGE_OVERHEAD_BYTES = 4096
"""What a page takes beside its bytes: 100 positions of 32 bytes, and the objects around them."""

_EVENT_OVERHEAD_BYTES = 128
"""What an event needs in a response besides its payload: ids and the framing of three messages."""


class Page(NamedTuple):
    """Events of one response.

    Attributes:
        positions: Of the events, in order; none if the reader has seen all.
        end: The position that the reader has then passed.
        schemas: How many events there are of each schema, by its id.
        wire: The events as a FetchResponse or a ManagedFetchResponse begins with them. A message
            may be written in pieces, so the rest of it is put behind.
    """

    positions: Sequence[int]
    end: int
    schemas: Mapping[str, int]
    wire: bytes


NO_EVENTS = Page((), 0, {}, b"")
"""Of a response that has none."""

_Key = tuple[int, int, int]
"""Number of the topic, position behind which the page is, most events."""


class _Kept(NamedTuple):
    """A page, and until when it is good."""

    page: Page
    losses: int
    tip: int | None  # None if it is full


class Pages:
    """The pages of one bus. Thread-safe.

    Args:
        bus: Has the events.
        settings: How large a response may be, and whether change events have ids.
    """

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        # Guards what is below, and is held while a page is made: streams that want the same wait
        # for it. Whoever holds it may take the locks of the bus, never the other way round.
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()  # the one not used longest is first
        self._bytes = 0

    def after(self, topic: Topic, position: int, limit: int) -> Page:
        """The next events of a topic, at most `limit`, and as many as fit into a response."""
        key = topic.number, position, limit
        with self._lock:
            losses, tip = self._bus.standing()
            found = self._kept.get(key)
            if found is not None:
                if found.losses == losses and found.tip in (None, tip):
                    self._kept.move_to_end(key)
                    return found.page
                self._drop(key)
            events, end = self._bus.read(topic, position, limit)
            if not events:
                return Page((), end, {}, b"")
            fitting = _fitting(events, self._settings.response_bytes)
            is_full = len(events) == limit or len(fitting) < len(events)
            page = self._page(topic, fitting)
            # What came between the look at the bus and the read is newer than `tip`: it makes the
            # page no good, and costs one more read.
            self._keep(key, _Kept(page, losses, None if is_full else tip))
            return page

    def _page(self, topic: Topic, events: Sequence[Event]) -> Page:
        with_ids = topic.name.startswith("/event/") or self._settings.change_event_ids
        mint = self._bus.ids.mint
        message = pb.FetchResponse()
        # Filled where they are, a field at a time, and events unpacked: nothing in a stream takes
        # longer, and made apart and copied into the message they take three times as long.
        add = message.events.add
        for position, event_id, schema_id, payload in events:
            item = add()
            item.replay_id = mint(position)
            sent = item.event
            if with_ids:
                sent.id = event_id
            sent.schema_id = schema_id
            sent.payload = payload
        positions = [event.position for event in events]
        schemas = Counter([event.schema_id for event in events])
        return Page(positions, positions[-1], schemas, message.SerializeToString())

    def _keep(self, key: _Key, kept: _Kept) -> None:
        self._kept[key] = kept
        self._bytes += _size(kept.page)
        while self._bytes > _KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        self._bytes -= _size(self._kept.pop(key).page)


def _size(page: Page) -> int:
    return len(page.wire) + _PAGE_OVERHEAD_BYTES


def _fitting(events: list[Event], size: int) -> list[Event]:
    """The first events that fit into a response of `size` bytes; at least one."""
    used = 0
    for index, event in enumerate(events):
        used += len(event.payload) + _EVENT_OVERHEAD_BYTES
        if used > size and index:
            return events[:index]
    return events
