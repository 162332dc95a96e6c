"""Convert events to rows of a raw table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME, TIME
from sfpubsub.client.batch import Event
from sfpubsub.errors import DecodeError
from sfpubsub.spark.raw.decoded import HEADER_FIELDS, Decoded, decoded
from sfpubsub.spark.raw.schema import CHANGE_HEADER, SCHEMA
from sfpubsub.types import ReplayId

# Number of rows converted to Arrow together. With fewer, the fixed cost of the columns (80 µs)
# matters; with more, the cost of garbage collection.
_PIECE = 1000


@runtime_checkable
class TimedEvents(Protocol):
    """The part of an `EventBatch` that `EventWriter.write` needs."""

    @property
    def received_at(self) -> float:
        """When the events were received, in seconds since the epoch."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)  # not frozen, because that would cost 1 µs more per event
class Row:
    """One event with the values read from its payload."""

    event: Event
    key: bytes
    """Dedupe key of the event; see `Event.dedupe_key`."""
    received_at: float
    event_time: int | None
    """When the event occurred, in milliseconds since the epoch; None if unknown."""
    payload_json: str | None
    change_header: Mapping[str, Any] | None = None
    """The decoded header of a change event; None for other events."""
    error: DecodeError | None = None
    """The error if the event could not be decoded; else None."""


def row_of(event: Event, received_at: float) -> Row:
    """Return the row of an event. If decoding fails, the row has an error instead of JSON."""
    key = event.dedupe_key
    try:
        time, header, text = event.facts_and_json()
    except DecodeError as error:
        return Row(event, key, received_at, None, None, error=error)
    return Row(event, key, received_at, time, text, header)


def arrow_table(rows: Sequence[Row], first_seq: int) -> pa.Table:
    """Convert rows to an Arrow table with the columns of `SCHEMA`.

    Args:
        rows: Rows in order of arrival.
        first_seq: ``ingest_seq`` of the first row.
    """
    found = Decoded(
        pa.array([_time(row.event_time) for row in rows], TIME),
        pa.array([row.payload_json for row in rows], pa.string()),
        _change_headers([row.change_header for row in rows]),
    )
    keys, times = [row.key for row in rows], [row.received_at for row in rows]
    return _table([row.event for row in rows], keys, times, first_seq, found)


