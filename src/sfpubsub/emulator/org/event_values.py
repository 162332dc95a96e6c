"""Converts the JSON values of a platform event, as REST clients send them, to the types of its
schema.

JSON has no time types and only one number type, so the target type is read from the `doc` of the
schema's field, such as `Data:DateTime:00N…`. Field names are case-insensitive, as in an org.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from sfpubsub.emulator.org import lexical
from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.schemas import Schema

_SET_BY_THE_ORG = ("CreatedDate", "CreatedById", "EventUuid", "ReplayId")


def event_values(
    schema: Schema, given: Mapping[str, Any], user_id: str, now: float
) -> dict[str, Any]:
    """Return an event's values, converted to its schema's types, plus CreatedDate and CreatedById.

    Args:
        schema: The event's schema.
        given: Values by field name; `attributes`, which some clients include, is ignored.
        user_id: Id of the user who publishes the event.
        now: Time of publication, in seconds since the epoch.

    Raises:
        BadValue: A field does not exist or cannot be set, or a value has the wrong type.
    """
    fields = {str(item["name"]): item for item in json.loads(schema.text)["fields"]}
    names = {name.lower(): name for name in (*fields, *_SET_BY_THE_ORG)}
    values: dict[str, Any] = {"CreatedDate": int(now * 1000), "CreatedById": user_id}
    for written, value in given.items():
        if written == "attributes":
            continue
        name = names.get(written.lower())
        if name is None:
            text = f"No such column '{written[:80]}' on sobject of type {schema.name}"
            raise BadValue("INVALID_FIELD", text, written[:80])
        if name in _SET_BY_THE_ORG:
            text = f"Unable to create/update fields: {name}. Please check the security settings"
            raise BadValue("INVALID_FIELD_FOR_INSERT_UPDATE", f"{text} of this field", name)
        if value is not None:
            values[name] = _value(name, fields[name], value)
    return values


def _value(name: str, field: Mapping[str, Any], value: Any) -> Any:
    kind = "".join(str(field.get("doc", "")).split(":")[1:2])
    read: Callable[[Any], Any] = _READ.get(kind, lexical.text)
    try:
        return read(value)
    except ValueError as error:
        text = f"{name}: {value!r:.80} is not a valid {kind or 'text'}"
        raise BadValue("JSON_PARSER_ERROR", text, name) from error


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _at(value: Any) -> int:
    return _milliseconds(lexical.instant(value))


def _of_day(value: Any) -> int:
    at = datetime.combine(date(1970, 1, 1), lexical.clock(value), UTC)
    return _milliseconds(at)


def _midnight(value: Any) -> int:
    return _milliseconds(datetime.combine(lexical.day(value), time(), UTC))


_READ: dict[str, Callable[[Any], Any]] = {
    "Boolean": lexical.boolean,
    "Integer": lexical.whole,
    **dict.fromkeys(("Double", "Currency", "Percent"), lexical.number),
    "DateTime": _at,
    "DateOnly": _midnight,
    "TimeOnly": _of_day,
}
"""How the values of a type are read; those of other types are texts."""
