"""Pages: encoded responses, built once and shared by all streams at the same position.

A stream is fast because its next page is built while its client is still processing the previous
one. Many streams are cheap because streams that wait for the same event share a page.

A page contains events of one topic after one position. It stays valid until the bus deletes or
renumbers events; a page that is not full also becomes invalid when the bus receives a newer event.
Events themselves never change.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sfpubsub.emulator.grpc.blocks import EVENTS, Blocks, Piece
from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event

_KEPT_BYTES = 6 * 1024 * 1024
"""Memory for cached pages, in bytes; about 20,000 small events. This is enough for streams that
read in parallel and for the pages prepared ahead. A larger cache slows down a long first read:
until the cache is full, each page is written to new memory, which for change events costs as much
as reading the block.
"""

_PAGE_OVERHEAD_BYTES = 4096
"""Memory of a page in bytes, in addition to its encoded events: 100 positions of 32 bytes each, and
their containers.
"""

_EVENT_OVERHEAD_BYTES = 128
"""Estimated size of an event in a response in bytes, in addition to its payload: the ids and the
framing of three nested messages.
"""


class Page(NamedTuple):
    """The events in one response.

    Attributes:
        positions: Positions of the events, in order; empty if the reader is up to date.
        end: The reader's position after this page.
        schemas: Number of events by schema id.
        wire: The events, encoded as in a FetchResponse or ManagedFetchResponse. Encoded protobuf
            messages can be concatenated, so the response's other fields are simply appended.
    """

    positions: Sequence[int]
    end: int
    schemas: Mapping[str, int]
    wire: bytes


NO_EVENTS = Page((), 0, {}, b"")
"""The page of a response without events."""

_Key = tuple[int, int, int]
"""Topic number, position after which the page starts, maximum number of events."""


class _Kept(NamedTuple):
    """A cached page, and the state of the bus for which it is valid."""

    page: Page
    losses: int
    tip: int | None  # None if the page is full


class Pages:
    """Builds and caches the pages of one bus. Thread-safe.

    Args:
        bus: The bus whose events are encoded.
        settings: Settings for the size of a response and the ids of change events.
    """

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self._blocks = Blocks(bus, settings)
        # Guards the attributes below and is held while a page is built, so that other streams that
        # need the same page wait for it. Acquire it before the bus's locks.
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()  # least recently used first
        self._bytes = 0

    def after(self, topic: Topic, position: int, limit: int) -> Page:
        """Return a page with the next events of a topic after *position*: at most *limit*, and no
        more than fit into one response. The page is empty if there are no such events.
        """
        key = topic.number, position, limit
        with self._lock:
            losses, tip = self._bus.revision()
            found = self._kept.get(key)
            if found is not None:
                if found.losses == losses and found.tip in (None, tip):
                    self._kept.move_to_end(key)
                    return found.page
                self._drop(key)
            page, is_full = self._read(topic, position, limit)
            if page.positions:
                # An event published between `revision` and the read is newer than `tip`: it
                # invalidates the page, which costs one more read.
                self._keep(key, _Kept(page, losses, None if is_full else tip))
            return page

    def without(
        self, hidden: Callable[[Event], bool], topic: Topic, position: int, limit: int
    ) -> Page:
        """Return a page as `after` does, but without the events for which *hidden* is true. Such a
        page is built anew each time. If it is empty, it ends after the events that were left out.
        """
        found: list[Event] = []
        end, more = position, True
        while more and len(found) < limit:
            events, end = self._bus.read(topic, end, EVENTS)
            found += [event for event in events if not hidden(event)]
            more = bool(events)  # the last read, without events, leads to the org's tip
        found = _fitting(found[:limit], self._settings.response_bytes, False)
        if not found:
            return Page((), end, {}, b"")
        return _page([self._piece(topic, found)], found[-1].position)

    def _read(self, topic: Topic, position: int, limit: int) -> tuple[Page, bool]:
        """Return a page, and whether it is full. No later event can be added to a full page. Events
        are read from blocks where blocks exist.
        """
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
    """Combine *pieces* (encoded events, in order) into a page that ends at the position *end*."""
    if len(pieces) == 1:  # the usual case: no copy needed
        return Page(pieces[0].positions, end, pieces[0].schemas, pieces[0].wire)
    schemas: Counter[str] = Counter()
    for piece in pieces:
        schemas.update(piece.schemas)
    positions = [position for piece in pieces for position in piece.positions]
    return Page(positions, end, schemas, b"".join(piece.wire for piece in pieces))


def _fitting(events: list[Event], size: int, may_be_none: bool) -> list[Event]:
    """Return the leading events that fit into *size* bytes of a response. Unless *may_be_none* is
    true, the first event is returned even if it does not fit.
    """
    used = 0
    for index, event in enumerate(events):
        used += len(event.payload) + _EVENT_OVERHEAD_BYTES
        if used > size and (index or may_be_none):
            return events[:index]
    return events
