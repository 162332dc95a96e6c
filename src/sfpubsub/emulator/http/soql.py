"""The part of SOQL that is understood: one SELECT, and nothing that is guessed at.

    SELECT field, … FROM object
        [WHERE field = 'text' | field LIKE 'te%' [AND …]]
        [ORDER BY field [ASC | DESC], …] [LIMIT n]

Everything else is malformed. Words are the same in upper and lower case, and so are texts that are
compared. Knows no object and no field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_]\w*|\d+)|(?P<sign>[=,]))")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_LONGEST_NUMBER = 9

T = TypeVar("T")


class Malformed(Exception):  # noqa: N818 - an answer, not a bug
    """A query cannot be read; the text says where."""


@dataclass(frozen=True)
class Condition:
    """One comparison of the WHERE clause."""

    field: str
    like: bool
    text: str

    def holds(self, value: str) -> bool:
        """Whether a value meets it."""
        if not self.like:
            return value.casefold() == _unescaped(self.text).casefold()
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
        Malformed: It is none, or more than is understood.
    """
    return _Parser(text).query()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Malformed(f"unexpected token at column {at + 1}")
            self._tokens.append(found[0].strip())
            at = found.end()
        self._next = 0

    def query(self) -> Query:
        self._expect("SELECT")
        fields = self._several(self._name)
        self._expect("FROM")
        of = self._name()
        where: list[Condition] = []
        if self._takes("WHERE"):
            where.append(self._condition())
            while self._takes("AND"):
                where.append(self._condition())
        order: tuple[tuple[str, bool], ...] = ()
        if self._takes("ORDER"):
            self._expect("BY")
            order = self._several(self._ordered)
        limit = self._number() if self._takes("LIMIT") else None
        if self._next < len(self._tokens):
            raise self._unexpected()
        return Query(fields, of, tuple(where), order, limit)

    def _several(self, one: Callable[[], T]) -> tuple[T, ...]:
        found = [one()]
        while self._takes(","):
            found.append(one())
        return tuple(found)

    def _condition(self) -> Condition:
        field = self._name()
        like = self._takes("LIKE")
        if not like:
            self._expect("=")
        text = self._take()
        if not text.startswith("'"):
            raise Malformed("a value is a text in single quotes")
        return Condition(field, like, text[1:-1])

    def _ordered(self) -> tuple[str, bool]:
        name = self._name()
        if self._takes("DESC"):
            return name, True
        self._takes("ASC")
        return name, False

    def _name(self) -> str:
        token = self._take()
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            self._next -= 1
            raise self._unexpected()
        return token

    def _number(self) -> int:
        token = self._take()
        if not (token.isascii() and token.isdecimal()) or len(token) > _LONGEST_NUMBER:
            raise Malformed("LIMIT needs a number")
        return int(token)

    def _takes(self, word: str) -> bool:
        fits = self._next < len(self._tokens) and self._tokens[self._next].upper() == word
        self._next += fits
        return fits

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._unexpected()

    def _take(self) -> str:
        if self._next >= len(self._tokens):
            raise self._unexpected()
        self._next += 1
        return self._tokens[self._next - 1]

    def _unexpected(self) -> Malformed:
        if self._next < len(self._tokens):
            return Malformed(f"unexpected token: {self._tokens[self._next][:40]}")
        return Malformed("unexpected end of the query")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


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
        elif part == "_" or (part and _unescaped(part) == value[here]):
            at += 1
            here += 1
        elif resume is not None:
            at, here = resume[0], resume[1] + 1
            resume = at, here
        else:
            return False
    return all(part == "%" for part in parts[at:])
