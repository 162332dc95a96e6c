"""Converts the JSON values of a platform event, as REST clients send them, to the types of its
schema.

JSON has no time types and only one number type, so the target type is read from the `doc` of the
schema's field, such as `Data:DateTime:00N…`. Field names are case-insensitive, as in an org.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sfpubsub.emulator.org.problems import BadValue
from sfpubsub.emulator.org.schemas import Schema

_SET_BY_THE_ORG = ("CreatedDate", "CreatedById", "EventUuid", "ReplayId")

_NUMBERS = ("Double", "Currency", "Percent")
_TIMES = {"DateOnly": "%Y-%m-%d", "TimeOnly": "%H:%M:%S.%fZ"}

_DAY_MS = 24 * 3600 * 1000


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
    kind = str(field.get("doc", "")).split(":")[1:2]
    found = _converted(kind[0] if kind else "", value)
    if found is None:
        what = kind[0] if kind else "text"
        raise BadValue("JSON_PARSER_ERROR", f"{name}: {value!r:.80} is not a valid {what}", name)
    return found


def _converted(kind: str, value: Any) -> Any:
    """Return a JSON value converted to a field's type, `kind`; None if that is impossible."""
    if kind == "Boolean":
        return value if isinstance(value, bool) else None
    if kind == "Integer" or kind in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if kind == "Integer":
            return int(value) if value == int(value) else None
        return float(value)
    if kind in ("DateTime", *_TIMES):
        return _milliseconds(kind, value)
    return value if isinstance(value, str) else None


def _milliseconds(kind: str, value: Any) -> int | None:
    """Return a time in milliseconds: since the epoch for DateTime and DateOnly, since midnight for
    TimeOnly. Return None if the value is not such a time.
    """
    if not isinstance(value, str):
        return None
    try:
        if kind in _TIMES:
            found = datetime.strptime(value, _TIMES[kind]).replace(tzinfo=UTC)
        else:
            found = datetime.fromisoformat(value)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
    except ValueError:
        return None
    milliseconds = round(found.timestamp() * 1000)
    return milliseconds % _DAY_MS if kind == "TimeOnly" else milliseconds
