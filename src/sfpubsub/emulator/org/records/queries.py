"""Translates SOQL queries to SQL, and converts the resulting rows to JSON.

Unlike in SQL, a comparison never has the result "unknown". An empty field equals only null and the
empty string. Its comparison with any other value is false for most operators, and true for !=,
NOT IN and EXCLUDES. A boolean is never empty: null means false.

All objects are queried in this way, those whose rows are not stored too: their rows become a table
of the query. A parent is a left join.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.date_literals import span
from sfpubsub.emulator.org.records import values
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import RecordProblem, no_column, not_offered
from sfpubsub.emulator.org.records.table import column_of, is_cased, table_of

_ORDERED = ("=", "!=", "<", "<=", ">", ">=", "IN", "NOT IN")
_SIGNS_OF = {
    "boolean": ("=", "!=", "IN", "NOT IN"),
    "multipicklist": ("=", "!=", "IN", "NOT IN", "INCLUDES", "EXCLUDES"),
}
_TEXTS = ("string", "textarea", "picklist", "email", "phone", "url", "name")
_LONGEST_PATTERN = 50_000
"""Maximum size of a LIKE pattern in bytes: the limit of SQLite."""

_MOST_OFFSET = 2000
_MOST_PARENTS = 5
_MOST_FIELDS = 200
"""Maximum number of skipped rows (`_MOST_OFFSET`), of relationships in the name of a field
(`_MOST_PARENTS`), and of rows with FIELDS(ALL) or FIELDS(CUSTOM). Documented.
"""

Link = Callable[[str, Any], dict[str, Any]]
"""Returns the member `attributes` of a record, given the name of its object and its id."""


@dataclass(frozen=True)
class Virtual:
    """An object that can be queried, although its rows are not stored.

    Attributes:
        of: The object.
        rows: Returns the rows for a query, each with a value for every field.
    """

    of: SObject
    rows: Callable[[soql.Select], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class View:
    """The org as the user of a query sees it.

    Attributes:
        find: Returns the object with a name; raises RecordProblem if there is none.
        owner: Returns the id of the only user whose rows of an object are visible; None if all are.
        deleted: Whether to include rows in the Recycle Bin and archived rows.
        now: The time, in seconds since the epoch.
    """

    find: Callable[[str], SObject | Virtual]
    owner: Callable[[SObject], str | None]
    deleted: bool
    now: float


@dataclass(frozen=True)
class Output:
    """One value of a query's rows.

    Attributes:
        path: Its name in the row, preceded by the names of the relationships to its record.
        field: The field, or one with the type of an aggregate's result.
        columns: SQL expressions for the value, by the name of the component that each computes;
            blank unless the field is a compound one.
        told: The alias of an aggregate or, without one, how it was written; blank for a field.
    """

    path: tuple[str, ...]
    field: Field
    columns: Mapping[str, str]
    told: str = ""


@dataclass(frozen=True)
class Plan:
    """A prepared query.

    Attributes:
        of: The queried object.
        select: The parsed query.
        outputs: The values of a row, in order; empty for COUNT().
        parents: Object and SQL expression of the id, for each path to a parent that `outputs` name.
        ctes: The SQL before SELECT.
        source: The SQL from FROM to the last join.
        where: The SQL from WHERE to the last condition; may be empty.
        tail: The SQL after `where`.
        shared: The parameters of `ctes` and `source`.
        given: The parameters of `where`.
    """

    of: SObject
    select: soql.Select
    outputs: tuple[Output, ...]
    parents: Mapping[tuple[str, ...], tuple[SObject, str]]
    ctes: str
    source: str
    where: str
    tail: str
    shared: tuple[Any, ...]
    given: tuple[Any, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        """The parameters of `count`, `numbers` and `rows`."""
        return (*self.shared, *self.given)

    @property
    def count(self) -> str:
        """SQL statement that counts the matching rows."""
        rows = f"SELECT 1 {self.source}{self.where}{self.tail}"
        return f"{self.ctes}SELECT count(*) FROM ({rows})"  # noqa: S608 - built here

    @property
    def numbers(self) -> str:
        """SQL statement that returns the numbers of the matching rows, in order."""
        return f"{self.ctes}SELECT {table_of(self.of)}.n {self.source}{self.where}{self.tail}"

    @property
    def rows(self) -> str:
        """SQL statement that returns the matching rows, in order: the id, the columns of `outputs`,
        and the ids of `parents`.
        """
        return f"{self.ctes}SELECT {self._columns} {self.source}{self.where}{self.tail}"

    def numbered(self, count: int) -> str:
        """Return the SQL statement for *count* rows by their numbers, which precede the columns of
        `rows`. Its parameters are `shared` and the numbers.
        """
        n = f"{table_of(self.of)}.n"
        marks = ", ".join("?" * count)
        return f"{self.ctes}SELECT {n}, {self._columns} {self.source} WHERE {n} IN ({marks})"

    @property
    def _columns(self) -> str:
        own = f"{table_of(self.of)}.Id" if self.of.field("Id") else "NULL"
        mine = [text for output in self.outputs for text in output.columns.values()]
        parents = [text for _of, text in self.parents.values()]
        return ", ".join(["NULL" if self.select.aggregates else own, *mine, *parents])

    def shower(self, link: Link | None = None) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """Return a function that converts a row of `rows` to a JSON object.

        Args:
            link: Makes the member `attributes` of each record; None omits it.
        """
        at, places = 1, []
        for output in self.outputs:
            places.append((output, {part: at + n for n, part in enumerate(output.columns)}))
            at += len(output.columns)
        ids = {path: (of, at + n) for n, (path, (of, _id)) in enumerate(self.parents.items())}

        def show(row: Sequence[Any]) -> dict[str, Any]:
            shown: dict[str, Any] = {}
            if link is not None and self.select.aggregates:
                shown["attributes"] = {"type": "AggregateResult"}
            elif link is not None:
                shown["attributes"] = link(self.of.name, row[0])
            for output, where in places:
                holder = shown
                for depth, name in enumerate(output.path[:-1], start=1):
                    of, place = ids[output.path[:depth]]
                    if row[place] is None:
                        holder[name] = None
                        break
                    first = {} if link is None else {"attributes": link(of.name, row[place])}
                    holder = holder.setdefault(name, first)
                else:
                    holder[output.path[-1]] = (
                        values.compound({part: row[place] for part, place in where.items()})
                        if output.field.type == "address"
                        else values.show(output.field, row[where[""]])
                    )
            return shown

        return show


def plan(select: soql.Select, view: View) -> Plan:
    """Prepare a query.

    Raises:
        RecordProblem: The query uses an object or a field that does not exist, or uses one in an
            unsupported way.
    """
    tables = _Tables(view)
    scope = _Scope.of_query(select, tables)
    if select.aggregates:
        outputs = scope.grouped(select)
    else:
        outputs = tuple(found for column in select.columns for found in scope.outputs(column))
    paths = [output.path for output in outputs]
    twice = [".".join(path) for path in paths if paths.count(path) > 1]
    if twice:
        raise RecordProblem("MALFORMED_QUERY", f"duplicate field selected: {twice[0]}")
    where, given = scope.where(select)
    tail = scope.tail(select)
    ctes = ", ".join(tables.texts)
    parents = {
        path: scope.joined[path]
        for output in outputs
        for path in (output.path[:depth] for depth in range(1, len(output.path)))
    }
    return Plan(
        scope.of,
        select,
        outputs,
        {path: (of, f"{name}.Id") for path, (of, name) in parents.items()},
        f"WITH {ctes} " if ctes else "",
        scope.source,
        where,
        tail,
        (*tables.given, *scope.given),
        tuple(given),
    )


def condition(of: SObject, asked: soql.Condition) -> tuple[str, list[Any]]:
    """Return a condition on the fields of one object as an SQL expression, and the parameters of
    the expression.

    Raises:
        RecordProblem: The condition uses a field that the object does not have, or uses a field in
            an unsupported way.
    """
    return _Scope(of, None).condition(asked)


class _Tables:
    """The objects of a query, and the tables of those whose rows are not stored."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.texts: list[str] = []
        self.given: list[str] = []
        self._known: dict[str, SObject] = {}
        self._joins = 0

    def find(self, name: str, select: soql.Select) -> SObject:
        found = self.view.find(name)
        if isinstance(found, SObject):
            return found
        of = found.of
        if of.name not in self._known:
            columns = ", ".join(
                f"json_extract(value, '$[{number}]')"
                f"{'' if is_cased(field) else ' COLLATE NOCASE'} AS {column_of(field)}"
                for number, field in enumerate(of.fields)
            )
            rows_sql = f"SELECT key AS n, {columns} FROM json_each(?)"  # noqa: S608 - checked names
            self.texts.append(f"{table_of(of)} AS ({rows_sql})")
            rows = [[row.get(field.name) for field in of.fields] for row in found.rows(select)]
            self.given.append(json.dumps(rows))
            self._known[of.name] = of
        return of

    def next_join(self) -> str:
        self._joins += 1
        return f"j{self._joins}"


