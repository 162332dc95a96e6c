"""The columns of a typed table: one event type's fields side by side, whatever version wrote them.

`columns_of` maps one Avro schema, `merge` adds those of another version, `decode_rows` decodes rows
of a raw table into them, on an executor. Needs neither Spark nor grpc. Invariants: columns are only
ever added, so that what was written stays readable; and every row comes out of `decode_rows` once.
Safe to use from several threads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME, TIME, Shape, shape_of
from sfpubsub.avro.arrow_values import MAX_PAYLOAD_BYTES, Rejects, values_of
from sfpubsub.avro.bitmaps import change_schema
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec, Times
from sfpubsub.errors import DecodeError, MissingExtraError, SchemaError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as missing:
    raise MissingExtraError("typed tables", "arrow") from missing

# What a typed row keeps of its raw one. Payload and JSON are in the columns now.
ENVELOPE = pa.schema(
    [
        ("event_id", pa.string()),
        ("dedupe_key", pa.binary()),
        ("replay_id", pa.binary()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("schema_id", pa.string()),
        ("event_time", TIME),
        ("received_at", TIME),
        ("ingest_seq", pa.int64()),
    ]
)

# What is said of a row that cannot be decoded; the payload is in the raw table.
UNDECODABLE = pa.schema([*ENVELOPE, ("event_name", pa.string()), ("reason", pa.string())])

# The reason of an event of the Streaming API. It cannot become decodable, so it is told apart from
# one whose schema nobody has yet.
_WITHOUT_SCHEMA = "the event is JSON and has no schema: read payload_json of the raw table"

# The raw table's columns that name the batch.
BATCH = pa.schema([("ingest_date", pa.date32()), ("batch", pa.string())])

# Header fields that list fields in bitmaps.
_BITMAPS = ("changedFields", "nulledFields", "diffFields")

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class _Column:
    """One column of one version of an event type."""

    name: str
    path: tuple[str, ...]
    """Where its value is in the decoded payload."""
    type: pa.DataType
    is_bitmap: bool = False
    """Whether it is a list of bitmaps, which becomes one of field names."""


def columns_of(schema_json: str) -> pa.Schema:
    """Return the columns that events of one Avro schema have, after those of the envelope.

    A change event's header is flattened: ``change_type``, ``record_ids``, and so on, and its
    bitmaps are lists of field names. Integers are 64 bits wide and floats double, so that a field
    that became wider has the column that it had. A union of several types is a struct. A field that
    the schema documents as ``DateTime`` is a timestamp. A field named like a column of ours gets an
    underscore.

    Raises:
        SchemaError: The schema is not a valid Avro record schema, or has no Arrow form.
    """
    return pa.schema([(column.name, column.type) for column in _columns(schema_json)])


@functools.lru_cache(maxsize=512)  # as many as SchemaCache keeps
def _columns(schema_json: str) -> tuple[_Column, ...]:
    shape = shape_of(schema_json)
    codec = Codec("", schema_json)
    times = dict(codec.times)
    taken = {name.lower() for name in (*UNDECODABLE.names, *BATCH.names)}
    found = []
    for name, child in zip(shape.type.names, shape.children, strict=True):
        if name == CHANGE_EVENT_HEADER and codec.is_change_event and child.kind == "record":
            for part, fact in zip(child.type.names, child.children, strict=True):
                is_time = part == "commitTimestamp" and _inside(fact).kind == "long"
                kind = TIME if is_time else _wide(fact, None)
                is_bitmap = part in _BITMAPS and kind == pa.list_(pa.string())
                place = _free(_snake(part), taken)
                found.append(_Column(place, (name, part), kind, is_bitmap))
        else:
            kind = _wide_field(child, times, name)
            found.append(_Column(_free(name, taken), (name,), kind))
    return tuple(found)


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


def _free(name: str, taken: set[str]) -> str:
    while name.lower() in taken:  # Spark does not tell names apart by case
        name += "_"
    taken.add(name.lower())
    return name


def _wide_field(shape: Shape, times: Mapping[str, Times | None], name: str) -> pa.DataType:
    kind = _inside(shape)
    if name in times and times[name] is None and kind.kind == "long":
        return TIME
    return _wide(shape, times.get(name))


def _inside(shape: Shape) -> Shape:
    return shape.children[0] if shape.kind == "optional" else shape


def _wide(shape: Shape, times: Times | None) -> pa.DataType:
    """Return the type of a column, which Parquet and Spark take and later versions fit into."""
    shape = _inside(shape)
    if shape.kind in ("record", "union"):
        # Of a union's records the schema does not say which one the times are in.
        known = dict(times or ()) if shape.kind == "record" else {}
        taken: set[str] = set()
        return pa.struct(
            [
                (_free(name, taken), _wide_field(child, known, name))
                for name, child in zip(shape.type.names, shape.children, strict=True)
            ]
        )
    if shape.kind == "array":
        return pa.list_(_wide(shape.children[0], None))
    if shape.kind == "map":
        return pa.map_(pa.string(), _wide(shape.children[0], None))
    return {
        "int": pa.int64(),
        "float": pa.float64(),
        "fixed": pa.binary(),
        "null": pa.string(),  # Parquet has no column of nothing
    }.get(shape.kind, shape.type)


def merge(columns: pa.Schema, more: pa.Schema) -> pa.Schema:
    """Return *columns* with those of *more* that it does not have, at the end.

    A field whose type changed beyond what its column can hold has a column of its own for the new
    type, named like ``Amount__string``. The same holds for fields within structs.
    """
    return pa.schema(_merged(list(columns), list(more)))


def _merged(fields: list[pa.Field], more: Iterable[pa.Field]) -> list[pa.Field]:
    places = {field.name.lower(): number for number, field in enumerate(fields)}
    taken: set[str] = set()  # by other fields of *more*
    for field in more:
        for name in _names(field):
            number = places.get(name.lower())
            if number is None:
                places[name.lower()] = len(fields)
                fields.append(pa.field(name, field.type))
                break
            both = _common(fields[number].type, field.type)
            if both is not None and name.lower() not in taken:
                fields[number] = pa.field(fields[number].name, both)
                break
        taken.add(name.lower())
    return fields


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both and can be read as *one*, or None."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(_merged(list(one), list(other)))
    if pa.types.is_list(one) and pa.types.is_list(other):
        both = _common(one.value_type, other.value_type)
        return None if both is None else pa.list_(both)
    if pa.types.is_map(one) and pa.types.is_map(other):
        both = _common(one.item_type, other.item_type)
        return None if both is None else pa.map_(pa.string(), both)
    return one if one == other else None


def _names(field: pa.Field) -> Iterator[str]:
    """Yield the names that a field's column may have; the first one that is free or fits is it."""
    yield field.name
    name = f"{field.name}__{_word(field.type)}"
    while True:
        yield name
        name += "_"


