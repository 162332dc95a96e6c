"""Events in the form in which they are sent: made when they are published, a hundred together, and
kept beside the log.

What makes the first read of an event slow is not the disk but the row, the objects and the message
of each; a block is one row for all of them. It says what the log says, and never instead: whatever
is in no block (the last events of a topic, those of an older data directory, large ones) is read
from the log. Invariant: a block has every event of its topic between two positions, none of them
forgotten; the store drops it with the first of them.
"""

from __future__ import annotations

import bisect
import struct
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sfpubsub.emulator.org.block_file import Block
from sfpubsub.emulator.org.bus import Bus, Topic
from sfpubsub.emulator.org.settings import Settings
from sfpubsub.emulator.org.store import Event
from sfpubsub_grpc import pubsub_api_pb2 as pb

EVENTS = 100
"""Of a block: what a stream can want at most, so that one that reads from the beginning gets whole
blocks."""

_ENCODING = 1
"""Version of what is in a block; those of another are deleted, as those of other settings are."""

_LARGEST_BYTES = 512 * 1024
"""Events that take more together, some 5 KiB each, are not worth the room on disk: there the bytes
take longer than the events."""

_UNKNOWN = sys.maxsize
"""Of the events that are in no block there may be any number."""

_NUMBERS = struct.Struct(f"={EVENTS}q{EVENTS}I{EVENTS}B")
"""What a block contains: positions; where in the wire form each event ends; which schema it has.
After them, a line each, how many events have a schema, and its id."""


class Piece(NamedTuple):
    """Events that follow one another, in their wire form.

    Attributes:
        positions: Of the events, in order.
        schemas: How many there are of each schema, by its id.
        wire: As a FetchResponse or a ManagedFetchResponse has them.
    """

    positions: Sequence[int]
    schemas: Mapping[str, int]
    wire: bytes


class Blocks:
    """The blocks of one bus. Thread-safe; makes them when events are published.

    Args:
        bus: Has the events.
        settings: How an event is encoded.
    """

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        # Guards what is below, and is held while blocks are made; before the locks of the bus.
        self._lock = threading.Lock()
        self._losses = -1
        # By number of the topic: where its blocks end, and how many events there are after that,
        # at most.
        self._ends: dict[int, tuple[int, int]] = {}
        changes = "with" if settings.change_event_ids else "without"
        bus.use_blocks(
            f"{_ENCODING}, {sys.byteorder}: ids of {settings.replay_id_bytes} bytes,"
            f" changes {changes} ids"
        )
        bus.on_append(self._appended)

    def encode(self, topic: Topic, events: Sequence[Event]) -> pb.FetchResponse:
        """The events of a topic as a response has them."""
        with_ids = self._with_ids(topic)
        mint = self._bus.ids.mint
        message = pb.FetchResponse()
        # Filled where they are, a field at a time, and events unpacked: made apart and copied into
        # the message they take three times as long.
        add = message.events.add
        for position, event_id, schema_id, payload in events:
            item = add()
            item.replay_id = mint(position)
            sent = item.event
            if with_ids:
                sent.id = event_id
            sent.schema_id = schema_id
            sent.payload = payload
        return message

    def after(self, topic: Topic, position: int, limit: int, size: int) -> Piece | None:
        """The next events of a topic as far as they are in one block, at most `limit` and `size`
        bytes of them; None if the next one is in no block or does not fit."""
        block = self._bus.block_after(topic, position)
        if block is None:
            return None
        counts = [line.split(" ") for line in block.contents[_NUMBERS.size :].decode().splitlines()]
        if position == block.behind and limit >= EVENTS and len(block.wire) <= size:
            # All of it, as it is for a reader from the beginning: nothing is inspected.
            positions = array("q", block.contents[: EVENTS * 8])
            return Piece(positions, {name: int(count) for count, name in counts}, block.wire)
        return _part(block, [name for _, name in counts], position, limit, size)

    # Inside.

    def _with_ids(self, topic: Topic) -> bool:
        return topic.name.startswith("/event/") or self._settings.change_event_ids

    def _appended(self, topic: Topic, added: int) -> None:
        """Make the blocks that are full now. A log without blocks, of an older version, gets some
        at each call, so that no call takes long."""
        if not topic.can_subscribe:
            return
        with self._lock:
            losses, _ = self._bus.standing()
            if losses != self._losses:
                self._losses, self._ends = losses, {}
            if topic.number in self._ends:
                end, waiting = self._ends[topic.number]
                waiting = min(_UNKNOWN, waiting + added)
            else:
                end, waiting = self._bus.end_of_blocks(topic), _UNKNOWN
            for _ in range(2 + added // EVENTS):
                if waiting < EVENTS:
                    break
                events, _ = self._bus.read(topic, end, EVENTS)
                if len(events) < EVENTS:
                    waiting = len(events)
                    break
                block = self._block(topic, end, events)
                if len(block.wire) <= _LARGEST_BYTES:
                    self._bus.put_block(topic, block, losses)
                end = block.last
                waiting = waiting if waiting == _UNKNOWN else waiting - EVENTS
            self._ends[topic.number] = end, waiting

    def _block(self, topic: Topic, behind: int, events: Sequence[Event]) -> Block:
        message = self.encode(topic, events)
        ends, end = [], 0
        for item in message.events:
            end += _framed(item.ByteSize())
            ends.append(end)
        counts = Counter(event.schema_id for event in events)
        names = list(counts)
        kinds = [names.index(event.schema_id) for event in events]
        positions = [event.position for event in events]
        lines = "\n".join(f"{count} {name}" for name, count in counts.items())
        contents = _NUMBERS.pack(*positions, *ends, *kinds) + lines.encode()
        return Block(behind, positions[-1], contents, message.SerializeToString())


def _part(block: Block, names: Sequence[str], position: int, limit: int, size: int) -> Piece | None:
    """Some events of a block."""
    numbers = _NUMBERS.unpack_from(block.contents)
    positions, ends = numbers[:EVENTS], numbers[EVENTS : 2 * EVENTS]
    first = bisect.bisect_right(positions, position)
    begin = ends[first - 1] if first else 0
    last = min(first + limit, bisect.bisect_right(ends, begin + size))
    if last <= first:
        return None
    kinds = Counter(numbers[2 * EVENTS + first : 2 * EVENTS + last])
    schemas = {names[kind]: count for kind, count in kinds.items()}
    return Piece(positions[first:last], schemas, block.wire[begin : ends[last - 1]])


def _framed(size: int) -> int:
    """Bytes of a part of a message, with its tag of one byte and its length in front."""
    return 1 + max(1, (size.bit_length() + 6) // 7) + size
