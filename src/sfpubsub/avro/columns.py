"""Columns of a typed table: the fields of one event type, across all its schema versions.

`columns_of` derives columns from one Avro schema, `merge` adds the columns of another version, and
`typed_rows` decodes rows into them. No Spark or grpc is needed. Invariant: columns are only ever
added, so that existing data stays readable. Thread-safe.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sfpubsub.avro.arrow_types import TIME, Shape, shape_of
from sfpubsub.avro.codec import CHANGE_EVENT_HEADER, Codec
from sfpubsub.avro.field_kinds import Times
from sfpubsub.errors import MissingExtraError, SchemaError

try:
    import pyarrow as pa
except ImportError as missing:
    raise MissingExtraError("decoding into a typed table", "arrow") from missing

# Columns that a typed row keeps from its raw row. Payload and JSON are decoded into the other
# columns.
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

# Columns for a row that cannot be decoded; its payload is in the raw table.
UNDECODABLE = pa.schema([*ENVELOPE, ("event_name", pa.string()), ("reason", pa.string())])

# The raw table's columns that identify the batch.
BATCH = pa.schema([("ingest_date", pa.date32()), ("batch", pa.string())])

# Header fields that contain bitmaps of fields.
_BITMAPS = ("changedFields", "nulledFields", "diffFields")

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Column:
    """A table column, as derived from a field in one version of the schema."""

    name: str
    path: tuple[str, ...]
    """Names of the nested fields of the decoded payload, from the top level to the value."""
    type: pa.DataType
    is_bitmap: bool = False
    """Whether the value is a list of bitmaps, which must be expanded to a list of field names."""


def columns_of(schema_json: str) -> pa.Schema:
    """Return the columns for events of one Avro schema, without those of `ENVELOPE`.

    A change event's header is flattened (``change_type``, ``record_ids``, and so on), and its
    bitmaps become lists of field names. Integers are 64 bits wide and floats are doubles, so that a
    field that was widened keeps its column. A union of several types becomes a struct. A field that
    the schema documents as ``DateTime`` becomes a timestamp. If a field has the name of an envelope
    column, its column gets a trailing underscore.

    Raises:
        SchemaError: The schema is not a valid Avro record schema, or cannot be converted to Arrow
            types.
    """
    return pa.schema([(column.name, column.type) for column in version_columns(schema_json)])


@functools.lru_cache(maxsize=512)  # the same number as SchemaCache keeps
def version_columns(schema_json: str) -> tuple[Column, ...]:
    """Return the columns of one Avro schema, in the order of its fields. The result is cached."""
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
                found.append(Column(place, (name, part), kind, is_bitmap))
        else:
            kind = _wide_field(child, times, name)
            found.append(Column(_free(name, taken), (name,), kind))
    return tuple(found)


def _snake(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


def _free(name: str, taken: set[str]) -> str:
    while name.lower() in taken:  # Spark ignores the case of names
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
    """Return the type of the column for a field: one that Parquet and Spark support.

    Numbers are widened to 64 bits, because a later version of the schema may widen the field.
    """
    shape = _inside(shape)
    if shape.kind in ("record", "union"):
        # For a union of records, it is unknown which record the times belong to.
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
        "null": pa.string(),  # Parquet has no null-only columns
    }.get(shape.kind, shape.type)


def merge(columns: pa.Schema, more: pa.Schema) -> pa.Schema:
    """Return *columns*, followed by those columns of *more* that *columns* lacks.

    If a field's new type does not fit its column, the new type gets a separate column, named like
    ``Amount__string``. The same applies to fields within structs.
    """
    return pa.schema(_merged(list(columns), list(more)))


def _merged(fields: list[pa.Field], more: Iterable[pa.Field]) -> list[pa.Field]:
    places = {field.name.lower(): number for number, field in enumerate(fields)}
    taken: set[str] = set()  # columns already used by other fields of *more*
    for field in more:
        for name in names_of(field):
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
    """Return the type for a column that stores values of *one* and *other*; None if no type fits.

    The result is *one*, possibly with more struct fields, so that existing data of that type stays
    readable.
    """
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(_merged(list(one), list(other)))
    if pa.types.is_list(one) and pa.types.is_list(other):
        both = _common(one.value_type, other.value_type)
        return None if both is None else pa.list_(both)
    if pa.types.is_map(one) and pa.types.is_map(other):
        both = _common(one.item_type, other.item_type)
        return None if both is None else pa.map_(pa.string(), both)
    return one if one == other else None


def names_of(field: pa.Field) -> Iterator[str]:
    """Yield candidate names for a field's column. The iterator never ends.

    The caller uses the first name that is not taken, or whose column has a suitable type.
    """
    yield field.name
    name = f"{field.name}__{type_word(field.type)}"
    while True:
        yield name
        name += "_"


def type_word(kind: pa.DataType) -> str:
    """Return a name for a type, similar to Spark SQL's, that is valid as part of a column name."""
    if pa.types.is_list(kind):
        return f"array_{type_word(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"map_{type_word(kind.item_type)}"
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal_{kind.precision}_{kind.scale}"
    if pa.types.is_date(kind):
        return "date"
    return {pa.int64(): "bigint", pa.bool_(): "boolean"}.get(kind, str(kind))


