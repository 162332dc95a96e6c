"""Blocks: groups of 100 consecutive events of a topic, stored as they are encoded in a response.

Reading events from the log is slow mainly because a row, several objects and a protobuf message
are created for each event, not because of the disk. A block, which is created when its events are
published, is a single row for 100 events. Blocks duplicate the log and never replace it: events
that are not in a block (the last events of a topic, large events, events of an older data
directory) are read from the log.

Invariant: a block that is read contains every event of its topic between two positions, and none of
these events has expired. When the first of them expires, the store deletes the block.
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
"""Number of events in a block. By default a stream can have at most the same number of requested
events, so a stream that reads from the beginning gets whole blocks.
"""

_ENCODING = 1
"""Version of the block format. Blocks of another version, and blocks written with different
settings, are deleted.
"""

_LARGEST_BYTES = 512 * 1024
"""Larger blocks (more than about 5 KiB per event) are not stored: copying their bytes takes longer
than encoding the events, so storing them is not worth the disk space.
"""

_UNKNOWN = sys.maxsize
"""Used as the number of events after a topic's last block while this number is not known."""

_NUMBERS = struct.Struct(f"={EVENTS}q{EVENTS}I{EVENTS}B")
"""The fixed part of a block: the position of each event, the offset at which the event ends in the
encoded bytes, and the index of its schema. After the fixed part there is one line per schema, with
the number of its events and the schema id.
"""


class Piece(NamedTuple):
    """Consecutive events of a topic, encoded for sending.

    Attributes:
        positions: Positions of the events, in order.
        schemas: Number of events by schema id.
        wire: The events, encoded as in a FetchResponse or ManagedFetchResponse.
    """

    positions: Sequence[int]
    schemas: Mapping[str, int]
    wire: bytes


class Blocks:
    """Creates and reads the blocks of one bus; blocks are created when events are published.
    Thread-safe.

    Args:
        bus: The bus whose events are encoded.
        settings: Settings that determine how an event is encoded.
    """

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        # Guards the attributes below and is held while blocks are created. Acquire it before the
        # bus's locks.
        self._lock = threading.Lock()
        self._losses = -1
        # By topic number: the position where the topic's blocks end, and an upper bound on the
        # number of its events after that position.
        self._ends: dict[int, tuple[int, int]] = {}
        changes = "with" if settings.change_event_ids else "without"
        bus.use_blocks(
            f"{_ENCODING}, {sys.byteorder}: ids of {settings.replay_id_bytes} bytes,"
            f" changes {changes} ids"
        )
        bus.on_append(self._appended)

    def encode(self, topic: Topic, events: Sequence[Event]) -> pb.FetchResponse:
        """Return a response that contains the given events of a topic."""
        with_ids = self._with_ids(topic)
        mint = self._bus.ids.mint
        message = pb.FetchResponse()
        # Set the fields of each message in place: building the messages first and copying them in
        # takes three times as long.
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
        """Return the next events of a topic after *position*, from a single block.

        Args:
            topic: The topic to read.
            position: The position after which to read.
            limit: Maximum number of events.
            size: Maximum size of the encoded events, in bytes.

        Returns:
            The events, or None if the first one is not in a block or is larger than *size*.
        """
        block = self._bus.block_after(topic, position)
        if block is None:
            return None
        counts = [line.split(" ") for line in block.contents[_NUMBERS.size :].decode().splitlines()]
        if position == block.behind and limit >= EVENTS and len(block.wire) <= size:
            # The whole block is needed, so its events need not be inspected.
            positions = array("q", block.contents[: EVENTS * 8])
            return Piece(positions, {name: int(count) for count, name in counts}, block.wire)
        return _part(block, [name for _, name in counts], position, limit, size)

    # Internal.

    def _with_ids(self, topic: Topic) -> bool:
        return topic.name.startswith("/event/") or self._settings.change_event_ids

    def _appended(self, topic: Topic, added: int) -> None:
        """Create the blocks that are now full. If a large part of the log has no blocks yet, as
        with a data directory of an older version, each call creates only a few of them, so that no
        call takes long.
        """
        if not topic.can_subscribe:
            return
        with self._lock:
            losses, _ = self._bus.revision()
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
    """Return a block's first events after *position*: at most *limit* events and *size* bytes.
    Return None if not a single event fits.
    """
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
    """Return the encoded size in bytes of an embedded message of *size* bytes, including its
    one-byte tag and its length prefix.
    """
    return 1 + max(1, (size.bit_length() + 6) // 7) + size
