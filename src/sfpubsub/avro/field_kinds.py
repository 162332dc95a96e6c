"""Fields whose Python value differs from the encoded one: times, and numbers with decimal places.

Salesforce's schemas have no logical types: the type of a field is in its ``doc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from sfpubsub.errors import EncodeError

# Fields of one kind, such as times, and fields that contain such fields.
Times: TypeAlias = "list[tuple[str, Times | None]]"

IsWanted: TypeAlias = Callable[[Mapping[str, Any], list[Any]], bool]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def fields_of(schema: Any, named: Mapping[str, Any], is_wanted: IsWanted) -> Times:
    """Return the fields of a record, and of the records in it, that are of one kind.

    Args:
        schema: The record schema, as `fastavro.parse_schema` returns it.
        named: The named types by full name.
        is_wanted: Called with a field and the branches of its type.
    """
    return _fields(schema, named, {}, is_wanted)


def is_time(field: Mapping[str, Any], branches: list[Any]) -> bool:
    """Return whether a field is documented as ``DateTime``."""
    return "long" in branches and _documented_type(field) == "DateTime"


def is_double(_field: Mapping[str, Any], branches: list[Any]) -> bool:
    """Return whether a field is of type double, such as a currency or a percentage."""
    return "double" in branches


def _fields(
    schema: Any,
    named: Mapping[str, Any],
    known: dict[str, Times],
    is_wanted: IsWanted,
) -> Times:
    # (field, None) for a wanted field, (field, fields in it) for a record. Each record is visited
    # once: the list of a recursive record contains itself, and a name used twice is not followed
    # twice.
    found = known.setdefault(schema["name"], [])
    for field in schema["fields"]:
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        if is_wanted(field, branches):
            found.append((field["name"], None))
        branches = [named.get(kind) if isinstance(kind, str) else kind for kind in branches]
        records = [kind for kind in branches if kind and kind["type"] == "record"]
        if len(records) == 1:  # with several, the decoded dict does not show which one it is
            inside = known.get(records[0]["name"])
            if inside is None:
                inside = _fields(records[0], named, known, is_wanted)
            found.append((field["name"], inside))
    return found


def _documented_type(field: Mapping[str, Any]) -> str:
    # Salesforce puts the type into the doc attribute: CreatedDate:DateTime, Data:Text:00N...
    return (*str(field.get("doc", "")).split(":"), "", "")[1]


def set_datetimes(record: dict[str, Any], times: Times) -> None:
    """Replace milliseconds since the epoch by `datetime`, where that can express the time."""
    for name, inside in times:
        value = record.get(name)
        if inside is None and isinstance(value, int):
            try:
                record[name] = _EPOCH + value * _MILLISECOND
            except OverflowError:
                continue
        elif inside is not None and isinstance(value, dict):
            set_datetimes(value, inside)


def converted(
    record: Mapping[str, Any], fields: Times, convert: Callable[[Any, str], Any], path: str
) -> Mapping[str, Any]:
    """Return *record*, or a copy if *convert* changes one of the fields *fields*."""
    changed: dict[str, Any] = {}
    for name, inside in fields:
        value = record.get(name)
        if inside is None:
            found = convert(value, f"{path}.{name}")
        elif isinstance(value, Mapping):
            found = converted(value, inside, convert, f"{path}.{name}")
        else:
            continue
        if found is not value:
            changed[name] = found
    return {**record, **changed} if changed else record


def milliseconds(time: datetime) -> int:
    """Return a time with a time zone as milliseconds since the epoch."""
    return (time - _EPOCH) // _MILLISECOND


def to_milliseconds(value: Any, path: str) -> Any:
    """Convert a `datetime`; return any other value unchanged.

    Raises:
        EncodeError: The time has no time zone.
    """
    if not isinstance(value, datetime):
        return value
    if value.utcoffset() is None:
        raise EncodeError(
            f"{path} is {value}, a time without a time zone: give it one, such as datetime.UTC"
        )
    return milliseconds(value)


def to_double(value: Any, path: str) -> Any:
    """Convert a `Decimal`; return any other value unchanged.

    Raises:
        EncodeError: The number is too large.
    """
    if not isinstance(value, Decimal):
        return value
    try:
        found = float(value)
    except ValueError:  # a signalling NaN
        found = math.inf
    if math.isinf(found) and not value.is_infinite():
        raise EncodeError(f"{path} is {value}, which is too large for a double")
    return found
