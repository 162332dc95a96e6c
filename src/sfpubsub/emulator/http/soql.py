"""Queries of the few objects that are not records: kept in memory, compared in Python.

What is read is `org.soql`, cut to a list of fields, and `=` and LIKE on texts joined by AND; the
rest is malformed here. Texts are the same in upper and lower case. Knows no object and no field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.soql import Malformed, unescaped

__all__ = ["Condition", "Malformed", "Query", "parse"]


@dataclass(frozen=True)
class Condition:
    """One comparison of the WHERE clause."""

    field: str
    like: bool
    text: str

    def holds(self, value: str) -> bool:
        """Whether a value meets it."""
        if not self.like:
            return value.casefold() == unescaped(self.text).casefold()
        return _is_like(value.casefold(), self.text.casefold())


@dataclass(frozen=True)
class Query:
    """A query as written; names are not checked.

    Attributes:
        order: Fields, and whether each is descending.
        limit: None is all rows.
    """

    fields: tuple[str, ...]
    of: str
    where: tuple[Condition, ...]
    order: tuple[tuple[str, bool], ...]
    limit: int | None


def parse(text: str) -> Query:
    """Read a query.

    Raises:
        Malformed: It is not one, or more than is understood here.
    """
    read = soql.parse(text)
    if read.counts or read.offset or any(item.nulls_first is not None for item in read.order):
        raise Malformed("COUNT(), OFFSET and NULLS are not understood here")
    order = tuple((item.field, item.descending) for item in read.order)
    return Query(read.fields, read.of, _conditions(read.where), order, read.limit)


def _conditions(where: soql.Condition | None) -> tuple[Condition, ...]:
    if where is None:
        return ()
    if isinstance(where, soql.Joined):
        if where.by != "AND":
            raise Malformed(f"unexpected token: {where.by}")
        return tuple(one for item in where.conditions for one in _conditions(item))
    if where.sign not in ("=", "LIKE"):
        raise Malformed(f"unexpected token: {where.sign}")
    value = where.values[0]
    if value.kind != "text":
        raise Malformed("a value is a text in single quotes")
    return (Condition(where.field, where.sign == "LIKE", value.text),)


def _is_like(value: str, pattern: str) -> bool:
    """Whether a value meets a LIKE: % is anything, _ one letter, a backslash takes that away.

    Goes back to the last % only, so that no pattern takes longer than their lengths multiplied.
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    at = here = 0
    resume: tuple[int, int] | None = None  # behind the last %, and what it stands for so far
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
