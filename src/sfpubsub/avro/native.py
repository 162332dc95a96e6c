"""The compiled decoder, where it is installed: the package ``sfpubsub-native``, of ``native/``.

It is never needed and changes no result: a schema that it does not take has no decoder here, a
payload that it does not take it leaves to the Python code, and what it returns equals what that
returns. ``SFPUBSUB_NATIVE=0`` in the environment switches it off, before the first import.
Safe to use from several threads.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

# The one that this code goes with; tests compare it with native/Cargo.toml and pyproject.toml.
VERSION = "0.1.0"

# Types in a schema once every reference to a named type is replaced by the type, as many as the
# compiled decoder takes. A record that names the one before it twice doubles that number with every
# step.
_MAX_TYPES = 4_000

_log = logging.getLogger("sfpubsub.client")

# A schema as the compiled decoder takes it: the name of a type, or a tuple of it and what is in it.
Plan: TypeAlias = "str | tuple[str, Any]"


def _load() -> Any:
    if os.environ.get("SFPUBSUB_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("sfpubsub_native")
    except ImportError:
        return None
    if module.__version__ != VERSION:
        _log.warning(
            "sfpubsub-native %s is installed and not used: this version of sfpubsub goes with %s",
            module.__version__,
            VERSION,
        )
        return None
    return module


compiled: Any = _load()
"""The module ``sfpubsub_native``, or None."""


def is_installed() -> bool:
    """Whether the compiled decoder is installed and not switched off."""
    return compiled is not None


class _Unsupported(Exception):  # noqa: N818 - an answer, not an error
    """This schema is not for the compiled decoder."""


def decoder_of(schema: Any, named: Mapping[str, Any], wanted: Collection[str] | None = None) -> Any:
    """Return the compiled decoder of a schema, or None if it has none.

    Args:
        schema: A record, as `fastavro.parse_schema` returns it.
        named: The named types by full name.
        wanted: Names of the fields that are read; None for all. See `Codec.only`.
    """
    if compiled is None:
        return None
    try:
        return compiled.Decoder(_Planner(named).record(schema, wanted))
    except (_Unsupported, RecursionError, ValueError, TypeError, OverflowError):
        return None


def field_names_of(fields: Sequence[str], parts: Mapping[str, Sequence[str]]) -> Any:
    """Return what expands the bitmaps of a schema, or None if it has no bitmaps.

    Args:
        fields: Names of the top-level fields.
        parts: Names of a compound field's parts, by its own name.
    """
    if compiled is None:
        return None
    return compiled.FieldNames(fields, [parts.get(field) for field in fields])


class _Planner:
    """Writes out named types wherever they are referred to."""

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
            raise _Unsupported  # fastavro makes decimals, dates and more of logical types
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
        if kind in self._named:  # last, because a type may have been given the name of a builtin
            return self.plan(self._named[kind])
        raise _Unsupported


_SCALARS = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
