"""Map Avro schemas to Arrow types.

`shape_of` is a pure function of the schema and does not read payloads. The resulting Arrow type has
no unions, and all its fields are nullable, so Parquet and Spark support it. The exception is a
field of type null: it has Arrow's null type, which `sfpubsub.avro.columns` replaces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sfpubsub.errors import MissingExtraError, SchemaError

try:
    import pyarrow as pa
except ImportError as missing:
    raise MissingExtraError("converting events to Arrow", "arrow") from missing

# The type includes the zone UTC: Spark shifts a timestamp without a zone by the session's zone.
TIME = pa.timestamp("us", tz="UTC")

# Milliseconds since 1970 of 0001-01-01 and of the end of 9999: the range of Spark's TIMESTAMP.
FIRST_TIME = -62_135_596_800_000
LAST_TIME = 253_402_300_799_999

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

NAMED = ("record", "error", "enum", "fixed")

# Maximum number of types in a schema after every reference to a named type is expanded. A chain of
# records that each refer twice to the previous one doubles the number at every step, so even a
# small schema can become huge.
MAX_TYPES = 20_000

AvroSchema: TypeAlias = Any  # as parsed from JSON


@dataclass(frozen=True)
class Shape:
    """One type of an Avro schema, and the Arrow type derived from it."""

    kind: str
    """Name of the Avro type, or ``optional`` for a union of null and one other type."""
    type: pa.DataType
    """The Arrow type. All its fields are nullable, so that versions of a schema can be merged."""
    dicts: AvroSchema
    """An Avro schema with the same encoding, whose decoded Python values pyarrow can convert to
    `type`. In it, each branch of a union is a record with one field, and a map is an array of
    records; neither changes the encoding.
    """
    children: tuple[Shape, ...] = ()
    """The fields of a record, the items of an array, the values of a map, or the members of a union
    other than null.
    """


class _Mapper:
    """Converts one schema to shapes, expanding every reference to a named type."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[AvroSchema, str]] = {}
        self._open: list[str] = []  # records that are being mapped
        self._types = 0

    def shape(self, schema: AvroSchema, namespace: str = "") -> Shape:
        self._types += 1
        if self._types > MAX_TYPES:
            raise SchemaError(
                f"the schema cannot be converted to Arrow types: it has more than {MAX_TYPES} "
                f"types after references to named types are expanded"
            )
        if isinstance(schema, list):
            return self._union(schema, namespace)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, (dict, list)):
            return self.shape(kind, namespace)  # {"type": {"type": …}}
        if kind in PRIMITIVES:
            return Shape(kind, PRIMITIVES[kind], kind)
        if kind == "array":
            return self._array(self.shape(schema["items"], namespace))
        if kind == "map":
            return self._map(self.shape(schema["values"], namespace))
        if kind not in NAMED:
            return self._reference(kind, namespace)
        name = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = (schema, namespace)
        if kind == "enum":
            new = {"type": "enum", "name": self._name(), "symbols": schema["symbols"]}
            return Shape("enum", pa.string(), new)
        if kind == "fixed":
            size = schema["size"]
            new = {"type": "fixed", "name": self._name(), "size": size}
            return Shape("fixed", pa.binary(size), new)
        return self._record(schema, name)

    def _reference(self, kind: str, namespace: str) -> Shape:
        name = _full_name(kind, namespace)
        if name in self._open:
            raise SchemaError(
                f"the schema cannot be converted to Arrow types: the record {name} contains itself"
            )
        if name not in self._named:
            raise SchemaError(
                f"the schema cannot be converted to Arrow types: the type {name} is not defined"
            )
        return self.shape(*self._named[name])

    def _record(self, schema: AvroSchema, name: str) -> Shape:
        if not schema["fields"]:
            # Parquet cannot store a struct without fields.
            raise SchemaError(
                f"the schema cannot be converted to Arrow types: the record {name} has no fields"
            )
        self._open.append(name)
        inner = name.rpartition(".")[0]
        children = [self.shape(field["type"], inner) for field in schema["fields"]]
        self._open.pop()
        names = [field["name"] for field in schema["fields"]]
        # Keep the event's name: it appears in messages.
        new_name = self._name() if self._open else schema["name"]
        return Shape(
            "record",
            pa.struct(list(zip(names, (child.type for child in children), strict=True))),
            _record_of(new_name, names, [child.dicts for child in children]),
            tuple(children),
        )

    def _array(self, items: Shape) -> Shape:
        return Shape(
            "array",
            pa.list_(items.type),
            {"type": "array", "items": items.dicts},
            children=(items,),
        )

    def _map(self, values: Shape) -> Shape:
        entry = _record_of(self._name(), ["key", "value"], ["string", values.dicts])
        return Shape(
            "map",
            pa.map_(pa.string(), values.type),
            {"type": "array", "items": entry},
            children=(values,),
        )

    def _union(self, schema: list[AvroSchema], namespace: str) -> Shape:
        shapes = [self.shape(branch, namespace) for branch in schema]
        numbers = tuple(n for n, shape in enumerate(shapes) if shape.kind != "null")
        if not numbers:
            raise SchemaError(
                f"the schema cannot be converted to Arrow types: the union {json.dumps(schema)} "
                f"has no type other than null"
            )
        members = [shapes[n] for n in numbers]
        if len(members) == 1:
            (member,) = members
            return Shape(
                "optional",
                member.type,
                [shape.dicts for shape in shapes],
                children=(member,),
            )
        names = _member_names([schema[n] for n in numbers], namespace)
        tagged = [shape.dicts for shape in shapes]
        for n, name in zip(numbers, names, strict=True):
            tagged[n] = _record_of(self._name(), [name], [shapes[n].dicts])
        return Shape(
            "union",
            pa.struct(list(zip(names, (member.type for member in members), strict=True))),
            tagged,
            children=tuple(members),
        )

    def _name(self) -> str:
        self._types += 1
        return f"_T{self._types}"  # no API name begins like this


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _record_of(name: str, names: Sequence[str], types: Sequence[AvroSchema]) -> AvroSchema:
    fields = [{"name": n, "type": t} for n, t in zip(names, types, strict=True)]
    return {"type": "record", "name": name, "fields": fields}


