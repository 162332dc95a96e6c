"""Decode rows of a raw table into the columns of typed tables.

This runs on Spark executors, but imports neither pyspark nor grpc. Invariant: `decode_rows` yields
every row exactly once. Thread-safe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME
from sfpubsub.avro.arrow_values import MAX_PAYLOAD_BYTES, Rejects, values_of
from sfpubsub.avro.bitmaps import change_schema
from sfpubsub.avro.columns import BATCH, ENVELOPE, UNDECODABLE, places_of, version_columns
from sfpubsub.errors import DecodeError, MissingExtraError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise MissingExtraError("decoding into a typed table", "arrow") from missing

# The reason for an event of the Streaming API. Such an event can never be decoded, in contrast to
# one whose schema is temporarily unavailable.
_WITHOUT_SCHEMA = "the event is JSON and has no schema: read payload_json of the raw table"


@dataclass(frozen=True)
class Plan:
    """The schemas and columns for decoding the rows of one event type. Sent to Spark executors."""

    schemas: Mapping[str, str]
    """Avro schemas as JSON text, by id: all available schemas that the rows refer to."""
    columns: pa.Schema
    """The table's columns after those of the envelope."""

    @property
    def output(self) -> pa.Schema:
        """The schema of the record batches that `decode_rows` yields for this event type."""
        return pa.schema([*ENVELOPE, *self.columns, *BATCH])


