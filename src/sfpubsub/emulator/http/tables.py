"""Objects whose rows are computed in memory, and the responses to queries.

The objects are defined in other modules, each as a `Table`; `org.records.queries` evaluates all
queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sfpubsub.emulator.http.exchange import Call
from sfpubsub.emulator.org import soql
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.queries import Link, Plan, Virtual

Row = Mapping[str, Any]


class Table:
    """An object that can be queried, although `org.records` does not store it.

    Args:
        name: The object's name.
        fields: The type of each field, in the order of a complete record; see `SObject.computed`.
        rows: Returns all records, each as a mapping from field to value, in the order used when a
            query has no ORDER BY.
        first_version: API version that introduced the object.
        path: The part of a record's URL path between the API version and the id; empty if the
            records have no URL.
        prefix: The first three characters of the ids.
    """

    def __init__(
        self,
        name: str,
        fields: Mapping[str, str],
        rows: Callable[[Call, soql.Select], Iterable[Row]],
        first_version: int = 0,
        path: str = "",
        prefix: str = "",
    ) -> None:
        self.of = SObject.computed(name, prefix, fields)
        self.rows = rows
        self.first_version = first_version
        self.path = path

    def shown(self, row: Row, version: int) -> dict[str, Any]:
        """Return a complete record as the JSON object of a response."""
        url = f"/services/data/v{version}.0/{self.path}/{row['Id']}"
        return {
            "attributes": {"type": self.of.name, "url": url},
            **{field.name: row[field.name] for field in self.of.fields},
        }


def of_call(call: Call, tables: Iterable[Table]) -> dict[str, Virtual]:
    """Return the tables that the API version of a request has, by name in lower case."""
    return {
        table.of.name.lower(): Virtual(table.of, partial(table.rows, call))
        for table in tables
        if int(call.parts["version"]) >= table.first_version
    }


def linker(call: Call, tables: Iterable[Table]) -> Link:
    """Return a function that makes the member `attributes` of a record in the response."""
    paths = {table.of.name: table.path for table in tables}
    base = f"/services/data/v{call.parts['version']}.0"

    def link(name: str, record_id: Any) -> dict[str, Any]:
        path = paths.get(name, f"sobjects/{name}")
        return {"type": name} | ({"url": f"{base}/{path}/{record_id}"} if path else {})

    return link


def metadata(plan: Plan) -> dict[str, Any]:
    """Return the columns of a query as the JSON object that describes its rows."""
    columns: list[dict[str, Any]] = []
    for output in plan.outputs:
        level = columns
        for name in output.path[:-1]:
            parent = next((item for item in level if item["columnName"] == name), None)
            if parent is None:
                parent = _column(name, Field("", "", "reference"), "")
                level.append(parent)
            level = parent["joinColumns"]
        level.append(_column(output.path[-1], output.field, output.told))
    return {
        "columnMetadata": columns,
        "entityName": plan.of.name,
        "groupBy": bool(plan.select.group),
        "idSelected": any(output.path == ("Id",) for output in plan.outputs),
        "keyPrefix": plan.of.key_prefix,
    }


def _column(name: str, field: Field, told: str) -> dict[str, Any]:
    return {
        "aggregate": bool(told),
        "apexType": None,
        "booleanType": field.type == "boolean",
        "columnName": name,
        "custom": field.is_custom,
        "displayName": told or name,
        "foreignKeyName": None,
        "insertable": field.createable,
        "joinColumns": [],
        "numberType": field.is_number,
        "textType": not (field.is_number or field.type == "boolean"),
        "updatable": field.updateable,
    }
