"""Check a value against a schema before it is encoded, and name the field that does not match.

fastavro does the encoding. Its own errors do not name the location within a nested value, and it
ignores fields that the schema does not have.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro

from sfpubsub.errors import EncodeError

# The largest finite value of an Avro float.
_FLOAT_MAX = 3.4028234663852886e38

_RANGES = {"int": 1 << 31, "long": 1 << 63}
_PLAIN = {"null", "boolean", *_RANGES, "float", "double", "string", "bytes", "fixed", "enum"}


class Encoder:
    """Encodes values of one record schema. Immutable, thread-safe.

    Args:
        schema: As `fastavro.parse_schema` returns it.
        named: The named types by full name.
        title: The event's name, for error messages.
    """

    def __init__(self, schema: Mapping[str, Any], named: Mapping[str, Any], title: str) -> None:
        self._schema = dict(schema)
        self._named = named
        self._title = title

    def encode(self, value: Mapping[str, Any]) -> bytes:
        """Return the Avro bytes of *value*.

        Raises:
            EncodeError: The value does not match the schema. The message names the field and, for a
                value of the wrong type, the expected type and the value.
        """
        out = io.BytesIO()
        try:
            self._check(value, self._schema, "")
            fastavro.schemaless_writer(out, self._schema, dict(value))
        except EncodeError:
            raise
        except Exception as error:  # fastavro does not document which exceptions it raises
            raise EncodeError(
                f"the value is not a valid {self._title}: {type(error).__name__} {error}"
            ) from error
        return out.getvalue()

    def _check(self, value: Any, schema: Any, path: str) -> None:
        if isinstance(schema, list):
            self._check_union(value, schema, path)
            return
        if isinstance(schema, dict) and "logicalType" in schema:
            return  # fastavro converts these and reports errors
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            self._check_record(value, schema, path)
        elif kind == "array":
            self._expect(_is_sequence(value), schema, value, path)
            for index, item in enumerate(value):
                self._check(item, schema["items"], f"{path}[{index}]")
        elif kind == "map":
            self._expect(isinstance(value, Mapping), schema, value, path)
            for key, item in value.items():
                if not isinstance(key, str):
                    raise self._error(path, f"must have keys of type str, not {_type(key)}")
                self._check(key, "string", f"{path} key {key!r}")
                self._check(item, schema["values"], f"{path}[{key!r}]")
        elif kind in _PLAIN or kind not in self._named:
            self._expect(_fits(value, kind, schema), schema, value, path)
        else:
            self._check(value, self._named[kind], path)

    def _check_record(self, value: Any, schema: Mapping[str, Any], path: str) -> None:
        self._expect(isinstance(value, Mapping), schema, value, path)
        name = _short(schema["name"])
        fields = {field["name"]: field for field in schema["fields"]}
        for key in value:
            if key not in fields:
                raise EncodeError(
                    f"{_join(self._title, path)} has no field {key!r}; "
                    f"{name} has {', '.join(fields) or 'none'}"
                )
        needed = []
        for key, field in fields.items():
            if key in value:
                self._check(value[key], field["type"], _join(path, key))
            elif "default" not in field:
                needed.append(f"{key!r}, of type {self._describe(field['type'])}")
        if needed:  # list all of them: a change event's header has twelve required fields
            raise EncodeError(
                f"{_join(self._title, path)} needs the field{'s' if len(needed) > 1 else ''} "
                f"{'; '.join(needed)}"
            )

    def _check_union(self, value: Any, branches: Sequence[Any], path: str) -> None:
        problems: list[tuple[Any, EncodeError]] = []
        for branch in branches:
            try:
                self._check(value, branch, path)
            except EncodeError as error:
                problems.append((branch, error))
            else:
                return
        # For ["null", T], assume that the user means T; for several types, the one of the same
        # kind. Then the error names a field inside a record, not only the record.
        near = [error for branch, error in problems if self._is_near(value, branch)]
        raise near[0] if len(near) == 1 else self._mismatch(branches, value, path)

    def _is_near(self, value: Any, branch: Any) -> bool:
        branch = self._named.get(branch, branch) if isinstance(branch, str) else branch
        kind = branch["type"] if isinstance(branch, dict) else branch
        if isinstance(value, Mapping):
            return kind in ("record", "map")
        return kind == "array" and _is_sequence(value)

    def _expect(self, fits: bool, schema: Any, value: Any, path: str) -> None:
        if not fits:
            raise self._mismatch(schema, value, path)

    def _mismatch(self, schema: Any, value: Any, path: str) -> EncodeError:
        text = repr(value)
        shown = text if len(text) <= 60 else text[:57] + "..."
        return self._error(path, f"must be {self._describe(schema)}, not {_type(value)} {shown}")

    def _error(self, path: str, problem: str) -> EncodeError:
        return EncodeError(f"{_join(self._title, path)} {problem}")

    def _describe(self, schema: Any) -> str:
        if isinstance(schema, list):
            return " or ".join(self._describe(branch) for branch in schema)
        kind = schema["type"] if isinstance(schema, dict) else str(schema)
        named = schema if kind in _PLAIN else self._named.get(kind, schema)
        if not isinstance(named, dict):
            return _short(kind)
        if named["type"] == "enum":
            return f"{_short(named['name'])} ({', '.join(named['symbols'])})"
        if named["type"] == "fixed":
            return f"{_short(named['name'])} ({named['size']} bytes)"
        return _short(str(named.get("name", named["type"])))


def _fits(value: Any, kind: str, schema: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _RANGES:
        bound = _RANGES[kind]
        return _is_integer(value) and -bound <= value < bound
    if kind == "float":
        return _is_number(value) and (abs(value) <= _FLOAT_MAX or not math.isfinite(value))
    if kind == "double":
        return _is_number(value)
    if kind == "string":
        return isinstance(value, str) and (value.isascii() or _is_encodable(value))
    if kind == "bytes":
        return isinstance(value, (bytes, bytearray))
    if kind == "fixed":
        return isinstance(value, (bytes, bytearray)) and len(value) == schema["size"]
    if kind == "enum":
        return isinstance(value, str) and value in schema["symbols"]
    return True  # an unusual type: fastavro reports errors


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return True
    if not _is_integer(value):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _join(path: str, name: str) -> str:
    if not name or not path:
        return path or name
    return f"{path}{name}" if name.startswith("[") else f"{path}.{name}"


def _type(value: Any) -> str:
    return type(value).__name__