def _member_names(branches: Sequence[AvroSchema], namespace: str) -> list[str]:
    """Return a name for each member of a union: its type's name, without the namespace if possible.

    Raises:
        SchemaError: Two members have the same name.
    """
    full = [_type_name(branch, namespace) for branch in branches]
    names = [name.rpartition(".")[2] for name in full]
    if len(set(names)) < len(names):
        names = [name.replace(".", "_") for name in full]
    if len(set(names)) < len(names):
        raise SchemaError(
            f"the schema cannot be converted to Arrow types: a union has two members with the same "
            f"name: {names}"
        )
    return names


def _type_name(schema: AvroSchema, namespace: str) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict):
        return _type_name(kind, namespace)
    if kind in PRIMITIVES or kind in ("array", "map"):
        return str(kind)
    if kind in NAMED:
        return _full_name(schema["name"], schema.get("namespace", namespace))
    return _full_name(kind, namespace)


def shape_of(schema_json: str) -> Shape:
    """Return the `Shape` of an Avro record schema: its Arrow type, and the shapes of its fields.

    Args:
        schema_json: The schema as JSON text.

    Raises:
        SchemaError: The schema is not a valid Avro record schema, or cannot be converted to Arrow
            types, for example because it is recursive or contains a record without fields.
    """
    try:
        shape = _Mapper().shape(json.loads(schema_json))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaError(
            f"the schema is not a valid Avro schema: {type(error).__name__} {error}"
        ) from error
    if shape.kind != "record":
        raise SchemaError(f"the schema is not an Avro record schema: its type is {shape.kind}")
    return shape