def places_of(own: Iterable[pa.Field], fields: Iterable[pa.Field]) -> list[str]:
    """Return the columns to which `merge` assigned the fields of one schema version.

    Args:
        own: The fields of the version.
        fields: The table's columns, or the fields of a struct in it.

    Returns:
        The lower-case name of each field's column, in the order of *own*.

    Raises:
        SchemaError: A field has no column: its version was not merged into *fields*.
    """
    targets = {field.name.lower(): field.type for field in fields}
    found: list[str] = []
    for field in own:
        for name in map(str.lower, names_of(field)):
            if name not in targets:
                raise SchemaError(
                    f"the table has no column for field {field.name} of type {field.type}: merge "
                    f"the columns of this schema version into the table's columns first"
                )
            if name not in found and _common(targets[name], field.type) == targets[name]:
                found.append(name)
                break
    return found


def paths_of(schema_json: str, columns: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return where a table stores the fields of a schema and the components of compound fields.

    Args:
        schema_json: One of the schemas that were merged into *columns*.
        columns: The table's columns.

    Returns:
        A dict from the name of each field or component to its path. A component is named
        ``Parent.Child``, as in the field lists of change events. A path is the name of a column,
        followed by the names of the nested fields down to the value.
    """
    own = version_columns(schema_json)
    places = places_of([pa.field(column.name, column.type) for column in own], columns)
    targets = {field.name.lower(): field for field in columns}
    shapes = dict(zip((s := shape_of(schema_json)).type.names, s.children, strict=True))
    found: dict[str, tuple[str, ...]] = {}
    for column, place in zip(own, places, strict=True):
        if len(column.path) == 1:  # otherwise it belongs to the header
            (name,), target = column.path, targets[place]
            found[name] = (target.name,)
            for part, path in _parts_of(shapes[name], column.type, target.type):
                found[f"{name}.{part}"] = (target.name, *path)
    return found


def _parts_of(
    shape: Shape, own: pa.DataType, target: pa.DataType
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each component of a compound field: its name, and its path in the table's struct."""
    shape = _inside(shape)
    if shape.kind not in ("record", "union"):
        return
    names = {field.name.lower(): field for field in target}
    inner = [names[place] for place in places_of(own, target)]
    for number, child in enumerate(shape.children):
        if shape.kind == "record":
            yield shape.type.field(number).name, (inner[number].name,)
        elif _inside(child).kind == "record":  # the first record, as in bitmaps
            for part, path in _parts_of(child, own.field(number).type, inner[number].type):
                yield part, (inner[number].name, *path)
            return
