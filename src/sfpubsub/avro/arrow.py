"""Convert events to Arrow record batches: envelope columns, and the payload as a struct.

`EventBatch` objects are duck-typed, because this package does not depend on the client. The events
of one schema become one record batch (several if they are large), in order of arrival. Invariant:
every event is either in exactly one record batch or rejected. No I/O; thread-safe.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME, TIME, shape_of
from sfpubsub.avro.arrow_values import MAX_PAYLOAD_BYTES, values_of
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec, NoCodec
from sfpubsub.errors import ConfigurationError, DecodeError, MissingExtraError
from sfpubsub.native import is_installed
from sfpubsub.types import RawEvent, dedupe_key

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise MissingExtraError("converting events to Arrow", "arrow") from missing

EVENT_COLUMNS = pa.schema(
    [
        ("event_id", pa.string()),  # empty if the event has no id
        ("dedupe_key", pa.binary()),
        ("replay_id", pa.binary()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("schema_id", pa.string()),
        ("event_name", pa.string()),
        ("event_time", TIME),  # null if the event has no time, or one that Spark cannot represent
        ("received_at", TIME),
        ("delivery_seq", pa.int64()),  # number in order of arrival
        ("payload", pa.binary()),
    ]
)


class EncodedBatch(Protocol):
    """The part of `EventBatch` that `record_batches` uses."""

    @property
    def subscription(self) -> str:
        """The topic, or the managed subscription's name or id."""
        ...

    @property
    def topic(self) -> str | None:
        """The subscribed topic; None for a managed subscription."""
        ...

    @property
    def raw_events(self) -> tuple[RawEvent, ...]:
        """The events in order of arrival."""
        ...

    @property
    def first_seq(self) -> int:
        """``delivery_seq`` of the first event; the others are numbered consecutively."""
        ...

    @property
    def received_at(self) -> float:
        """When the batch was received, in seconds since the epoch."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by schema id, one for each schema of the events."""
        ...


@dataclass(frozen=True)
class Rejected:
    """An event that could not be decoded and is in no record batch."""

    index: int
    """Index among all events passed to `record_batches`, from 0."""
    delivery_seq: int
    """Number of the event in order of arrival; see `Event.delivery_seq`."""
    event: RawEvent
    """The event as received."""
    error: DecodeError
    """Why the event could not be decoded."""


@dataclass(frozen=True)
class ArrowEvents:
    """Result of `record_batches`. Iterating over it yields the record batches."""

    batches: tuple[pa.RecordBatch, ...]
    """One per schema, or several if its payloads exceed `MAX_PAYLOAD_BYTES`, in order of each
    schema's first event. A batch has no rows if all its events were rejected. There is no batch for
    an unavailable schema.
    """
    rejected: tuple[Rejected, ...]
    """The rejected events, in order of arrival."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)


def arrow_type(schema_json: str) -> pa.StructType:
    """Return the Arrow type of the column ``value`` for events of an Avro schema.

    Args:
        schema_json: The schema as JSON text.

    Raises:
        SchemaError: The schema is not a valid Avro record schema, or cannot be converted to Arrow
            types, for example because it is recursive or contains a record without fields.
    """
    return shape_of(schema_json).type


def record_batches(
    batches: EncodedBatch | Iterable[EncodedBatch], *, native: bool | None = None
) -> ArrowEvents:
    """Convert received events to Arrow record batches, each with the events of a single schema.

    Events that could not be decoded, or whose schema could not be fetched, are in
    `ArrowEvents.rejected`.

    Args:
        batches: An `EventBatch`, or several in order of arrival. Converting more events in one call
            costs less per event; about a thousand per call is a good size.
        native: Whether to use the compiled decoder. By default it is used if it is installed and
            supports the schema. With False it is never used. True is like the default, but the call
            raises if the decoder is not installed.

    Raises:
        SchemaError: A schema cannot be converted to Arrow types; see `arrow_type`.
        ConfigurationError: *native* is True and the decoder is not installed.
    """
    if native and not is_installed():
        raise ConfigurationError(
            "native=True needs the compiled decoder, which is not installed or is switched off: "
            "build it with scripts/native.sh, or leave native unset"
        )
    groups: dict[str, _Group] = {}
    index = 0
    for batch in _each(batches):
        for schema_id, offsets in _places_by_schema(batch.raw_events).items():
            group, codec = groups.get(schema_id), batch.codecs[schema_id]
            if group is None:
                group = groups[schema_id] = _Group(codec)
            elif isinstance(group.codec, NoCodec):
                group.codec = codec  # the schema may have become available
            group.add(batch, index, offsets)
        index += len(batch.raw_events)
    made: list[pa.RecordBatch] = []
    rejected: list[Rejected] = []
    for group in groups.values():
        for part in group.parts(MAX_PAYLOAD_BYTES):
            made += part.record_batch(rejected, native is not False)
    rejected.sort(key=lambda one: one.index)
    return ArrowEvents(tuple(made), tuple(rejected))


def _each(batches: EncodedBatch | Iterable[EncodedBatch]) -> Iterable[EncodedBatch]:
    # An EventBatch is iterable as well (over its events), so check for it first.
    if hasattr(batches, "raw_events"):
        return (cast("EncodedBatch", batches),)
    return batches


def _places_by_schema(raws: Sequence[RawEvent]) -> dict[str, Sequence[int]]:
    """Return the indexes of events by schema id, in order of each schema's first event."""
    ids = [raw.schema_id for raw in raws]
    if len(set(ids)) == 1:  # the usual case
        return {ids[0]: range(len(ids))}
    places: dict[str, list[int]] = {}
    for place, schema_id in enumerate(ids):
        places.setdefault(schema_id, []).append(place)
    return dict(places)


