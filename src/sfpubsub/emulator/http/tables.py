"""Queries of objects that are small and computed: what can be asked for, and the answer's shape.

Knows no object: who has one describes it as a `Table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from sfpubsub.emulator.http import soql
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import RestRefused
from sfpubsub.emulator.org.sessions import eighteen

Row = Mapping[str, Any]

_SHOWN = 80
"""Characters of a name that an error repeats."""


@dataclass(frozen=True)
class Table:
    """An object that can be queried.

    Attributes:
        name: Of the object.
        columns: All that can be asked for, in the order of a whole record.
        comparable: Those that can be in conditions and be ordered by.
        rows: All records, by column, in the order of an answer without ORDER BY.
        single: Columns that a query can ask for only if it finds one row.
        first_version: API version in which the object came.
        path: Where its records are, behind the version; blank if they have no URL.
    """

    name: str
    columns: tuple[str, ...]
    comparable: tuple[str, ...]
    rows: Callable[[Call, soql.Query], Iterable[Row]]
    single: tuple[str, ...] = ()
    first_version: int = 0
    path: str = ""

    def answer(self, call: Call, version: int, asked: soql.Query) -> Answer:
        """The answer to a query of this object.

        Raises:
            RestRefused: It names a column that is not there, or asks too much at once.
        """
        columns = [self._column(name, self.columns) for name in asked.fields]
        where = [(self._column(item.field, self.comparable), item) for item in asked.where]
        order = [(self._column(name, self.comparable), down) for name, down in asked.order]
        found = [
            row
            for row in self.rows(call, asked)
            if all(_holds(column, item, row) for column, item in where)
        ]
        for column, down in reversed(order):
            found.sort(key=partial(_folded, column), reverse=down)
        found = found[: asked.limit]
        if len(found) > 1 and set(columns) & set(self.single):
            text = f"a query for {' or '.join(self.single)} must find one row at most"
            raise RestRefused("MALFORMED_QUERY", text)
        rows = [self.shown(row, version, columns) for row in found]
        return json_answer(
            {
                "size": len(rows),
                "totalSize": len(rows),
                "done": True,
                "queryLocator": None,
                "entityTypeName": self.name,
                "records": rows,
            }
        )

    def shown(self, row: Row, version: int, columns: Iterable[str] | None = None) -> dict[str, Any]:
        """A record as it is sent; all of it without `columns`."""
        attributes = {"type": self.name}
        if self.path:
            attributes["url"] = f"/services/data/v{version}.0/{self.path}/{row['Id']}"
        return {
            "attributes": attributes,
            **{column: row[column] for column in columns or self.columns},
        }

    def _column(self, name: str, known: tuple[str, ...]) -> str:
        for column in known:
            if column.lower() == name.lower():
                return column
        text = f"No such column '{name[:_SHOWN]}' on {self.name} here"
        raise RestRefused("INVALID_FIELD", text)


def parsed(call: Call) -> soql.Query:
    """The query of a request.

    Raises:
        RestRefused: It is not valid.
    """
    try:
        texts = parse_qs(call.query, max_num_fields=10, errors="strict").get("q", [""])
        return soql.parse(texts[0])
    except (soql.Malformed, ValueError) as error:
        raise RestRefused("MALFORMED_QUERY", str(error)) from error


def find(tables: Iterable[Table], asked: soql.Query, version: int) -> Table | None:
    """The table that a query is of, if that version has it."""
    for table in tables:
        if table.name.lower() == asked.of.lower() and version >= table.first_version:
            return table
    return None


def unsupported(name: str) -> RestRefused:
    """What is said of an object that cannot be queried."""
    return RestRefused("INVALID_TYPE", f"sObject type '{name[:_SHOWN]}' is not supported.")


def _holds(column: str, condition: soql.Condition, row: Row) -> bool:
    if column == "Id" and not condition.like:  # both forms, and letters count
        given = condition.text
        return bool(row["Id"] == (eighteen(given) if len(given) == 15 else given))
    return condition.holds(str(row[column]))


def _folded(column: str, row: Row) -> str:
    return str(row[column]).casefold()
