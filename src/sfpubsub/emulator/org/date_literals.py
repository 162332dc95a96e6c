"""The date literals of SOQL, such as TODAY and LAST_N_DAYS:7, as spans of days.

The org's time zone is GMT, its week begins on Sunday, and its fiscal year is the calendar year.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

_DAYS = {"YESTERDAY": -1, "TODAY": 0, "TOMORROW": 1}
_LITERAL = re.compile(
    r"(YESTERDAY|TODAY|TOMORROW)|(LAST|NEXT)_90_DAYS"
    r"|(LAST|THIS|NEXT)_(WEEK|MONTH|(?:FISCAL_)?(?:QUARTER|YEAR))"
    r"|(LAST|NEXT)_N_(DAY|WEEK|MONTH|(?:FISCAL_)?(?:QUARTER|YEAR))S:(\d{1,4})"
    r"|N_(DAY|WEEK|MONTH|(?:FISCAL_)?(?:QUARTER|YEAR))S_AGO:(\d{1,4})",
    re.ASCII,
)
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def is_date_literal(text: str) -> bool:
    """Return whether a word is a date literal, ignoring case."""
    return _LITERAL.fullmatch(text.upper()) is not None


def span(text: str, now: float) -> tuple[date, date]:
    """Return the first day of a date literal, and the first day after it.

    Args:
        text: The literal, in any case; `is_date_literal` holds for it.
        now: The time in seconds since the epoch.

    Raises:
        ValueError: The days are outside the years 1 to 9999.
    """
    found = _LITERAL.fullmatch(text.upper())
    if found is None:
        raise ValueError(f"{text} is not a date literal")
    day, ninety, which, unit, direction, units, count, ago, past = found.groups()
    today = datetime.fromtimestamp(now, UTC).date()
    try:
        if day:
            return _units("DAY", today, _DAYS[day], 1)
        if which:
            return _units(unit, today, {"LAST": -1, "THIS": 0, "NEXT": 1}[which], 1)
        if ago:
            return _units(ago, today, -int(past), 1)
        number, direction, units = (90, ninety, "DAY") if ninety else (int(count), direction, units)
        if direction == "NEXT":
            return _units(units, today, 1, number)
        # The last days include the current one; the last weeks, months and so on do not.
        includes = int(units == "DAY")
        return _units(units, today, -number, number + includes)
    except OverflowError as error:
        raise ValueError(f"{text} is outside the years 1 to 9999") from error


def _units(unit: str, today: date, start: int, count: int) -> tuple[date, date]:
    """Return *count* units of time, of which the first is *start* units after the current one."""
    if unit in ("DAY", "WEEK"):
        length = timedelta(days=7 if unit == "WEEK" else 1)
        first = today - timedelta(days=today.isoweekday() % 7) if unit == "WEEK" else today
        return first + start * length, first + (start + count) * length
    months = _MONTHS[unit.removeprefix("FISCAL_")]
    current = (today.year * 12 + today.month - 1) // months
    return _month((current + start) * months), _month((current + start + count) * months)


def _month(number: int) -> date:
    return date(number // 12, number % 12 + 1, 1)
