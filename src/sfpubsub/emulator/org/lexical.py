"""How requests write values: the same rules for the fields of records and of events.

Every function raises ValueError for a value that does not have its type. They accept the documented
forms only, in ASCII, and not everything that Python would read. docs/reference/emulator-evidence.md
lists the forms and their sources.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"(\d\d:\d\d:\d\d)(\.\d{1,9})?Z?", re.ASCII)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:T(\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)(Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
DEVELOPER_NAME = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
"""The API name of a subscription, a channel, a permission set and the like."""

_WORDS = {"true": True, "false": False, "1": True, "0": False}


def boolean(value: Any) -> bool:
    """Return a JSON boolean, or the boolean that a text names."""
    found = _WORDS.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("not a boolean")  # noqa: TRY004 - as for every value that is not valid
    return found


def number(value: Any) -> float:
    """Return a finite JSON number, or the number that a text writes in decimal digits."""
    if isinstance(value, bool) or not (
        isinstance(value, (int, float)) or (isinstance(value, str) and _NUMBER.fullmatch(value))
    ):
        raise ValueError("not a number")
    try:
        found = float(value)
    except OverflowError as error:
        raise ValueError("the number is too large") from error
    if not math.isfinite(found):
        raise ValueError("the number is not finite")
    return found


def whole(value: Any) -> int:
    """Return a whole number of 32 bits."""
    found = number(value)
    if not (found.is_integer() and -(2**31) <= found < 2**31):
        raise ValueError("not a whole number of 32 bits")
    return int(found)


def day(value: Any) -> date:
    """Return a date, written as 2026-03-01."""
    if not _DAY.fullmatch(str(value)):
        raise ValueError("not a date")
    return date.fromisoformat(str(value))


def instant(value: Any) -> datetime:
    """Return a time in UTC, written as 2026-03-01T12:30:00.000Z or with an offset such as +01:00 or
    +0100. A time without an offset is in UTC, and a date alone means midnight.
    """
    found = _INSTANT.fullmatch(str(value))
    if found is None:
        raise ValueError("not a date and time")
    on, at, offset = found.groups()
    try:
        read = datetime.fromisoformat(f"{on}T{at or '00:00'}{offset or 'Z'}")
        return read.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("outside the years 1 to 9999") from error


def clock(value: Any) -> time:
    """Return a time of day, written as 12:30:00.000Z."""
    found = _CLOCK.fullmatch(str(value))
    if found is None:
        raise ValueError("not a time")
    return time.fromisoformat(found[1] + (found[2] or ""))


def text(value: Any) -> str:
    """Return a text; JSON numbers and booleans become text too."""
    if isinstance(value, (dict, list)):
        raise ValueError("not a text")  # noqa: TRY004 - as for every value that is not valid
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
