"""Decode payloads with the compiled decoder, into columns of a raw table.

The compiled decoder creates no Python object per event. If it does not support a schema or payload,
the Python code in `sfpubsub.spark.raw.rows` decodes the events one by one instead. Invariant:
`decoded` returns either the same columns as the Python code, or None.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sfpubsub.avro.arrow import times_of
from sfpubsub.avro.arrow_types import TIME, shape_of
from sfpubsub.avro.arrow_values import MAX_PAYLOAD_BYTES
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec
from sfpubsub.client.batch import Event
from sfpubsub.errors import SchemaError
from sfpubsub.spark.raw.schema import CHANGE_HEADER

# Salesforce's names of the fields of `CHANGE_HEADER`, in the same order.
HEADER_FIELDS = (
    "entityName",
    "recordIds",
    "changeType",
    "changeOrigin",
    "transactionKey",
    "sequenceNumber",
    "commitTimestamp",
    "commitNumber",
    "commitUser",
)


@dataclass(frozen=True)
class Decoded:
    """Values decoded from the payloads of events, as columns of a raw table."""

    event_time: pa.Array
    payload_json: pa.Array
    change_header: pa.Array


def decoded(events: Sequence[Event]) -> Decoded | None:
    """Decode the payloads of events to columns.

    Return None if the compiled decoder does not support one of the schemas or payloads.
    """
    places: dict[str, list[int]] = {}
    for place, event in enumerate(events):
        places.setdefault(event.raw.schema_id, []).append(place)
    parts = []
    for mine in places.values():
        codec = events[mine[0]].codec.whole
        fact = _fact(codec) if codec.compiled is not None else None
        part = None
        if fact is not None:
            part = _decoded(codec, fact, [events[place].raw.payload for place in mine])
        if part is None:
            return None
        parts.append(part)
    if len(parts) < 2:
        return parts[0] if parts else None
    order = [place for mine in places.values() for place in mine]
    back = pa.array(sorted(range(len(order)), key=order.__getitem__), pa.int32())
    return Decoded(
        *(
            pa.concat_arrays([getattr(part, name) for part in parts]).take(back)
            for name in ("event_time", "payload_json", "change_header")
        )
    )


def _decoded(codec: Codec, fact: pa.Field, payloads: list[bytes]) -> Decoded | None:
    if sum(map(len, payloads)) > MAX_PAYLOAD_BYTES:
        return None
    message, left = codec.compiled.to_arrow_json(payloads, codec.fields.index(fact.name))
    if left:
        return None
    columns = pa.schema([("text", pa.string()), fact])
    texts, facts = pa.ipc.read_record_batch(pa.py_buffer(message), columns).columns
    if not codec.is_change_event:
        return Decoded(times_of(facts), texts, pa.nulls(len(facts), CHANGE_HEADER))
    parts = []
    for name, field in zip(HEADER_FIELDS, CHANGE_HEADER, strict=True):
        part = facts.field(name)
        if field.type == TIME:
            part = times_of(part)
        elif pa.types.is_list(field.type) and part.values.null_count:
            return None
        parts.append(part.cast(field.type))
    absent = facts.is_null() if facts.null_count else None
    header = pa.StructArray.from_arrays(parts, fields=list(CHANGE_HEADER), mask=absent)
    return Decoded(header.field("commit_timestamp"), texts, header)


def _fact(codec: Codec) -> pa.Field | None:
    return _fact_of(codec.schema_json, codec.is_change_event)


@functools.lru_cache(maxsize=512)  # the capacity of SchemaCache
def _fact_of(schema_json: str, is_change_event: bool) -> pa.Field | None:
    """Return the Arrow field of the header (change events) or of ``CreatedDate`` (other events).

    Return None if the schema cannot be converted to Arrow types or lacks the field, or if the field
    does not have the documented type.
    """
    name = CHANGE_EVENT_HEADER if is_change_event else "CreatedDate"
    try:
        kind = shape_of(schema_json).type
    except SchemaError:  # no Arrow equivalent, but payloads can still be decoded to JSON
        return None
    if kind.get_field_index(name) < 0:
        return None
    field = kind.field(name)
    if not is_change_event:
        return field if field.type == pa.int64() else None
    for part, target in zip(HEADER_FIELDS, CHANGE_HEADER, strict=True):
        place = field.type.get_field_index(part) if pa.types.is_struct(field.type) else -1
        if place < 0:
            return None
        given, wanted = field.type.field(place).type, target.type
        if given != (pa.int64() if wanted == TIME else wanted) and not (
            wanted == pa.int64() and given == pa.int32()
        ):
            return None
    return field
