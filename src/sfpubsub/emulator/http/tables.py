"""Queries for objects whose rows are computed in memory, and the format of the response.

The objects are defined in other modules, each as a `Table`.
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
"""Maximum number of characters of a name that an error quotes."""


@dataclass(frozen=True)
class Table:
    """An object that can be queried, although `org.records` does not store it.

    Attributes:
        name: The object's name.
        columns: All columns that can be selected, in the order of a complete record.
        comparable: Columns that can be used in conditions and in ORDER BY.
        rows: Returns all records, each as a mapping from column to value, in the order used when a
            query has no ORDER BY.
        single: Columns that can be selected only if the query finds at most one row.
        first_version: API version that introduced the object.
        path: The part of a record's URL path between the API version and the id; empty if the
            records have no URL.
    """

    name: str
    columns: tuple[str, ...]
    comparable: tuple[str, ...]
    rows: Callable[[Call, soql.Query], Iterable[Row]]
    single: tuple[str, ...] = ()
    first_version: int = 0
    path: str = ""

    def answer(self, call: Call, version: int, asked: soql.Query) -> Answer:
        """Return the response to a query for this object.

        Raises:
            RestRefused: A column in the query does not exist or cannot be used in its clause, or
                the query selects a column of `single` and finds several rows.
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
            text = f"a query for {' or '.join(self.single)} must find at most one row"
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
        """Return a record as the JSON object of a response.

        Args:
            row: The record's value for each column.
            version: The API version in the record's URL.
            columns: The columns to include; None means all.
        """
        attributes = {"type": self.name}
        if self.path:
            attributes["url"] = f"/services/data/v{version}.0/{self.path}/{row['Id']}"
        return {
            "attributes": attributes,
            **_nested({column: row[column] for column in columns or self.columns}),
        }

    def _column(self, name: str, known: tuple[str, ...]) -> str:
        for column in known:
            if column.lower() == name.lower():
                return column
        text = f"No such column '{name[:_SHOWN]}' on {self.name} in this clause"
        raise RestRefused("INVALID_FIELD", text)


def parsed(call: Call) -> soql.Query:
    """Parse the query in a request.

    Raises:
        RestRefused: The query is missing or not valid.
    """
    try:
        texts = parse_qs(call.query, max_num_fields=10, errors="strict").get("q", [""])
        return soql.parse(texts[0])
    except (soql.Malformed, ValueError) as error:
        raise RestRefused("MALFORMED_QUERY", str(error)) from error


def find(tables: Iterable[Table], asked: soql.Query, version: int) -> Table | None:
    """Return the table that a query names; None if this API version does not have it."""
    for table in tables:
        if table.name.lower() == asked.of.lower() and version >= table.first_version:
            return table
    return None


def unsupported(name: str) -> RestRefused:
    """Return the error for an object that cannot be queried."""
    return RestRefused("INVALID_TYPE", f"sObject type '{name[:_SHOWN]}' is not supported.")


def _nested(row: Row) -> dict[str, Any]:
    """Return a row in which fields of a parent, such as `Parent.Name`, are objects of their own."""
    nested: dict[str, Any] = {}
    for column, value in row.items():
        parent, _, name = column.rpartition(".")
        if parent:
            nested.setdefault(parent, {})[name] = value
        else:
            nested[column] = value
    return nested


def _holds(column: str, condition: soql.Condition, row: Row) -> bool:
    if column == "Id" and not condition.like:  # 15 or 18 characters; case matters
        given = {eighteen(text) if len(text) == 15 else text for text in condition.texts}
        return row["Id"] in given
    return condition.holds(str(row[column]))


def _folded(column: str, row: Row) -> str:
    return str(row[column]).casefold()
