"""Translates SOQL queries to SQL, and converts the resulting rows to JSON.

Unlike in SQL, a comparison never has the result "unknown". An empty field equals only null. Its
comparison with any other value is false for most operators, and true for !=, NOT IN and EXCLUDES.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import RecordProblem, no_column
from sfpubsub.emulator.org.records.table import column_of, table_of

_ORDERED = ("=", "!=", "<", "<=", ">", ">=", "IN", "NOT IN")
_SIGNS_OF = {
    "boolean": ("=", "!=", "IN", "NOT IN"),
    "multipicklist": ("=", "!=", "IN", "NOT IN", "INCLUDES", "EXCLUDES"),
}
_TEXTS = ("string", "textarea", "picklist", "email", "phone", "url", "name")
_LONG_TEXT = 255
"""Text areas with more characters cannot be used in WHERE or ORDER BY. Documented."""

_LONGEST_PATTERN = 50_000
"""Maximum size of a LIKE pattern in bytes: the limit of SQLite."""


@dataclass(frozen=True)
class Plan:
    """A prepared query.

    Attributes:
        of: The queried object.
        select: The parsed query.
        fields: The selected fields, in order; empty for COUNT().
        numbers: SQL statement that returns the numbers of the matching rows, in order.
        values: The parameters of the SQL statements.
    """

    of: SObject
    select: soql.Select
    fields: tuple[Field, ...]
    numbers: str
    values: tuple[Any, ...]

    @property
    def table(self) -> str:
        """The quoted table name of the queried object."""
        return table_of(self.of)

    @property
    def count(self) -> str:
        """SQL statement that counts the matching rows."""
        return f"SELECT count(*) FROM ({self.numbers})"  # noqa: S608 - built here

    @property
    def columns(self) -> tuple[str, ...]:
        """The quoted names of the columns that the selected fields need."""
        needed: dict[str, None] = {}
        for field in self.fields:
            for holder in _holders(self.of, field).values():
                needed[column_of(holder)] = None
        return tuple(needed)

    @property
    def rows(self) -> str:
        """SQL statement that returns `columns` of the matching rows, in order."""
        return f"SELECT {', '.join(self.columns)} {self.numbers.removeprefix('SELECT n ')}"

    def shower(self) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """Return a function that converts the columns of a row to JSON values by field name."""
        place = {name: number for number, name in enumerate(self.columns)}
        makers: list[tuple[str, Field, dict[str, int]]] = [
            (
                field.name,
                field,
                {part: place[column_of(item)] for part, item in _holders(self.of, field).items()},
            )
            for field in self.fields
        ]

        def show(row: Sequence[Any]) -> dict[str, Any]:
            return {
                name: values.compound({part: row[at] for part, at in places.items()})
                if field.type == "address"
                else values.show(field, row[places[""]])
                for name, field, places in makers
            }

        return show


def plan(of: SObject, select: soql.Select, *, deleted: bool, owner: str | None = None) -> Plan:
    """Prepare a query.

    Args:
        of: The queried object.
        select: The query.
        deleted: Whether to include rows in the Recycle Bin and archived rows.
        owner: Id of the only user whose rows are returned, if the object has the field OwnerId.
            None returns the rows of all users.

    Raises:
        RecordProblem: The query uses a field that the object does not have, or uses a field in an
            unsupported way.
    """
    fields = tuple(_named(of, name) for name in select.fields)
    twice = [name for name in select.fields if select.fields.count(name) > 1]
    if twice:
        raise RecordProblem("MALFORMED_QUERY", f"duplicate field selected: {twice[0]}")
    conditions, given = [], []
    if not deleted:
        conditions.append("NOT IsDeleted")
        if of.archivable:
            conditions.append("NOT IsArchived")
    if owner is not None and of.field("OwnerId"):
        conditions.append("OwnerId = ?")
        given.append(owner)
    if select.where is not None:
        text, more = condition(of, select.where)
        conditions.append(text)
        given += more
    order = [_ordered(of, item) for item in select.order] + ["n"]
    sql = f"SELECT n FROM {table_of(of)}"  # noqa: S608 - a checked name
    if conditions:
        sql += " WHERE " + " AND ".join(f"({item})" for item in conditions)
    sql += f" ORDER BY {', '.join(order)}"
    if select.limit is not None or select.offset:
        sql += f" LIMIT {-1 if select.limit is None else select.limit} OFFSET {select.offset}"
    return Plan(of, select, fields, sql, tuple(given))


def condition(of: SObject, asked: soql.Condition) -> tuple[str, list[Any]]:
    """Return a condition as an SQL expression, and the parameters of the expression.

    Raises:
        RecordProblem: As for `plan`.
    """
    if isinstance(asked, soql.Joined):
        texts, given = [], []
        for item in asked.conditions:
            text, more = condition(of, item)
            texts.append(f"({text})")
            given += more
        if asked.by == "NOT":
            return f"NOT {texts[0]}", given
        return _joined(texts, asked.by), given
    field = _named(of, asked.field)
    if not field.is_stored or (field.type == "textarea" and field.length > _LONG_TEXT):
        raise _bad(f"field '{field.name}' can not be filtered in a query call")
    known = _SIGNS_OF.get(field.type, (*_ORDERED, "LIKE") if field.type in _TEXTS else _ORDERED)
    if asked.sign not in known:
        raise _bad(f"invalid operator {asked.sign} on {field.type} field {field.name}")
    column = column_of(field)
    given = [_value(field, item, asked.sign) for item in asked.values]
    if asked.sign in ("INCLUDES", "EXCLUDES"):
        return _includes(column, given, negated=asked.sign == "EXCLUDES")
    if asked.sign in ("=", "!=") and given == [None]:
        return f"{column} IS {'NOT ' if asked.sign == '!=' else ''}NULL", []
    if asked.sign in ("IN", "NOT IN"):
        return _listed(column, given, negated=asked.sign != "IN")
    escape = " ESCAPE '\\'" if asked.sign == "LIKE" else ""
    return f"coalesce({column} {asked.sign} ?{escape}, {int(asked.sign == '!=')})", given


def _listed(column: str, given: list[Any], *, negated: bool) -> tuple[str, list[Any]]:
    """Return an SQL expression for IN or NOT IN, and its parameters. The value null matches an
    empty field.
    """
    there = [value for value in given if value is not None]
    text = f"coalesce({column} IN ({', '.join('?' * len(there))}), 0)"
    if len(there) < len(given):
        text = f"({text} OR {column} IS NULL)"
    return (f"NOT {text}" if negated else text), there


def _joined(texts: Sequence[str], by: str) -> str:
    """Join SQL expressions with AND or OR as a balanced tree. SQLite limits expressions to a depth
    of 1,000, and in a chain each condition is one level deeper.
    """
    if len(texts) == 1:
        return texts[0]
    half = len(texts) // 2
    return f"({_joined(texts[:half], by)} {by} {_joined(texts[half:], by)})"


def _includes(column: str, given: list[Any], *, negated: bool) -> tuple[str, list[Any]]:
    """Return an SQL expression for INCLUDES or EXCLUDES, and its parameters. INCLUDES is true if
    the multipicklist contains all values of at least one group; EXCLUDES is the opposite.
    """
    groups, marks = [], []
    for group in given:
        items = str(group).split(";")
        marks += [f";{item};" for item in items]
        one = f"instr(';' || lower({column}) || ';', lower(?)) > 0"
        groups.append(" AND ".join([one] * len(items)))
    text = f"coalesce({' OR '.join(f'({group})' for group in groups)}, 0)"
    return (f"NOT {text}" if negated else text), marks


def _value(field: Field, given: soql.Literal, sign: str) -> Any:
    """Convert a value of a condition to the stored format or, for LIKE, to an SQL pattern.

    Raises:
        RecordProblem: The value does not have the type of the field.
    """
    word = given.text.lower() if given.kind == "word" else ""
    if word == "null":
        return None
    quoted = field.type not in ("boolean", "date", "datetime", "time") and not field.is_number
    if (given.kind == "text") != quoted:
        raise _bad(
            f"value of filter criterion for field '{field.name}' must be of type {field.type} and"
            f" should {'' if quoted else 'not '}be enclosed in quotes"
        )
    if sign == "LIKE":
        return _pattern(given.text)
    if field.type in ("id", "reference"):
        return values.full_id(soql.unescaped(given.text))
    if quoted:
        return soql.unescaped(given.text)
    fits = {"boolean": "word", "date": "time", "datetime": "time", "time": "time"}
    if given.kind != fits.get(field.type, "number"):
        raise _bad(
            f"value of filter criterion for field '{field.name}' must be of type {field.type}"
        )
    try:
        return values.keep(field, given.text)
    except RecordProblem as problem:
        raise _bad(problem.text) from problem


def _pattern(text: str) -> str:
    """Return a SOQL LIKE pattern as an SQL pattern, in which a backslash precedes each literal `%`,
    `_` and backslash.

    Raises:
        RecordProblem: The pattern is too long.
    """
    parts = []
    for part in re.findall(r"\\.|.", text, re.DOTALL):
        if part in ("\\%", "\\_"):
            parts.append(part)
        else:
            plain = soql.unescaped(part)
            parts.append("\\\\" if plain == "\\" else plain)
    pattern = "".join(parts)
    if len(pattern.encode()) > _LONGEST_PATTERN:
        raise RecordProblem("MALFORMED_QUERY", "the LIKE pattern is too long")
    return pattern


def _ordered(of: SObject, asked: soql.Order) -> str:
    field = _named(of, asked.field)
    if not field.is_stored or (field.type == "textarea" and field.length > _LONG_TEXT):
        raise _bad(f"field '{field.name}' can not be sorted in a query call")
    nulls = "LAST" if asked.nulls_first is False else "FIRST"
    return f"{column_of(field)} {'DESC' if asked.descending else 'ASC'} NULLS {nulls}"


def _named(of: SObject, name: str) -> Field:
    found = of.field(name)
    if found is None:
        raise no_column(name, of.name)
    return found


def _holders(of: SObject, field: Field) -> dict[str, Field]:
    return of.parts(field.name) if not field.is_stored else {"": field}


def _bad(text: str) -> RecordProblem:
    return RecordProblem("INVALID_FIELD", text)