def _word(kind: pa.DataType) -> str:
    """Name a type as Spark SQL does, as far as a column's name can."""
    if pa.types.is_list(kind):
        return f"array_{_word(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"map_{_word(kind.item_type)}"
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {pa.int64(): "bigint", pa.bool_(): "boolean"}.get(kind, str(kind))


def _places(own: Iterable[pa.Field], fields: Iterable[pa.Field]) -> list[str]:
    """Return where `merge` has put the fields of one version, in lower case."""
    targets = {field.name.lower(): field.type for field in fields}
    found: list[str] = []
    for field in own:
        for name in map(str.lower, _names(field)):
            if name not in targets:
                raise SchemaError(f"the table has no column for {field.name} of type {field.type}")
            if name not in found and _common(targets[name], field.type) == targets[name]:
                found.append(name)
                break
    return found


def paths_of(schema_json: str, columns: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return where a table has the fields of one schema, and the parts of its compound ones.

    Args:
        schema_json: One of those that *columns* were merged of.
        columns: The table's.

    Returns:
        By field, and by ``Parent.Child`` as in a change event's lists: the column, and the names
        inside of it that lead to the value.
    """
    own = _columns(schema_json)
    places = _places([pa.field(column.name, column.type) for column in own], columns)
    targets = {field.name.lower(): field for field in columns}
    shapes = dict(zip((s := shape_of(schema_json)).type.names, s.children, strict=True))
    found: dict[str, tuple[str, ...]] = {}
    for column, place in zip(own, places, strict=True):
        if len(column.path) == 1:  # else it is of the header
            (name,), target = column.path, targets[place]
            found[name] = (target.name,)
            for part, path in _parts_of(shapes[name], column.type, target.type):
                found[f"{name}.{part}"] = (target.name, *path)
    return found


def _parts_of(
    shape: Shape, own: pa.DataType, target: pa.DataType
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of a compound value's parts, and where they are in the table's struct."""
    shape = _inside(shape)
    if shape.kind not in ("record", "union"):
        return
    names = {field.name.lower(): field for field in target}
    inner = [names[place] for place in _places(own, target)]
    for number, child in enumerate(shape.children):
        if shape.kind == "record":
            yield shape.type.field(number).name, (inner[number].name,)
        elif _inside(child).kind == "record":  # the first one, as in bitmaps
            for part, path in _parts_of(child, own.field(number).type, inner[number].type):
                yield part, (inner[number].name, *path)
            return


@dataclass(frozen=True)
class Plan:
    """How rows of one event type are decoded. Travels to executors."""

    schemas: Mapping[str, str]
    """Avro schemas as JSON text, by id: every one that the rows name and that there is."""
    columns: pa.Schema
    """The table's columns, after those of the envelope."""

    @property
    def output(self) -> pa.Schema:
        """What `decode_rows` yields of this event type."""
        return pa.schema([*ENVELOPE, *self.columns, *BATCH])


def decode_rows(
    rows: Iterable[pa.RecordBatch], plans: Mapping[str, Plan]
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Decode rows of a raw table, each into the columns of its event type.

    Args:
        rows: With the columns of `ENVELOPE` and `BATCH`, ``event_name`` and ``payload``; of any
            schema ids.
        plans: By the name of the event type.

    Yields:
        The name of an event type and a record batch of its `Plan.output`; or None, for rows whose
        schema is in no plan or whose payload does not fit it, and a record batch of `UNDECODABLE`
        and `BATCH`.
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
        own = _columns(schema_json)
        places = _places([pa.field(column.name, column.type) for column in own], columns)
        self._sources = dict(zip(places, own, strict=True))

    @staticmethod
    @functools.lru_cache(maxsize=512)
    def of(schema_id: str, schema_json: str, columns: pa.Schema) -> _Version:
        """Return the version of a schema, made once for a state of the table's columns."""
        return _Version(schema_id, schema_json, columns)

    def decode(self, payloads: Sequence[bytes]) -> tuple[list[pa.Array], Rejects]:
        """Return the table's columns for all good payloads, and why others are none."""
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
    """Return lists of field names for lists of bitmaps; add to *bad* those that mean nothing."""
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
    # The same few sets of fields come again and again: each becomes Arrow strings once.
    return pa.array(names, pa.list_(pa.string())).take(pa.array(rows, pa.int32()))


def _fitted(array: pa.Array, own: pa.DataType, target: pa.DataType) -> pa.Array:
    """Return *array* in the type of the table's column.

    Args:
        array: As decoded.
        own: The type that its own version's column has.
        target: The type of the table's column, which `merge` made of *own* and others.
    """
    if array.type == target:
        return array
    if pa.types.is_struct(target):
        sources = {place: number for number, place in enumerate(_places(own, target))}
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
    """Return where each list begins, null for a null one, and at last where the last one ends."""
    starts = pc.if_else(lists.is_null(), pa.scalar(None, pa.int32()), lists.offsets[:-1])
    return pa.concat_arrays([starts, lists.offsets[-1:]])