class _Scope:
    """The SELECT, or the condition, in which a field is named: its object and the joined parents.

    Args:
        of: The queried object.
        tables: The objects of the query; None if only fields of `of` can be named.

    Attributes:
        joined: The object of each joined parent and the name of its join, by path.
        source: The SQL from FROM to the last join so far.
        given: The parameters of `source`.
    """

    def __init__(self, of: SObject, tables: _Tables | None) -> None:
        self.of = of
        self._tables = tables
        self._select: soql.Select | None = None
        self.joined: dict[tuple[str, ...], tuple[SObject, str]] = {}
        self.source = f"FROM {table_of(of)}"
        self.given: list[Any] = []

    @classmethod
    def of_query(cls, select: soql.Select, tables: _Tables) -> _Scope:
        if select.offset > _MOST_OFFSET:
            raise RecordProblem(
                "NUMBER_OUTSIDE_VALID_RANGE", f"Maximum SOQL offset allowed is {_MOST_OFFSET}"
            )
        scope = cls(tables.find(select.of, select), tables)
        scope._select = select
        return scope

    # Fields.

    def named(self, name: str) -> tuple[tuple[str, ...], Field, str, SObject]:
        """Return the path of a field, the field, the SQL name of its table, and its object."""
        *relations, last = name.split(".")
        of, table = self.of, table_of(self.of)
        path: tuple[str, ...] = ()
        for relation in relations:
            of, table, path = self._parent(of, table, path, relation)
        field = of.field(last)
        if field is None:
            raise no_column(last, of.name)
        return (*path, field.name), field, table, of

    def _parent(
        self, of: SObject, table: str, path: tuple[str, ...], relation: str
    ) -> tuple[SObject, str, tuple[str, ...]]:
        field = next((f for f in of.fields if f.relationship.lower() == relation.lower()), None)
        if field is None or self._tables is None or self._select is None:
            raise RecordProblem(
                "INVALID_FIELD",
                f"Didn't understand relationship '{relation[:80]}' in field path. If you are"
                " attempting to use a custom relationship, be sure to append the '__r' after the"
                " custom relationship name.",
            )
        path = (*path, field.relationship)
        if path not in self.joined:
            if len(path) > _MOST_PARENTS:
                text = f"a field path may have at most {_MOST_PARENTS} relationships"
                raise RecordProblem("MALFORMED_QUERY", text)
            parents = []
            for target in field.reference_to:
                with contextlib.suppress(RecordProblem):  # the org does not have it
                    parents.append(self._tables.find(target, self._select))
            if len(parents) != 1:
                several = "with several objects" if parents else "without an object"
                raise not_offered(f"the relationship {field.relationship} {several}")
            (parent,) = parents
            join = self._tables.next_join()
            on = [f"{join}.Id = {table}.{column_of(field)}"]
            owner = self._tables.view.owner(parent)
            if parent.is_stored:
                on.append(f"NOT {join}.IsDeleted")
            if owner is not None and parent.field("OwnerId"):
                on.append(f"{join}.OwnerId = ?")
                self.given.append(owner)
            self.source += f" LEFT JOIN {table_of(parent)} AS {join} ON {' AND '.join(on)}"
            self.joined[path] = parent, join
        return *self.joined[path], path

    def outputs(self, column: soql.Column) -> list[Output]:
        """Return the values that a column of a query without aggregates selects."""
        if column.function == "FIELDS":
            return [self._output(field.name) for field in self._fields(column.field.upper())]
        return [self._output(column.field)]

    def _fields(self, which: str) -> list[Field]:
        limit = self._select.limit if self._select else None
        if which != "STANDARD" and (limit is None or limit > _MOST_FIELDS):
            text = f"The SOQL FIELDS function must have a LIMIT of at most {_MOST_FIELDS}"
            raise RecordProblem("MALFORMED_QUERY", text)
        kinds = {"ALL": (True, False), "STANDARD": (False,), "CUSTOM": (True,)}.get(which)
        if kinds is None:
            raise RecordProblem("MALFORMED_QUERY", f"unexpected token: {which[:40]}")
        return [field for field in self.of.fields if field.is_custom in kinds]

    def _output(self, name: str) -> Output:
        path, field, table, of = self.named(name)
        holders = {"": field} if field.is_stored else of.parts(field.name)
        columns = {part: f"{table}.{column_of(item)}" for part, item in holders.items()}
        return Output(path, field, columns)

    def _plain(self, name: str, use: str) -> tuple[Field, str]:
        """Return a field that can be filtered, sorted or grouped, and its SQL expression."""
        _path, field, table, _of = self.named(name)
        if not field.is_plain:
            raise _bad(f"field '{field.name}' can not be {use} in a query call")
        column = f"{table}.{column_of(field)}"
        return field, f"coalesce({column}, 0)" if field.type == "boolean" else column

    def _computed(self, column: soql.Column, use: str) -> tuple[Field, str]:
        """Return a field with the type of a column, and the SQL expression of the column."""
        field, text = self._plain(column.field, use)
        if not column.is_aggregate:
            return field, text
        function = column.function
        if function in ("SUM", "AVG") and not field.is_number:
            raise _bad(f"field {field.name} does not support aggregate operator {function}")
        if function.startswith("COUNT"):
            distinct = "DISTINCT " if function == "COUNT_DISTINCT" else ""
            return Field("", "", "int"), f"count({distinct}{text})"
        kind = "double" if function == "AVG" else field.type
        return Field("", "", kind), f"{function.lower()}({text})"

    def grouped(self, select: soql.Select) -> tuple[Output, ...]:
        """Return the values of a query with aggregates."""
        outputs, unnamed = [], 0
        for column in select.columns:
            field, text = self._computed(column, "grouped")
            name = column.alias or (field.name or f"expr{unnamed}")
            unnamed += column.is_aggregate and not column.alias
            written = column.alias or f"{column.function}({column.field})"
            told = written if column.is_aggregate else ""
            self._check_grouped(select, column)
            outputs.append(Output((name,), field, {"": text}, told))
        return tuple(outputs)

    @staticmethod
    def _check_grouped(select: soql.Select, column: soql.Column) -> None:
        if not column.is_aggregate and column.field.lower() not in map(str.lower, select.group):
            text = f"Field must be grouped or aggregated: {column.field[:80]}"
            raise RecordProblem("MALFORMED_QUERY", text)

    # Clauses.

    def where(self, select: soql.Select) -> tuple[str, list[Any]]:
        """Return the SQL of WHERE, and its parameters."""
        table, view = table_of(self.of), self._tables.view if self._tables else None
        conditions, given = [], []
        owner = view.owner(self.of) if view else None
        if self.of.is_stored and not (view and view.deleted):
            conditions.append(f"NOT {table}.IsDeleted")
            if self.of.archivable:
                conditions.append(f"NOT {table}.IsArchived")
        if owner is not None and self.of.field("OwnerId"):
            conditions.append(f"{table}.OwnerId = ?")
            given.append(owner)
        if select.where is not None:
            text, more = self.condition(select.where)
            conditions.append(text)
            given += more
        text = " AND ".join(f"({item})" for item in conditions)
        return (f" WHERE {text}" if text else ""), given

    def tail(self, select: soql.Select) -> str:
        """Return the SQL after WHERE."""
        order = [self._ordered(select, item) for item in select.order]
        text = ""
        if select.group:
            columns = [self._plain(name, "grouped")[1] for name in select.group]
            text += f" GROUP BY {', '.join(columns)}"
        elif not select.aggregates:
            order.append(f"{table_of(self.of)}.n")
        if order:
            text += f" ORDER BY {', '.join(order)}"
        if select.limit is not None or select.offset:
            text += f" LIMIT {-1 if select.limit is None else select.limit} OFFSET {select.offset}"
        return text

    def _ordered(self, select: soql.Select, asked: soql.Order) -> str:
        if select.aggregates:
            self._check_grouped(select, asked.column)
        elif asked.column.is_aggregate:
            raise RecordProblem("MALFORMED_QUERY", "ORDER BY has an aggregate, SELECT has none")
        text = self._computed(asked.column, "sorted")[1]
        nulls = "LAST" if asked.nulls_first is False else "FIRST"
        return f"{text} {'DESC' if asked.descending else 'ASC'} NULLS {nulls}"

    # Conditions.

    def condition(self, asked: soql.Condition) -> tuple[str, list[Any]]:
        """Return a condition as an SQL expression, and the parameters of the expression."""
        if isinstance(asked, soql.Joined):
            texts, given = [], []
            for item in asked.conditions:
                text, more = self.condition(item)
                texts.append(f"({text})")
                given += more
            return (f"NOT {texts[0]}" if asked.by == "NOT" else _joined(texts, asked.by)), given
        field, column = self._plain(asked.field, "filtered")
        known = _SIGNS_OF.get(field.type, (*_ORDERED, "LIKE") if field.type in _TEXTS else _ORDERED)
        if asked.sign not in known:
            raise _bad(f"invalid operator {asked.sign} on {field.type} field {field.name}")
        if asked.among is not None:
            return self._among(field, column, asked)
        first = asked.values[0]
        if field.type in ("date", "datetime") and first.kind == "word" and first.text != "null":
            return self._dated(field, column, asked)
        given = [_value(field, item, asked.sign) for item in asked.values]
        if asked.sign in ("INCLUDES", "EXCLUDES"):
            return _includes(column, given, negated=asked.sign == "EXCLUDES")
        if asked.sign in ("=", "!=") and given == [None]:
            return f"{column} IS {'NOT ' if asked.sign == '!=' else ''}NULL", []
        if asked.sign in ("IN", "NOT IN"):
            return _listed(column, given, negated=asked.sign != "IN")
        escape = " ESCAPE '\\'" if asked.sign == "LIKE" else ""
        return f"coalesce({column} {asked.sign} ?{escape}, {int(asked.sign == '!=')})", given

    def _among(self, field: Field, column: str, asked: soql.Comparison) -> tuple[str, list[Any]]:
        """Return the SQL of a semi-join or an anti-join, and its parameters."""
        if self._tables is None or asked.among is None:
            raise not_offered("a SELECT in this condition")
        select = asked.among
        scope = _Scope.of_query(select, self._tables)
        if len(select.columns) != 1 or select.aggregates or select.columns[0].function:
            raise RecordProblem("MALFORMED_QUERY", "a SELECT in WHERE must select one field")
        found, text = scope._plain(select.columns[0].field, "selected")
        for item in (field, found):
            if item.type not in ("id", "reference"):
                raise _bad(f"semi join sub-selects compare ids; {item.name} is not an id")
        where, given = scope.where(select)
        tail = scope.tail(select)
        inner = f"SELECT {text} {scope.source}{where}{' AND' if where else ' WHERE'} {text} NOTNULL"
        sql = f"coalesce({column} IN ({inner}{tail}), 0)"
        return (sql if asked.sign == "IN" else f"NOT {sql}"), [*scope.given, *given]

    def _dated(self, field: Field, column: str, asked: soql.Comparison) -> tuple[str, list[Any]]:
        """Return the SQL of a comparison with a date literal, and its parameters."""
        if self._tables is None:
            raise not_offered(f"{asked.values[0].text} in this condition")
        if len(asked.values) > 1 or asked.sign not in ("=", "!=", "<", "<=", ">", ">="):
            raise not_offered(f"{asked.sign} with date literals")
        try:
            days = span(asked.values[0].text, self._tables.view.now)
        except ValueError as error:
            raise _bad(f"{field.name}: {error}") from error
        first, after = (values.keep(field, day.isoformat()) for day in days)
        within = f"coalesce({column} >= ? AND {column} < ?, 0)"
        text, given = {
            "=": (within, [first, after]),
            "!=": (f"NOT {within}", [first, after]),
            "<": (f"coalesce({column} < ?, 0)", [first]),
            "<=": (f"coalesce({column} < ?, 0)", [after]),
            ">": (f"coalesce({column} >= ?, 0)", [after]),
            ">=": (f"coalesce({column} >= ?, 0)", [first]),
        }[asked.sign]
        return text, given


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
        return 0 if field.type == "boolean" else None
    quoted = field.type not in ("boolean", "date", "datetime", "time") and not field.is_number
    if (given.kind == "text") != quoted:
        raise _bad(
            f"value of filter criterion for field '{field.name}' must be of type {field.type} and"
            f" should {'' if quoted else 'not '}be enclosed in quotes"
        )
    if sign == "LIKE":
        return _pattern(given.text)
    if quoted and not given.text:
        return None
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


def _bad(text: str) -> RecordProblem:
    return RecordProblem("INVALID_FIELD", text)
