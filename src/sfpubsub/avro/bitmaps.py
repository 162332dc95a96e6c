"""Expand the field bitmaps of change events, using the event's own schema.

``changedFields``, ``nulledFields`` and ``diffFields`` are lists of strings (Salesforce
documentation, event deserialization considerations)::

    0x100000000000800000    fields 23 and 68 of the schema: a big-endian number, bit i for field i
    6-0x0180                fields 7 and 8 of the record in field 6

If only some components of a compound field changed, its own bit is not set, so a list may contain
only entries of the second form. Invariant: an entry that does not fit the schema raises a
`DecodeError`; names are never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sfpubsub.avro.compiled import field_names_of
from sfpubsub.errors import DecodeError, SchemaError

# Maximum number of expanded bitmaps cached per schema. An org's automations change the same few
# sets of fields again and again; an entry with ten names takes about 300 bytes.
MAX_BITMAPS = 512

# Maximum number of cached schemas. An entry, including the text that is its key, takes about
# 100 KiB for a schema with 500 fields, and recreating it takes a millisecond. An org selects about
# ten objects for change data capture.
MAX_SCHEMAS = 128

# Up to 4,096 fields; an object has at most about 1,000. This limits the size of cached strings.
_BITMAP = re.compile(r"(?:([0-9]{1,4})-)?0x([0-9A-Fa-f]{1,1024})")

# Maximum characters of a malformed entry quoted in an error; an entry may have a million.
_QUOTED = 80


class ChangeSchema:
    """The field names of a change event's schema, and the expansion of bitmaps to these names.

    Thread-safe; immutable except for its cache.

    Args:
        schema_id: The service's id for the schema.
        schema_json: The Avro schema as JSON text.

    Raises:
        SchemaError: The text is not an Avro record schema.
    """

    def __init__(self, schema_id: str, schema_json: str) -> None:
        self.schema_id = schema_id
        try:
            schema = json.loads(schema_json)
            self.name: str = str(schema["name"]).rpartition(".")[2]
            found = list(_fields_and_parts(schema))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise SchemaError(f"schema {schema_id} is not an Avro record schema") from error
        self.fields: tuple[str, ...] = tuple(field for field, _ in found)
        """Names of the top-level fields, the header first."""
        self.parts: Mapping[str, tuple[str, ...]] = {
            field: tuple(f"{field}.{part}" for part in parts)
            for field, parts in found
            if parts is not None
        }
        """Names of the components of each compound field, such as ``BillingAddress.City``."""
        entity_fields = self.fields[1:]
        self.names: frozenset[str] = frozenset(entity_fields).union(
            *(self.parts.get(field, ()) for field in entity_fields)
        )
        """Names of all fields and their components, except the header and its fields."""
        self._bits = _Bits(self.fields)
        self._bits_of_parts = {field: _Bits(parts) for field, parts in self.parts.items()}
        # Names by entry. No lock is needed: single reads and writes of a dict are atomic, and two
        # threads that miss the same entry write the same names.
        self._known: dict[str, tuple[str, ...]] = {}
        self._compiled = field_names_of(self.fields, self.parts)

    def expand(self, entries: Sequence[str]) -> tuple[str, ...]:
        """Expand bitmaps to field names. The names from one bitmap are in the order of the schema.

        A component of a compound field is named ``Parent.Child``. Components are not collapsed into
        the parent even if all of them are listed. An entry that is already a field name, as in the
        Streaming API, is kept.

        Args:
            entries: The value of ``changedFields``, ``nulledFields`` or ``diffFields``.

        Raises:
            DecodeError: An entry is neither a bitmap nor a field name, or its bitmap refers to a
                field that the schema does not have.
        """
        if not entries:
            return ()
        # Nearly every list has one entry or two.
        if len(entries) == 1:
            return self._names_of(entries[0])
        if len(entries) == 2:
            return self._names_of(entries[0]) + self._names_of(entries[1])
        return tuple(chain.from_iterable(map(self._names_of, entries)))

    @property
    def cached(self) -> int:
        """Number of cached bitmaps."""
        return len(self._known)

    def _names_of(self, entry: str) -> tuple[str, ...]:
        try:
            names = self._known.get(entry)
        except TypeError:  # not hashable, so not a string either
            names = None
        if names is None:
            names = self._expand_entry(entry)
            # Clearing the cache costs a few hundred misses; tracking the order of use would slow
            # down every hit. Concurrent threads may exceed the limit by one entry each.
            if len(self._known) >= MAX_BITMAPS:
                self._known.clear()
            self._known[entry] = names
        return names

    def _expand_entry(self, entry: str) -> tuple[str, ...]:
        if not isinstance(entry, str):
            raise self._error(entry, "is not a string")
        if self._compiled is not None:
            expanded: tuple[str, ...] | None = self._compiled.expand(entry)
            if expanded is not None:
                return expanded
        match = _BITMAP.fullmatch(entry)
        if match is None:
            if entry in self.names:
                return (entry,)
            raise self._error(entry, "is neither a bitmap of fields nor the name of a field")
        parent, digits = match.groups()
        names = self._bits if parent is None else self._parts_at(int(parent), entry)
        bits = int(digits, 16)
        if bits.bit_length() > names.count:
            raise self._error(
                entry, f"has bit {bits.bit_length() - 1}, but there are only {names.count} fields"
            )
        return names.of(bits)

    def _parts_at(self, index: int, entry: str) -> _Bits:
        if index >= len(self.fields):
            raise self._error(
                entry, f"refers to field {index}, but there are only {len(self.fields)} fields"
            )
        parts = self._bits_of_parts.get(self.fields[index])
        if parts is None:
            raise self._error(
                entry, f"refers to components of {self.fields[index]}, which has no components"
            )
        return parts

    def _error(self, entry: object, what: str) -> DecodeError:
        text = repr(entry)
        if len(text) > _QUOTED:
            text = f"{text[:_QUOTED]}…"
        return DecodeError(
            f"{text} {what} in schema {self.schema_id} ({self.name}); "
            f"the raw lists are in the event's value"
        )

    def __repr__(self) -> str:
        return f"ChangeSchema({self.schema_id}, {self.name})"


class _Bits:
    """Maps the set bits of a bitmap to names.

    A bitmap is looked up byte by byte, because it may have hundreds of set bits. The names for each
    byte value are cached. There are at most 256 entries for every eight names, and events use only
    a few of them. Thread-safe without a lock: two threads that miss the same entry write the same
    names.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.count = len(names)
        self._names = names
        self._known: list[dict[int, tuple[str, ...]]] = [{} for _ in range(0, len(names), 8)]

    def of(self, bits: int) -> tuple[str, ...]:
        """Return the names for the bits set in *bits*, which must be below ``2 ** self.count``."""
        found: tuple[str, ...] = ()
        known = self._known
        for place, byte in enumerate(bits.to_bytes(len(known), "little")):
            if byte:
                names = known[place].get(byte)
                found += self._learned(place, byte) if names is None else names
        return found

    def _learned(self, place: int, byte: int) -> tuple[str, ...]:
        names = self._names[8 * place : 8 * place + 8]
        found = tuple([name for bit, name in enumerate(names) if byte >> bit & 1])
        self._known[place][byte] = found
        return found