def decode_rows(
    rows: Iterable[pa.RecordBatch], plans: Mapping[str, Plan]
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Decode rows of a raw table, each into the columns of its event type.

    Args:
        rows: Record batches with the columns of `ENVELOPE` and `BATCH`, ``event_name`` and
            ``payload``; schema ids may be mixed.
        plans: The plans by event type name.

    Yields:
        The name of an event type, and a record batch with the columns of its `Plan.output`. Rows
        whose schema is in no plan, or whose payload does not match its schema, are yielded with
        None as the name, in a record batch with the columns of `UNDECODABLE` and `BATCH`.
    """
    known = {schema_id: name for name, plan in plans.items() for schema_id in plan.schemas}
    for schema_id, part in _parts_by_schema(rows):
        name = known.get(schema_id)
        if name is None:
            reason = f"schema {schema_id} is not known" if schema_id else _WITHOUT_SCHEMA
            yield None, _undecodable(part, dict.fromkeys(range(len(part)), reason))
            continue
        plan = plans[name]
        version = _Version.of(schema_id, plan.schemas[schema_id], plan.columns)
        columns, rejected = version.decode(part.column("payload").to_pylist())
        kept = _without(part, rejected)
        if len(kept):
            envelope = [kept.column(field) for field in ENVELOPE.names]
            batch = [kept.column(field) for field in BATCH.names]
            arrays = [*envelope, *columns, *batch]
            yield name, pa.RecordBatch.from_arrays(arrays, schema=plan.output)
        if rejected:
            reasons = {number: str(rejected[number]) for number in sorted(rejected)}
            yield None, _undecodable(part, reasons)


def _undecodable(rows: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    taken = rows.take(pa.array(reasons, pa.int64()))
    columns = [taken.column(name) for name in (*ENVELOPE.names, "event_name")]
    columns.append(pa.array(reasons.values(), pa.string()))
    columns += [taken.column(name) for name in BATCH.names]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*UNDECODABLE, *BATCH]))


def _parts_by_schema(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in rows:
        for schema_id in batch.column("schema_id").unique().to_pylist():
            mine = batch.filter(pc.equal(batch.column("schema_id"), schema_id))
            yield from ((schema_id, part) for part in _parts(mine))


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    size = pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0
    if size <= MAX_PAYLOAD_BYTES or len(rows) == 1:
        yield rows
        return
    middle = len(rows) // 2
    yield from _parts(rows.slice(0, middle))
    yield from _parts(rows.slice(middle))


def _without(rows: pa.RecordBatch, rejected: Rejects) -> pa.RecordBatch:
    if not rejected:
        return rows
    return rows.take(pa.array([n for n in range(len(rows)) if n not in rejected], pa.int64()))


class _Version:
    """Decodes the payloads of one schema into the columns of its event type."""

    def __init__(self, schema_id: str, schema_json: str, columns: pa.Schema) -> None:
        self._values = values_of(schema_id, schema_json, native=True)
        self._expand = change_schema(schema_id, schema_json).expand
        self._columns = columns
        own = version_columns(schema_json)
        places = places_of([pa.field(column.name, column.type) for column in own], columns)
        self._sources = dict(zip(places, own, strict=True))

    @staticmethod
    @functools.lru_cache(maxsize=512)
    def of(schema_id: str, schema_json: str, columns: pa.Schema) -> _Version:
        """Return the decoder for a schema and the table's columns, from a cache if possible."""
        return _Version(schema_id, schema_json, columns)

    def decode(self, payloads: Sequence[bytes]) -> tuple[list[pa.Array], Rejects]:
        """Return the table's columns for all decodable payloads, and the errors of the others.

        The errors are a dict with the indexes of the payloads as keys.
        """
        value, rejected = self._values.decode(payloads)
        numbers = [n for n in range(len(payloads)) if n not in rejected]
        found: dict[str, pa.Array] = {}
        bad: Rejects = {}
        for place, column in self._sources.items():
            array = value
            for name in column.path:
                array = pc.struct_field(array, name)
            if column.is_bitmap:
                array = _expanded(array, self._expand, bad)
            found[place] = array
        if bad:
            kept = pa.array([n for n in range(len(value)) if n not in bad], pa.int64())
            found = {place: array.take(kept) for place, array in found.items()}
            rejected.update((numbers[n], error) for n, error in bad.items())
        count = len(value) - len(bad)
        return [self._column(field, found, count) for field in self._columns], rejected

    def _column(self, field: pa.Field, found: dict[str, pa.Array], count: int) -> pa.Array:
        place = field.name.lower()
        if place not in found:
            return pa.nulls(count, field.type)
        return _fitted(found[place], self._sources[place].type, field.type)


def _expanded(
    lists: pa.ListArray, expand: Callable[[Sequence[str]], tuple[str, ...]], bad: Rejects
) -> pa.Array:
    """Expand lists of bitmaps to lists of field names.

    If a list is not valid, the error is stored in *bad*, with the index of the list as the key.
    """
    rows: list[int | None] = []
    known: dict[tuple[str, ...], int] = {}
    names: list[tuple[str, ...]] = []
    for number, entries in enumerate(lists.to_pylist()):
        row = None if entries is None else known.get(key := tuple(entries))
        if row is None and entries is not None:
            try:
                names.append(expand(entries))
                row = known[key] = len(names) - 1
            except DecodeError as error:
                bad[number] = error
        rows.append(row)
    # The same few sets of fields occur repeatedly, so each is converted to Arrow strings only once.
    return pa.array(names, pa.list_(pa.string())).take(pa.array(rows, pa.int32()))


def _fitted(array: pa.Array, own: pa.DataType, target: pa.DataType) -> pa.Array:
    """Convert *array* to the type of the table's column. Times outside Spark's range become null.

    Args:
        array: The decoded values.
        own: The type of the column, as derived from the schema of the values.
        target: The type of the table's column: the result of merging *own* with the column's types
            in other schema versions (`merge`).
    """
    if array.type == target:
        return array
    if pa.types.is_struct(target):
        sources = {place: number for number, place in enumerate(places_of(own, target))}
        children = []
        for field in target:
            number = sources.get(field.name.lower())
            if number is None:
                children.append(pa.nulls(len(array), field.type))
            else:
                child = array.field(number)
                children.append(_fitted(child, own.field(number).type, field.type))
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    if pa.types.is_list(target):
        values = _fitted(array.values, own.value_type, target.value_type)
        return pa.ListArray.from_arrays(_offsets(array), values, type=target)
    if pa.types.is_map(target):
        items = _fitted(array.items, own.item_type, target.item_type)
        return pa.MapArray.from_arrays(_offsets(array), array.keys, items).cast(target)
    if pa.types.is_timestamp(target):
        first, last = pa.scalar(FIRST_TIME, pa.int64()), pa.scalar(LAST_TIME, pa.int64())
        held = pc.and_(pc.greater_equal(array, first), pc.less_equal(array, last))
        milliseconds = pc.if_else(held, array, pa.scalar(None, pa.int64()))
        return milliseconds.view(pa.timestamp("ms", tz="UTC")).cast(target)
    return array.cast(target)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return the start offset of each list (null for a null list) and the end of the last list."""
    starts = pc.if_else(lists.is_null(), pa.scalar(None, pa.int32()), lists.offsets[:-1])
    return pa.concat_arrays([starts, lists.offsets[-1:]])
