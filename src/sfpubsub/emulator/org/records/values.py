"""Converts field values between the formats of requests, storage, responses and events.

In storage, a value is a string or a number. A boolean is stored as 0 or 1, and a date or time as a
fixed-length string in UTC, so that it sorts correctly. None and an empty string mean an empty
field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Any, TypeVar

from sfpubsub.emulator.org import lexical
from sfpubsub.emulator.org.records.fields import Field
from sfpubsub.emulator.org.records.problems import RecordProblem
from sfpubsub.emulator.org.sessions import eighteen

T = TypeVar("T")
_ID_LENGTHS = (15, 18)


def moment(seconds: float) -> str:
    """Convert a time in seconds since the epoch to the stored format."""
    return _written(datetime.fromtimestamp(seconds, UTC))


def stamp(seconds: float) -> str:
    """Convert a time in seconds since the epoch to a SystemModstamp, in whole seconds."""
    return moment(math.floor(seconds))


def keep(field: Field, value: Any) -> Any:
    """Convert a JSON value from a client to the stored format; None for an empty value.

    Raises:
        RecordProblem: The value is not valid for the field.
    """
    if value is None or value == "":
        return None
    if isinstance(value, (dict, list)):
        raise _not_read(field, "START_OBJECT" if isinstance(value, dict) else "START_ARRAY", "")
    if isinstance(value, str) and any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        raise RecordProblem("JSON_PARSER_ERROR", "the text has a lone surrogate", field.name)
    keep_it: Callable[[Field, Any], Any] = _KEEP.get(field.type, _text)
    return keep_it(field, value)


def show(field: Field, kept: Any) -> Any:
    """Return a stored value as a JSON value, for a response."""
    if kept is None:
        return False if field.type == "boolean" else None
    if field.type == "complexvalue":
        return json.loads(kept)
    return bool(kept) if field.type == "boolean" else kept


def converted(old: Field, new: Field | None, kept: Any) -> Any:
    """Convert a stored value of a field to another type of field; None if that is not possible."""
    if new is None or kept is None:
        return None
    try:
        return keep(new, show(old, kept) if old.is_number and new.is_number else as_text(old, kept))
    except RecordProblem:
        return None


def as_text(field: Field, kept: Any) -> str:
    """Return a stored value as text, for a CSV file."""
    if kept is None:
        return "false" if field.type == "boolean" else ""
    if field.type == "boolean":
        return "true" if kept else "false"
    if isinstance(kept, float) and kept.is_integer() and abs(kept) < 1e15:
        return f"{kept:.1f}"
    return str(kept)


def in_event(field: Field, kept: Any) -> Any:
    """Return a stored value in the format of a change event. Dates and times become milliseconds:
    since the epoch, or, for the type time, since midnight.
    """
    if kept is None:
        return None
    if field.type == "datetime":
        return round(datetime.fromisoformat(kept).timestamp() * 1000)
    if field.type == "date":
        at = datetime.combine(date.fromisoformat(kept), time(), UTC)
        return round(at.timestamp() * 1000)
    if field.type == "time":
        at_time = time.fromisoformat(kept.removesuffix("Z"))
        seconds = (at_time.hour * 60 + at_time.minute) * 60 + at_time.second
        return seconds * 1000 + at_time.microsecond // 1000
    if field.type == "boolean":
        return bool(kept)
    if field.is_number and field.type != "int":
        return float(kept)
    return kept


def full_id(text: str) -> str:
    """Return the 18-character form of a 15- or 18-character id. Any other string is returned
    unchanged.
    """
    return eighteen(text) if len(text) == _ID_LENGTHS[0] and text.isascii() else text


def compound(parts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an address as a JSON object, from its stored components. Return None if all components
    are empty.
    """
    if all(value is None for value in parts.values()):
        return None
    return {f"{name[0].lower()}{name[1:]}": value for name, value in sorted(parts.items())}


def full_name(parts: Mapping[str, Any]) -> str:
    """Return the full name of a person, from the components of a compound name field."""
    return " ".join(str(parts[part]) for part in ("FirstName", "LastName") if parts.get(part))


def _text(field: Field, value: Any) -> str:
    text = lexical.text(value)
    if len(text) > field.length:
        raise RecordProblem(
            "STRING_TOO_LONG",
            f"{field.label}: data value too large: {text[:255]} (max length={field.length})",
            field.name,
        )
    return text


def _picklist(field: Field, value: Any) -> str:
    text = _text(field, value)
    for item in text.split(";") if field.type == "multipicklist" else [text]:
        if field.restricted and item not in field.picklist_values:
            raise RecordProblem(
                "INVALID_OR_NULL_FOR_RESTRICTED_PICKLIST",
                f"{field.label}: bad value for restricted picklist field: {item[:255]}",
                field.name,
            )
    return text


def _boolean(field: Field, value: Any) -> int:
    return int(_read(field, value, lexical.boolean))


def _number(field: Field, value: Any) -> float | int:
    return _read(field, value, lexical.whole if field.type == "int" else lexical.number)


def _date(field: Field, value: Any) -> str:
    return _read(field, value, lexical.day).isoformat()


def _datetime(field: Field, value: Any) -> str:
    return _written(_read(field, value, lexical.instant))


def _time(field: Field, value: Any) -> str:
    return f"{_read(field, value, lexical.clock).isoformat(timespec='milliseconds')}Z"


def _read(field: Field, value: Any, read: Callable[[Any], T]) -> T:
    try:
        return read(value)
    except ValueError as error:
        raise _not_read(field, "VALUE_STRING", value) from error


def _reference(field: Field, value: Any) -> str:
    text = str(value)
    if len(text) not in _ID_LENGTHS or not (text.isascii() and text.isalnum()):
        raise RecordProblem(
            "MALFORMED_ID", f"{field.label}: id value of incorrect type: {text[:80]}", field.name
        )
    return full_id(text)


_KEEP: dict[str, Callable[[Field, Any], Any]] = {
    "picklist": _picklist,
    "multipicklist": _picklist,
    "boolean": _boolean,
    **dict.fromkeys(("int", "double", "currency", "percent"), _number),
    "date": _date,
    "datetime": _datetime,
    "time": _time,
    "reference": _reference,
    "id": _reference,
}


def _not_read(field: Field, token: str, value: Any) -> RecordProblem:
    text = (
        f"Cannot deserialize instance of {field.type} from {token} value {str(value)[:255]} or"
        " request may be missing a required field"
    )
    return RecordProblem("JSON_PARSER_ERROR", text, field.name)


def _written(at: datetime) -> str:
    text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "+0000")