class _Group:
    """Collects the events of one schema, as columns of a record batch."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._raws: list[RawEvent] = []
        self._payloads: list[bytes] = []
        self._indexes: list[int] = []
        self._seqs: list[int] = []
        self._topics: list[str | None] = []
        self._subscriptions: list[str] = []
        self._received: list[int] = []

    def add(self, batch: EncodedBatch, index: int, offsets: Sequence[int]) -> None:
        """Add the events at *offsets* in *batch*.

        Args:
            batch: The batch that contains the events.
            index: Index of the batch's first event among all events passed to `record_batches`.
            offsets: Indexes of the events in the batch.
        """
        raws, count = batch.raw_events, len(offsets)
        if isinstance(offsets, range):  # all
            self._raws += raws
            self._indexes += range(index, index + count)
            self._seqs += range(batch.first_seq, batch.first_seq + count)
        else:
            self._raws += [raws[offset] for offset in offsets]
            self._indexes += [index + offset for offset in offsets]
            self._seqs += [batch.first_seq + offset for offset in offsets]
        self._payloads += [raw.payload for raw in self._raws[-count:]]
        self._topics += [batch.topic] * count
        self._subscriptions += [batch.subscription] * count
        self._received += [round(batch.received_at * 1_000_000)] * count

    def parts(self, max_bytes: int) -> Iterator[_Group]:
        """Split the events into groups of at most *max_bytes* of payload each.

        A single event that is larger gets a group to itself.
        """
        sizes = list(map(len, self._payloads))
        if sum(sizes) <= max_bytes:
            yield self
            return
        start = total = 0
        for number, size in enumerate(sizes):
            if number > start and total + size > max_bytes:
                yield self._pick(range(start, number))
                start, total = number, 0
            total += size
        yield self._pick(range(start, len(sizes)))

    def _pick(self, numbers: Iterable[int]) -> _Group:
        picked, numbers = _Group(self.codec), list(numbers)
        for name, column in vars(self).items():
            if isinstance(column, list):
                setattr(picked, name, [column[n] for n in numbers])
        return picked

    def record_batch(self, rejected: list[Rejected], native: bool) -> Iterator[pa.RecordBatch]:
        """Yield one record batch of the decodable events.

        If the schema is unavailable, all events are undecodable, and no record batch is yielded.

        Args:
            rejected: The list to which undecodable events are added.
            native: Whether the compiled decoder may be used.
        """
        codec = self.codec
        if isinstance(codec, NoCodec):
            self._reject(_refusals(codec, self._payloads), rejected)
            return
        values = values_of(codec.schema_id, codec.schema_json, native)
        value, bad = values.decode(self._payloads)
        if codec.wanted is not None:
            value = _chosen(value, codec.wanted)
        good = self
        if bad:
            self._reject(bad, rejected)
            good = self._pick(n for n in range(len(self._raws)) if n not in bad)
        columns = [*good._envelope(value), value]
        schema = EVENT_COLUMNS.append(pa.field("value", value.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _reject(self, errors: Mapping[int, DecodeError], rejected: list[Rejected]) -> None:
        for number, error in errors.items():
            raw, index, seq = self._raws[number], self._indexes[number], self._seqs[number]
            rejected.append(Rejected(index, seq, raw, error))

    def _envelope(self, value: pa.StructArray) -> Iterator[pa.Array]:
        raws, codec, topics = self._raws, self.codec, self._topics
        if None in topics:
            topics = [topic or codec.topic for topic in topics]
        columns: dict[str, list[Any]] = {
            "event_id": [raw.id for raw in raws],
            "dedupe_key": [dedupe_key(raw.id, raw.schema_id, raw.payload) for raw in raws],
            # Takes half the time of bytes(…).
            "replay_id": [raw.replay_id.__bytes__() for raw in raws],
            "topic": topics,
            "subscription": self._subscriptions,
            "schema_id": [codec.schema_id] * len(raws),
            "event_name": [codec.name] * len(raws),
            "received_at": self._received,
            "delivery_seq": self._seqs,
            "payload": self._payloads,
        }
        for field in EVENT_COLUMNS:
            if field.name == "event_time":
                yield _event_time(codec, value)
            else:
                yield _column(columns[field.name], field.type)


def _chosen(value: pa.StructArray, wanted: Collection[str]) -> pa.StructArray:
    """Return a struct array with only the wanted fields of *value*."""
    fields = [field for field in value.type if field.name in wanted]
    if not fields:  # without fields, from_arrays would return an array of length 0
        return pa.array([{}] * len(value), pa.struct([]))
    return pa.StructArray.from_arrays([value.field(field.name) for field in fields], fields=fields)


def _refusals(codec: NoCodec, payloads: Sequence[bytes]) -> dict[int, DecodeError]:
    found = {}
    for number, payload in enumerate(payloads):
        try:
            codec.decode(payload)
        except DecodeError as error:
            found[number] = error
    return found


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    # For a small event the envelope costs more than the payload. Most columns hold a single value
    # many times, and integers can be copied without checking each one.
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], type_), len(values))
    if type_ in (pa.int64(), TIME):
        buffer = pa.py_buffer(array("q", values))
        return pa.Array.from_buffers(type_, len(values), [None, buffer])
    return pa.array(values, type_)


def _event_time(codec: Codec, value: pa.StructArray) -> pa.Array:
    """Return the time of each event (see `Codec.event_time`) as a timestamp; null if unknown."""
    path = [CHANGE_EVENT_HEADER, "commitTimestamp"] if codec.is_change_event else ["CreatedDate"]
    type_ = value.type
    for name in path:
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            return pa.nulls(len(value), TIME)
        type_ = type_.field(name).type
    if not pa.types.is_integer(type_):
        return pa.nulls(len(value), TIME)
    return times_of(pc.struct_field(value, path).cast(pa.int64()))


def times_of(milliseconds: pa.Array) -> pa.Array:
    """Convert milliseconds since the epoch to timestamps.

    Times that Spark cannot represent become null.
    """
    ends = pc.min_max(milliseconds)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and (first < FIRST_TIME or last > LAST_TIME):
        held = pc.and_(
            pc.greater_equal(milliseconds, FIRST_TIME), pc.less_equal(milliseconds, LAST_TIME)
        )
        milliseconds = pc.if_else(held, milliseconds, pa.scalar(None, pa.int64()))
    return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(TIME)