def _table(
    events: Sequence[Event],
    keys: Sequence[bytes],
    received_at: Sequence[float],
    first_seq: int,
    payloads: Decoded,
) -> pa.Table:
    raws = [event.raw for event in events]
    columns = {
        "event_id": [raw.id for raw in raws],
        "dedupe_key": keys,
        "replay_id": [bytes(raw.replay_id) for raw in raws],
        "topic": [event.topic for event in events],
        "subscription": [event.subscription for event in events],
        "schema_id": [raw.schema_id for raw in raws],
        "event_name": [event.codec.name for event in events],
        "event_time": payloads.event_time,
        "received_at": [round(at * 1_000_000) for at in received_at],
        "ingest_seq": range(first_seq, first_seq + len(events)),
        "payload": [raw.payload for raw in raws],
        "payload_json": payloads.payload_json,
        "org_id": pa.nulls(len(events), pa.string()),  # added later by the writer
        "change_header": payloads.change_header,
        # If a name occurs twice, the last value wins, because a map contains each key once.
        "headers": [dict(raw.headers) if raw.headers else None for raw in raws],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def read_table(
    events: Sequence[Event], received_at: Sequence[float], first_seq: int
) -> tuple[pa.Table, list[tuple[int, Row]]]:
    """Decode events to an Arrow table with the columns of `SCHEMA`.

    Also return the rows that could not be decoded, each with its index in the table.
    """
    found = decoded(events)
    if found is not None:
        keys = [event.dedupe_key for event in events]
        return _table(events, keys, received_at, first_seq, found), []
    rows = list(map(row_of, events, received_at))
    bad = [(place, row) for place, row in enumerate(rows) if row.error is not None]
    return arrow_table(rows, first_seq), bad


def _change_headers(headers: Sequence[Mapping[str, Any] | None]) -> pa.Array:
    """Convert change event headers to an Arrow column. Values of undocumented types become null."""
    if all(header is None for header in headers):
        return pa.nulls(len(headers), CHANGE_HEADER)
    said = [header or {} for header in headers]
    parts = [
        pa.array([as_said(header.get(name)) for header in said], field.type)
        for field, name, as_said in zip(CHANGE_HEADER, HEADER_FIELDS, _AS_SAID, strict=True)
    ]
    absent = pa.array([header is None for header in headers])
    return pa.StructArray.from_arrays(parts, fields=list(CHANGE_HEADER), mask=absent)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if type(value) is int else None  # from Avro, so at most 64 bits


def _time(value: object) -> int | None:
    """Convert milliseconds to microseconds; return None if Spark cannot represent the time."""
    if not isinstance(value, int) or not FIRST_TIME <= value <= LAST_TIME:
        return None
    return value * 1000


def _texts(value: object) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return None
    return value


# Conversions of the values, in the order of `HEADER_FIELDS`.
_AS_SAID: tuple[Callable[[object], object], ...] = (
    _text,
    _texts,
    _text,
    _text,
    _text,
    _number,
    _time,
    _number,
    _text,
)


class EventRows:
    """Collects the rows of one write while events arrive. Not thread-safe.

    Rows are converted to Arrow in chunks, so that few Python objects stay alive until the write.
    Otherwise, a fifth of the time would be spent traversing the objects in garbage collection.
    """

    def __init__(self) -> None:
        self.undecodable: list[tuple[int, Row]] = []
        """The undecodable rows with their indexes; complete only after `table` was called."""
        self.schemas: dict[str, str] = {}
        """The schemas of all rows as JSON text, by id; the text is empty if it is unavailable or
        must not be stored.
        """
        self.position: ReplayId | None = None
        """Position to store with these events. `extend` sets it to that of the last event."""
        self.bytes: int = 0
        """Total size of the payloads, in bytes."""
        self.newest_event: float | None = None
        """Time of the newest event by its own timestamp, in seconds since the epoch; None if
        unknown. Complete only after `table` was called.
        """
        self._pieces: list[pa.Table] = []
        self._events: list[Event] = []
        self._received: list[float] = []
        self._count = 0

    def extend(self, events: Iterable[Event], received_at: float) -> None:
        """Add events.

        Args:
            events: The events, in order of arrival.
            received_at: When they were received, in seconds since the epoch.
        """
        for event in events:
            self._events.append(event)
            self.bytes += len(event.raw.payload)
            if event.raw.schema_id not in self.schemas:
                codec = event.codec
                self.schemas[codec.schema_id] = "" if codec.is_doubtful else codec.schema_json
        added = len(self._events) - len(self._received)
        self._received += [received_at] * added
        self._count += added
        if self._events:
            self.position = self._events[-1].replay_id
        if len(self._events) >= _PIECE:
            self._cut()

    def __len__(self) -> int:
        return self._count

    def table(self) -> pa.Table:
        """Return all rows as an Arrow table.

        Its ``ingest_seq`` is only a placeholder; see `sfpubsub.spark.raw.schema.renumbered`.
        """
        if self._events or not self._pieces:
            self._cut()
        return pa.concat_tables(self._pieces)

    def _cut(self) -> None:
        start = self._count - len(self._events)
        table, bad = read_table(self._events, self._received, 0)
        newest = pc.max(table["event_time"]).cast(pa.int64()).as_py()
        if newest is not None:
            self.newest_event = max(self.newest_event or 0.0, newest / 1_000_000)
        self._pieces.append(table)
        self.undecodable += [(start + place, row) for place, row in bad]
        self._events, self._received = [], []
