"""Parser for the supported part of SOQL: a single SELECT.

    SELECT field, … | COUNT() FROM object
        [WHERE condition] [ORDER BY field [ASC | DESC] [NULLS FIRST | LAST], …]
        [LIMIT n] [OFFSET n]

A condition compares a field with strings in single quotes, numbers, true, false, null, dates and
times. The operators are =, !=, <>, <, <=, >, >=, LIKE, IN (…), NOT IN (…), INCLUDES (…) and
EXCLUDES (…). Conditions are combined with AND, OR, NOT and parentheses. As in an org, AND and OR
cannot be mixed without parentheses.

Everything else is rejected as malformed. Keywords are case-insensitive. Names of objects and fields
are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')"
    r"|(?P<time>\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))?)"
    r"|(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?\.\d+)"
    r"|(?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<sign>!=|<>|<=|>=|[=<>(),]))",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_LONGEST_NUMBER = 9
_LONGEST = 100_000
"""Maximum number of characters in a query. Documented."""

_DEEPEST = 50
"""Maximum depth of parentheses and NOTs; more could overflow the stack."""

_SIGNS = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LISTS = ("IN", "INCLUDES", "EXCLUDES")

T = TypeVar("T")


class Malformed(Exception):  # noqa: N818 - an answer, not a bug
    """Raised if a query cannot be parsed; the message gives the reason."""


@dataclass(frozen=True)
class Literal:
    """A value in a query, as written.

    Attributes:
        kind: text (a string), number, time, or word (true, false or null).
        text: The value; for a string, without the quotes but with the backslashes.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of a field with a value or a list of values.

    Attributes:
        field: Name of the field, as written.
        sign: The operator: =, != (also for <>), <, <=, >, >=, LIKE, IN, NOT IN, INCLUDES or
            EXCLUDES.
        values: The values; exactly one, unless the operator accepts a list.
    """

    field: str
    sign: str
    values: tuple[Literal, ...]


@dataclass(frozen=True)
class Joined:
    """Several conditions combined with AND or OR, or a single condition negated by NOT.

    Attributes:
        by: AND, OR or NOT.
        conditions: The conditions.
    """

    by: str
    conditions: tuple[Condition, ...]


Condition = Comparison | Joined


@dataclass(frozen=True)
class Order:
    """One field of ORDER BY; `nulls_first` is None if it is not specified."""

    field: str
    descending: bool
    nulls_first: bool | None


@dataclass(frozen=True)
class Select:
    """A parsed query. Names are as written and have not been checked.

    Attributes:
        fields: Names of the selected fields; empty for COUNT().
        of: Name of the object.
        where: The condition; None selects all records.
        order: The fields to sort by.
        limit: Maximum number of rows; None for all.
        offset: Number of rows to skip.
    """

    fields: tuple[str, ...]
    of: str
    where: Condition | None
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    @property
    def counts(self) -> bool:
        """Whether this is a COUNT() query."""
        return not self.fields


def parse(text: str) -> Select:
    """Parse a query.

    Raises:
        Malformed: The text is not valid, or uses unsupported syntax.
    """
    if len(text) > _LONGEST:
        raise Malformed(f"the query has {len(text)} characters; the maximum is {_LONGEST}")
    return _Parser(text).query()


def parse_condition(text: str) -> Condition:
    """Parse a condition, as it is written after WHERE.

    Raises:
        Malformed: The text is not valid, or uses unsupported syntax.
    """
    return _Parser(text).only_condition()


def unescaped(text: str) -> str:
    """Return the text of a string literal with its backslash escapes replaced."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[Literal] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Malformed(f"unexpected token at column {at + 1}")
            kind = str(found.lastgroup)
            self._tokens.append(Literal(kind, found[kind]))
            at = found.end()
        self._next = 0

    def query(self) -> Select:
        self._expect("SELECT")
        fields = self._fields()
        self._expect("FROM")
        of = self._name()
        where = self._condition(0) if self._takes("WHERE") else None
        order: tuple[Order, ...] = ()
        if self._takes("ORDER"):
            self._expect("BY")
            order = self._several(self._ordered)
        limit = self._count("LIMIT") if self._takes("LIMIT") else None
        offset = self._count("OFFSET") if self._takes("OFFSET") else 0
        if self._next < len(self._tokens):
            raise self._unexpected()
        return Select(fields, of, where, order, limit, offset)

    def only_condition(self) -> Condition:
        found = self._condition(0)
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _fields(self) -> tuple[str, ...]:
        first = self._name()
        if first.upper() == "COUNT" and self._takes("("):
            self._expect(")")
            return ()
        rest = self._several(self._name) if self._takes(",") else ()
        return (first, *rest)

    def _several(self, one: Callable[[], T]) -> tuple[T, ...]:
        found = [one()]
        while self._takes(","):
            found.append(one())
        return tuple(found)

    def _condition(self, depth: int) -> Condition:
        found = [self._simple(depth)]
        for word in ("AND", "OR"):
            if self._at(word):
                while self._takes(word):
                    found.append(self._simple(depth))
                if self._at("AND") or self._at("OR"):
                    raise Malformed(
                        f"unexpected token: {self._tokens[self._next].text} (AND and OR cannot be "
                        f"mixed without parentheses)"
                    )
                return Joined(word, tuple(found))
        return found[0]

    def _simple(self, depth: int) -> Condition:
        if depth > _DEEPEST:
            raise Malformed("conditions are nested too deeply: use fewer parentheses and NOTs")
        if self._takes("NOT"):
            return Joined("NOT", (self._simple(depth + 1),))
        if self._takes("("):
            found = self._condition(depth + 1)
            self._expect(")")
            return found
        field = self._name()
        negated = self._takes("NOT")
        sign = self._take()
        word = sign.text.upper()
        if word in _LISTS and (word == "IN" or not negated):
            self._expect("(")
            values = self._several(self._value)
            self._expect(")")
            return Comparison(field, f"NOT {word}" if negated else word, values)
        known = word == "LIKE" or (sign.kind == "sign" and word in _SIGNS)
        if negated or not known:
            self._next -= 1
            raise self._unexpected()
        return Comparison(field, _SIGNS.get(word, word), (self._value(),))

    def _value(self) -> Literal:
        token = self._take()
        if token.kind == "text":
            return Literal("text", token.text[1:-1])
        if token.kind == "sign" or (
            token.kind == "word" and token.text.lower() not in ("true", "false", "null")
        ):
            self._next -= 1
            raise self._unexpected()
        return token

    def _ordered(self) -> Order:
        name, descending, nulls_first = self._name(), False, None
        if self._takes("DESC"):
            descending = True
        else:
            self._takes("ASC")
        if self._takes("NULLS"):
            nulls_first = self._takes("FIRST")
            if not nulls_first:
                self._expect("LAST")
        return Order(name, descending, nulls_first)

    def _name(self) -> str:
        token = self._take()
        if token.kind != "word":
            self._next -= 1
            raise self._unexpected()
        return token.text

    def _count(self, what: str) -> int:
        token = self._take()
        if not (token.text.isascii() and token.text.isdecimal()) or len(token.text) > (
            _LONGEST_NUMBER
        ):
            raise Malformed(f"{what} must be followed by a number of 1 to {_LONGEST_NUMBER} digits")
        return int(token.text)

    def _at(self, word: str) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next].text.upper() == word

    def _takes(self, word: str) -> bool:
        fits = self._at(word)
        self._next += fits
        return fits

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._unexpected()

    def _take(self) -> Literal:
        if self._next >= len(self._tokens):
            raise self._unexpected()
        self._next += 1
        return self._tokens[self._next - 1]

    def _unexpected(self) -> Malformed:
        if self._next < len(self._tokens):
            return Malformed(f"unexpected token: {self._tokens[self._next].text[:40]}")
        return Malformed("unexpected end of the query")
