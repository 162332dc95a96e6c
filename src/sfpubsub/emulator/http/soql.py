"""Parses queries for the few objects that are not stored as records, and compares values in memory.

The syntax is that of `org.soql`, without COUNT(), OFFSET and NULLS; conditions are limited to `=`,
IN and LIKE on strings and `=` on booleans, joined by AND. Anything else raises Malformed. Strings
are compared without regard to case. Names of objects and fields are not checked here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.soql import Malformed, unescaped

__all__ = ["Condition", "Malformed", "Query", "parse"]


@dataclass(frozen=True)
class Condition:
    """One comparison of the WHERE clause.

    Attributes:
        field: Name of the field, as written.
        like: Whether the operator is LIKE; otherwise it is `=` or IN.
        texts: The strings to compare with, as written between the quotes; several only for IN.
    """

    field: str
    like: bool
    texts: tuple[str, ...]

    def holds(self, value: str) -> bool:
        """Return whether a value meets the condition, without regard to case."""
        if not self.like:
            return any(value.casefold() == unescaped(text).casefold() for text in self.texts)
        return _is_like(value.casefold(), self.texts[0].casefold())


@dataclass(frozen=True)
class Query:
    """A parsed query. Names are as written and have not been checked.

    Attributes:
        fields: Names of the selected fields.
        of: Name of the object.
        where: Conditions, all of which must be met.
        order: Pairs of a field to order by, and whether its order is descending.
        limit: Maximum number of rows; None for all.
    """

    fields: tuple[str, ...]
    of: str
    where: tuple[Condition, ...]
    order: tuple[tuple[str, bool], ...]
    limit: int | None


def parse(text: str) -> Query:
    """Parse a query.

    Raises:
        Malformed: The text is not a query, or uses syntax that is not supported here.
    """
    read = soql.parse(text)
    if read.counts or read.offset or any(item.nulls_first is not None for item in read.order):
        raise Malformed("COUNT(), OFFSET and NULLS are not supported for this object")
    order = tuple((item.field, item.descending) for item in read.order)
    return Query(read.fields, read.of, _conditions(read.where), order, read.limit)


def _conditions(where: soql.Condition | None) -> tuple[Condition, ...]:
    if where is None:
        return ()
    if isinstance(where, soql.Joined):
        if where.by != "AND":
            raise Malformed(f"unexpected token: {where.by}")
        return tuple(one for item in where.conditions for one in _conditions(item))
    if where.sign not in ("=", "LIKE", "IN"):
        raise Malformed(f"unexpected token: {where.sign}")
    for value in where.values:
        is_flag = where.sign == "=" and value.text.lower() in ("true", "false")
        if value.kind != "text" and not is_flag:
            raise Malformed("a value must be a string in single quotes")
    texts = tuple(value.text for value in where.values)
    return (Condition(where.field, where.sign == "LIKE", texts),)


def _is_like(value: str, pattern: str) -> bool:
    """Return whether a value matches a LIKE pattern. `%` matches any text, `_` one character, and a
    backslash escapes both.

    Backtracks only to the last `%`, so the time is bounded by the product of the lengths of the
    value and the pattern.
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    at = here = 0
    # Index in `parts` after the last %, and index in `value` where the match of that % ends so far.
    resume: tuple[int, int] | None = None
    while here < len(value):
        part = parts[at] if at < len(parts) else ""
        if part == "%":
            at += 1
            resume = at, here
        elif part == "_" or (part and unescaped(part) == value[here]):
            at += 1
            here += 1
        elif resume is not None:
            at, here = resume[0], resume[1] + 1
            resume = at, here
        else:
            return False
    return all(part == "%" for part in parts[at:])
