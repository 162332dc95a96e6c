"""Parser for the supported part of SOQL: a single SELECT.

    SELECT column, … | COUNT() FROM object [[AS] alias]
        [USING SCOPE everything] [WHERE condition] [WITH SECURITY_ENFORCED]
        [GROUP BY field, …] [ORDER BY column [ASC | DESC] [NULLS FIRST | LAST], …]
        [LIMIT n] [OFFSET n] [FOR VIEW | FOR REFERENCE]

A column is a field, a field of a parent (`Account.Owner.Name`), an aggregate (COUNT,
COUNT_DISTINCT, MIN, MAX, SUM, AVG), toLabel(field) or FIELDS(ALL | STANDARD | CUSTOM); fields and
aggregates of a grouped query may have an alias.

A condition compares a field with strings in single quotes, numbers, true, false, null, dates, times
and date literals such as TODAY. The operators are =, !=, <>, <, <=, >, >=, LIKE, IN (…),
NOT IN (…), INCLUDES (…) and EXCLUDES (…); IN and NOT IN also accept a SELECT of one field.
Conditions are combined with AND, OR, NOT and parentheses. As in an org, AND and OR cannot be mixed
without parentheses.

What an org understands and the emulator does not is rejected as such, and everything else as
malformed. Keywords are case-insensitive. Names of objects and fields are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from sfpubsub.emulator.org.date_literals import is_date_literal

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')"
    r"|(?P<time>\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))?)"
    r"|(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?\.\d+)"
    r"|(?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?::\d+)?)"
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
AGGREGATES = ("COUNT", "COUNT_DISTINCT", "MIN", "MAX", "SUM", "AVG")
_FUNCTIONS = (*AGGREGATES, "TOLABEL", "FIELDS")
_UNKNOWN = (
    "HAVING", "TYPEOF", "FORMAT", "CONVERTCURRENCY", "CONVERTTIMEZONE", "DISTANCE", "GEOLOCATION",
    "GROUPING", "CALENDAR_MONTH", "CALENDAR_QUARTER", "CALENDAR_YEAR", "DAY_IN_MONTH",
    "DAY_IN_WEEK", "DAY_IN_YEAR", "DAY_ONLY", "FISCAL_MONTH", "FISCAL_QUARTER", "FISCAL_YEAR",
    "HOUR_IN_DAY", "WEEK_IN_MONTH", "WEEK_IN_YEAR", "ROLLUP", "CUBE", "USER_MODE", "SYSTEM_MODE",
    "DATA", "DELEGATED", "MINE", "TEAM", "MY_TERRITORY", "MINE_AND_MY_GROUPS", "UPDATE",
)  # fmt: skip
"""Words that begin a part of SOQL which the emulator does not have."""

_CLAUSES = (
    "SELECT", "FROM", "AND", "OR", "NOT", "IN", "LIKE", "BY", "USING", "WHERE", "WITH", "GROUP",
    "HAVING", "ORDER", "LIMIT", "OFFSET", "FOR", "ALL", "UPDATE",
)  # fmt: skip
"""Words that can follow the name of an object and are not its alias."""

T = TypeVar("T")


class Malformed(Exception):  # noqa: N818 - an answer, not a bug
    """Raised if a query cannot be parsed; the message gives the reason."""


class NotOffered(Malformed):
    """Raised if a query uses a part of SOQL that an org has and the emulator does not."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not supported by the emulator")


@dataclass(frozen=True)
class Literal:
    """A value in a query, as written.

    Attributes:
        kind: text (a string), number, time, or word (true, false, null or a date literal).
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
        among: The query whose rows are the list of values; None if `values` is.
    """

    field: str
    sign: str
    values: tuple[Literal, ...]
    among: Select | None = None


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
class Column:
    """A value that a query returns or sorts by.

    Attributes:
        field: Name of the field, with the names of relationships before it; for FIELDS, what is
            in the parentheses.
        function: In upper case, one of `AGGREGATES`, TOLABEL or FIELDS; blank for a plain field.
        alias: The name for it in the rows; blank if none was given.
    """

    field: str
    function: str = ""
    alias: str = ""

    @property
    def is_aggregate(self) -> bool:
        """Whether this is computed from several rows."""
        return self.function in AGGREGATES


@dataclass(frozen=True)
class Order:
    """One column of ORDER BY; `nulls_first` is None if it is not specified."""

    column: Column
    descending: bool
    nulls_first: bool | None