@lru_cache(maxsize=MAX_SCHEMAS)
def change_schema(schema_id: str, schema_json: str) -> ChangeSchema:
    """Return the `ChangeSchema` of a schema, from a cache if possible. Thread-safe.

    Raises:
        SchemaError: The text is not an Avro record schema.
    """
    return ChangeSchema(schema_id, schema_json)


def _fields_and_parts(schema: Any) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield each field's name with the names of its subfields, or with None if it has none."""
    named: dict[str, tuple[str, ...]] = {}
    _record_fields(schema, "", named)
    namespace = _full_name(schema, "").rpartition(".")[0]
    for field in schema["fields"]:
        yield str(field["name"]), _record_fields(field["type"], namespace, named)


def _record_fields(
    node: Any, namespace: str, named: dict[str, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """Return the field names of a record type, or of a union's first record; None for other types.

    A named type is defined where it first occurs and only referenced by name afterwards (Avro
    specification, Names), so every definition found is added to *named*.
    """
    if isinstance(node, str):
        return named.get(node if "." in node or not namespace else f"{namespace}.{node}")
    if isinstance(node, list):
        branches = [_record_fields(branch, namespace, named) for branch in node]
        return next((fields for fields in branches if fields is not None), None)
    kind = node["type"]
    if kind == "record":
        name = _full_name(node, namespace)
        fields = tuple(str(field["name"]) for field in node["fields"])
        named[name] = fields
        for field in node["fields"]:
            _record_fields(field["type"], name.rpartition(".")[0], named)
        return fields
    if kind in ("array", "map"):
        _record_fields(node["items" if kind == "array" else "values"], namespace, named)
        return None
    return _record_fields(kind, namespace, named)  # {"type": "string"}, {"type": {…}}


def _full_name(definition: Any, namespace: str) -> str:
    name = str(definition["name"])
    if "." in name:
        return name
    namespace = definition.get("namespace", namespace)
    return f"{namespace}.{name}" if namespace else name
