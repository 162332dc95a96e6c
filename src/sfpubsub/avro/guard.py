"""Check a payload against its schema without decoding it, and report where it does not match.

The check follows the Avro specification strictly. It runs before fastavro reads a payload, because
fastavro trusts lengths and counts from the network. Time and memory are bounded by the size of the
payload: every step either consumes a byte, or reads a value that takes no bytes. The number of such
values is limited to `MAX_EMPTY`, plus `MAX_DEPTH` for each byte of the payload. The code is not
fast, but it runs only for payloads that the faster decoders cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Maximum nesting of records, unions, arrays and maps. Salesforce's schemas have five levels; with a
# recursive schema, a payload could otherwise overflow the stack.
MAX_DEPTH = 64

# Number of values that take no bytes (null outside a union, an empty record) allowed per payload,
# in addition to MAX_DEPTH for each of its bytes. Without a limit, a few bytes could announce 2**60
# of them.
MAX_EMPTY = 10_000

_INTS = {"int": 32, "long": 64}
_SIZES = {"float": 4, "double": 8}


class Misfit(ValueError):  # noqa: N818 - a report about data; Codec turns it into a DecodeError
    """Raised if a payload does not match its schema.

    The message states the field, the byte offset in the payload, and the reason.
    """


def check_payload(payload: bytes, schema: Any, named: Mapping[str, Any]) -> None:
    """Check that *payload* is exactly one datum of *schema*.

    Args:
        payload: Avro bytes.
        schema: As `fastavro.parse_schema` returns it.
        named: The named types by full name.

    Raises:
        Misfit: The payload does not match the schema.
    """
    walk = _Walk(payload, named)
    try:
        walk.value(schema, 0)
        walk.end()
    except Misfit as problem:
        where = ".".join(walk.path)
        raise Misfit(f"{where + ', ' if where else ''}byte {walk.at}: {problem}") from None


class _Walk:
    def __init__(self, payload: bytes, named: Mapping[str, Any]) -> None:
        self.payload = payload
        self.named = named
        self.at = 0
        self.path: list[str] = []  # kept when a Misfit is raised: it locates the error
        self.allowance = MAX_EMPTY + MAX_DEPTH * len(payload)

    def value(self, schema: Any, depth: int) -> None:
        before = self.at
        if depth > MAX_DEPTH:
            raise Misfit(f"more than {MAX_DEPTH} levels of nesting")
        if isinstance(schema, list):
            branch = self.integer(64)
            if not 0 <= branch < len(schema):
                raise Misfit(
                    f"union branch {branch}, but the union has only {len(schema)} branches"
                )
            self.value(schema[branch], depth + 1)
        else:
            kind = schema["type"] if isinstance(schema, dict) else schema
            if kind in _SCALARS:
                self.scalar(kind)
            elif kind in _COMPOUNDS:
                _COMPOUNDS[kind](self, schema, depth)
            else:
                # The depth stays the same: a name refers to a definition, never to another name.
                self.value(self.named[kind], depth)
        if self.at == before:
            self.allowance -= 1
            if self.allowance < 0:
                raise Misfit("too many values that are encoded in zero bytes")

    def end(self) -> None:
        if self.at != len(self.payload):
            left = len(self.payload) - self.at
            raise Misfit(f"the payload has {left} bytes more than the schema describes")

    def scalar(self, kind: str) -> None:
        if kind in _INTS:
            self.integer(_INTS[kind])
        elif kind in _SIZES:
            self.take(_SIZES[kind])
        elif kind == "boolean":
            if self.take(1) not in (b"\x00", b"\x01"):
                raise Misfit("a boolean that is not encoded as 0 or 1")
        elif kind != "null":
            data = self.take(self.integer(64))
            if kind == "string":
                self.text(data)

    def record(self, schema: Mapping[str, Any], depth: int) -> None:
        for field in schema["fields"]:
            self.path.append(field["name"])
            self.value(field["type"], depth + 1)
            self.path.pop()

    def items(self, schema: Mapping[str, Any], depth: int) -> None:
        while count := self.integer(64):
            if count < 0:
                count = -count
                self.integer(64)  # the block's size in bytes, for readers that skip it
            for _ in range(count):
                if schema["type"] == "map":
                    self.text(self.take(self.integer(64)))
                self.value(schema["items" if schema["type"] == "array" else "values"], depth + 1)

    def enum(self, schema: Mapping[str, Any], _depth: int) -> None:
        index = self.integer(32)
        if not 0 <= index < len(schema["symbols"]):
            raise Misfit(
                f"enum index {index}, but the enum has only {len(schema['symbols'])} symbols"
            )

    def fixed(self, schema: Mapping[str, Any], _depth: int) -> None:
        self.take(schema["size"])

    def take(self, size: int) -> bytes:
        if size < 0:
            raise Misfit(f"a negative length ({size})")
        left = len(self.payload) - self.at
        if size > left:
            raise Misfit(f"{size} bytes are needed, but only {left} bytes are left")
        self.at += size
        return self.payload[self.at - size : self.at]

    def text(self, data: bytes) -> None:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Misfit(f"text that is not UTF-8: {error.reason}") from None

    def integer(self, bits: int) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise Misfit("an integer of more than ten bytes")
        if raw >> bits:
            raise Misfit(f"a number of more than {bits} bits")
        return (raw >> 1) ^ -(raw & 1)


_SCALARS = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_COMPOUNDS = {
    "record": _Walk.record,
    "error": _Walk.record,
    "array": _Walk.items,
    "map": _Walk.items,
    "enum": _Walk.enum,
    "fixed": _Walk.fixed,
}