@dataclass(frozen=True)
class Select:
    """A parsed query. Names are without the alias of the object, and have not been checked.

    Attributes:
        columns: The selected columns; empty for COUNT().
        of: Name of the object.
        where: The condition; None selects all records.
        group: Names of the fields of GROUP BY.
        order: The columns to sort by.
        limit: Maximum number of rows; None for all.
        offset: Number of rows to skip.
    """

    columns: tuple[Column, ...]
    of: str
    where: Condition | None
    group: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int | None
    offset: int

    @property
    def counts(self) -> bool:
        """Whether this is a COUNT() query."""
        return not self.columns

    @property
    def aggregates(self) -> bool:
        """Whether a row stands for several records."""
        return bool(self.group) or any(column.is_aggregate for column in self.columns)


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
        self._names: tuple[str, ...] = ()  # what may stand before a field for the object itself

    def query(self) -> Select:
        found = self._select()
        if self._takes("ALL"):
            self._expect("ROWS")
            raise Malformed("ALL ROWS is not allowed in a query of the API: use queryAll")
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _select(self) -> Select:
        outer = self._names
        self._expect("SELECT")
        start = self._next
        self._skip_to_from()
        of = self._name()
        self._names = (of.lower(),)
        if self._takes("AS") or (
            self._next < len(self._tokens)
            and self._tokens[self._next].kind == "word"
            and self._tokens[self._next].text.upper() not in _CLAUSES
        ):
            self._names = (of.lower(), self._name().lower())
        after, self._next = self._next, start
        columns = self._columns()
        self._expect("FROM")
        self._next = after
        if self._takes("USING"):
            self._expect("SCOPE")
            self._expect("EVERYTHING")
        where = self._condition(0) if self._takes("WHERE") else None
        if self._takes("WITH"):
            self._expect("SECURITY_ENFORCED")
        group: tuple[str, ...] = ()
        if self._takes("GROUP"):
            self._expect("BY")
            group = self._several(self._grouped)
        order: tuple[Order, ...] = ()
        if self._takes("ORDER"):
            self._expect("BY")
            order = self._several(self._ordered)
        limit = self._count("LIMIT") if self._takes("LIMIT") else None
        offset = self._count("OFFSET") if self._takes("OFFSET") else 0
        if self._takes("FOR") and not self._takes("REFERENCE"):
            self._expect("VIEW")
        self._names = outer
        found = Select(columns, of, where, group, order, limit, offset)
        if not found.aggregates and any(column.alias for column in columns):
            raise Malformed("only aggregate expressions use field aliasing")
        return found

    def _skip_to_from(self) -> None:
        while not self._takes("FROM"):
            if self._takes("(") and self._at("SELECT"):
                raise NotOffered("a subquery in SELECT")
            self._next += not self._at("FROM")
            if self._next >= len(self._tokens):
                raise self._unexpected()

    def only_condition(self) -> Condition:
        found = self._condition(0)
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _columns(self) -> tuple[Column, ...]:
        if self._at("COUNT") and [token.text for token in self._tokens[self._next + 1 :][:2]] == [
            "(",
            ")",
        ]:
            self._next += 3
            return ()
        return self._several(self._column)

    def _column(self) -> Column:
        found = self._plain_column()
        named = not (self._at(",") or self._at("FROM")) and self._next < len(self._tokens)
        return replace(found, alias=self._name()) if named else found

    def _plain_column(self) -> Column:
        name = self._field()
        if name.upper() == "TYPEOF":
            raise NotOffered("TYPEOF")
        if not self._takes("("):
            return Column(name)
        if name.upper() not in _FUNCTIONS:
            self._next -= 2
            raise self._unexpected()
        field = self._field()
        self._expect(")")
        return Column(field, name.upper())

    def _grouped(self) -> str:
        column = self._plain_column()
        if column.function:
            raise Malformed(f"unexpected token: {column.function}")
        return column.field

    def _field(self) -> str:
        name = self._name()
        first, dot, rest = name.partition(".")
        return rest if dot and first.lower() in self._names else name

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
        column = self._plain_column()
        if column.function not in ("", "TOLABEL"):
            raise Malformed(f"unexpected token: {column.function}")
        field = column.field
        negated = self._takes("NOT")
        sign = self._take()
        word = sign.text.upper()
        if word in _LISTS and (word == "IN" or not negated):
            self._expect("(")
            if word == "IN" and self._at("SELECT"):
                among = self._select()
                self._expect(")")
                return Comparison(field, "NOT IN" if negated else "IN", (), among)
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
        known = token.text.lower() in ("true", "false", "null") or is_date_literal(token.text)
        if token.kind == "sign" or (token.kind == "word" and not known):
            self._next -= 1
            raise self._unexpected()
        return token

    def _ordered(self) -> Order:
        column, descending, nulls_first = self._plain_column(), False, None
        if self._takes("DESC"):
            descending = True
        else:
            self._takes("ASC")
        if self._takes("NULLS"):
            nulls_first = self._takes("FIRST")
            if not nulls_first:
                self._expect("LAST")
        return Order(column, descending, nulls_first)

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
            text = self._tokens[self._next].text[:40]
            if text.upper() in _UNKNOWN:
                return NotOffered(text.upper())
            return Malformed(f"unexpected token: {text}")
        return Malformed("unexpected end of the query")
