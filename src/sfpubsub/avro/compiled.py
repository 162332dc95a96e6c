"""Access to the compiled code in `sfpubsub.native` that reads Avro. Thread-safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from sfpubsub import native

# Maximum number of types in a schema after every reference to a named type has been replaced by the
# type: the same as MAX_TYPES in native/src/schema.rs. If each record refers to the previous one
# twice, the number doubles with every record.
_MAX_TYPES = 4_000

# A schema in the form of the compiled decoder: the name of a type, or a tuple of the name and its
# contents.
Plan: TypeAlias = "str | tuple[str, Any]"


class _Unsupported(Exception):  # noqa: N818 - not an error: the Python code is used instead
    """The compiled decoder does not support this schema."""


def decoder_of(schema: Any, named: Mapping[str, Any], wanted: Collection[str] | None = None) -> Any:
    """Return the compiled decoder of a schema.

    Return None if the compiled code is not available or does not support the schema.

    Args:
        schema: Schema of a record, as `fastavro.parse_schema` returns it.
        named: The named types by full name.
        wanted: Names of the fields to read; None for all. See `Codec.only`.
    """
    if native.compiled is None:
        return None
    try:
        return native.compiled.Decoder(_Planner(named).record(schema, wanted))
    except (_Unsupported, RecursionError, ValueError, TypeError, OverflowError):
        return None


def field_names_of(fields: Sequence[str], parts: Mapping[str, Sequence[str]]) -> Any:
    """Return an object that expands a schema's bitmaps with compiled code; None if not available.

    Args:
        fields: Names of the top-level fields.
        parts: Names of each compound field's components, by the field's name.
    """
    if native.compiled is None:
        return None
    return native.compiled.FieldNames(fields, [parts.get(field) for field in fields])


class _Planner:
    """Converts a schema to a `Plan`, replacing references to named types with their definitions."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._left = _MAX_TYPES

    def record(self, schema: Any, wanted: Collection[str] | None = None) -> Plan:
        found: list[tuple[str, Plan]] = []
        for field in schema["fields"]:
            name, plan = field["name"], self.plan(field["type"])
            found.append((name, plan if wanted is None or name in wanted else ("skip", plan)))
        return "record", tuple(found)

    def plan(self, schema: Any) -> Plan:
        self._left -= 1
        if self._left < 0 or (isinstance(schema, dict) and "logicalType" in schema):
            raise _Unsupported  # fastavro converts logical types to decimals, dates and other types
        if isinstance(schema, list):
            return "union", tuple(map(self.plan, schema))
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in _SCALARS:
            return str(kind)
        if kind == "record":
            return self.record(schema)
        if kind in ("array", "map"):
            return kind, self.plan(schema["items" if kind == "array" else "values"])
        if kind == "enum":
            return kind, tuple(schema["symbols"])
        if kind == "fixed":
            return kind, schema["size"]
        if kind in self._named:  # last, because a named type may have the name of a builtin type
            return self.plan(self._named[kind])
        raise _Unsupported


_SCALARS = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
