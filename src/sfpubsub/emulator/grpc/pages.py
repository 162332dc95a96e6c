"""Events as they go over the wire: put together once for all streams that are at one place.

What makes a stream fast is that its next page is there when it is asked for: a stream prepares it
while its client still handles the last one. What makes many streams cheap is that those that wait
for the same event share a page.

A page is valid as long as the bus has lost no event since, and either it is full or the bus has no
newer event. It is of one topic, after one position: events there never change.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sfpubsub.emulator.grpc.blocks import Blocks, Piece
from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event

_KEPT_BYTES = 6 * 1024 * 1024
"""Of all pages kept, as they go over the wire: what streams side by side want, and what is made
ahead of them; some 20,000 small events. More would make a long first read slower, which fills fresh
memory until then: of change events that costs as much as to read the block."""

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
"""Number of the topic, position after which the page is, most events."""


class _Kept(NamedTuple):
    """A page, and until when it is valid."""

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
        self._blocks = Blocks(bus, settings)
        # Guards what is below, and is held while a page is made: streams that want the same wait
        # for it. Its holder may take the locks of the bus, never vice versa.
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
            page, is_full = self._read(topic, position, limit)
            if page.positions:
                # What came between the look at the bus and the read is newer than `tip`: it makes
                # the page no good, and costs one more read.
                self._keep(key, _Kept(page, losses, None if is_full else tip))
            return page

    def _read(self, topic: Topic, position: int, limit: int) -> tuple[Page, bool]:
        """A page, from blocks as far as there are; and whether it is full."""
        pieces: list[Piece] = []
        end, left, size = position, limit, self._settings.response_bytes
        while left and (piece := self._blocks.after(topic, end, left, size)):
            pieces.append(piece)
            end = piece.positions[-1]
            left -= len(piece.positions)
            size -= len(piece.wire)
        if left:
            events, tip = self._bus.read(topic, end, left)
            fitting = _fitting(events, size, bool(pieces))
            if fitting:
                pieces.append(self._piece(topic, fitting))
                end = fitting[-1].position
            if not pieces:
                return Page((), tip, {}, b""), False
            return _page(pieces, end), len(events) == left or len(fitting) < len(events)
        return _page(pieces, end), True

    def _piece(self, topic: Topic, events: Sequence[Event]) -> Piece:
        wire = self._blocks.encode(topic, events).SerializeToString()
        schemas = Counter([event.schema_id for event in events])
        return Piece([event.position for event in events], schemas, wire)

    def _keep(self, key: _Key, kept: _Kept) -> None:
        self._kept[key] = kept
        self._bytes += _size(kept.page)
        while self._bytes > _KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        self._bytes -= _size(self._kept.pop(key).page)


def _size(page: Page) -> int:
    return len(page.wire) + _PAGE_OVERHEAD_BYTES


def _page(pieces: Sequence[Piece], end: int) -> Page:
    """One page of what is in pieces."""
    if len(pieces) == 1:  # nearly always; nothing is copied
        return Page(pieces[0].positions, end, pieces[0].schemas, pieces[0].wire)
    schemas: Counter[str] = Counter()
    for piece in pieces:
        schemas.update(piece.schemas)
    positions = [position for piece in pieces for position in piece.positions]
    return Page(positions, end, schemas, b"".join(piece.wire for piece in pieces))


def _fitting(events: list[Event], size: int, may_be_none: bool) -> list[Event]:
    """The first events that fit into `size` bytes of a response; at least one, unless there are
    others before them."""
    used = 0
    for index, event in enumerate(events):
        used += len(event.payload) + _EVENT_OVERHEAD_BYTES
        if used > size and (index or may_be_none):
            return events[:index]
    return events
