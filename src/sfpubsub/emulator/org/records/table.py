"""The rows of objects in SQLite: one table for each object, one column for each stored field.

This module only reads and writes rows; `writing` validates them. A row maps field names to stored
values. String comparisons ignore the case of ASCII letters; ids are case-sensitive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.store import Store

Row = dict[str, Any]
Rows = Callable[..., list[Any]]
"""A function that executes an SQL query with parameters and returns its rows, like `Store.rows`."""

_TABLE = "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, definition TEXT NOT NULL)"

_CASED = ("id", "reference", "date", "datetime", "time")
"""Field types whose values are stored as case-sensitive strings."""


def table_of(of: SObject) -> str:
    """Return the quoted table name of an object."""
    return f'"rec_{of.name}"'


def column_of(field: Field) -> str:
    """Return the quoted column name of a field."""
    return f'"{field.name}"'


def is_cased(field: Field) -> bool:
    """Return whether the case of a field's letters matters in comparisons."""
    return field.type in _CASED


class Table:
    """The rows of one object. Thread-safe.

    Args:
        store: The store with the table.
        of: The object.
    """

    def __init__(self, store: Store, of: SObject) -> None:
        self._store = store
        self.of = of
        self._name = table_of(of)
        self._columns = [field.name for field in of.stored]
        listed = ", ".join(column_of(field) for field in of.stored)
        self._select = f"SELECT {listed} FROM {self._name}"  # noqa: S608 - checked names
        marks = ", ".join("?" * (len(self._columns) + 1))
        self._insert = f"INSERT INTO {self._name} (n, {listed}) VALUES ({marks})"  # noqa: S608

    def prepare(self) -> int:
        """Create the table if it does not exist. Otherwise add missing columns, and drop the
        columns of removed fields.

        Returns:
            The highest row number ever used in this table; 0 if it has never had a row.
        """
        columns = ", ".join(f"{column_of(field)} {_kind(field)}" for field in self.of.stored)
        self._store.run(
            f"CREATE TABLE IF NOT EXISTS {self._name}"
            f" (n INTEGER PRIMARY KEY AUTOINCREMENT, {columns})"
        )
        there = {row[1] for row in self._store.rows(f"PRAGMA table_info({self._name})")}
        for name in there - {"n", *self._columns}:
            self._store.run(f'DROP INDEX IF EXISTS "by_{self.of.name}_{name}"')
            self._store.run(f'ALTER TABLE {self._name} DROP COLUMN "{name}"')
        for field in self.of.stored:
            if field.name not in there:
                added = f"{column_of(field)} {_kind(field)}"
                self._store.run(f"ALTER TABLE {self._name} ADD COLUMN {added}")
            if field.name == "Id" or field.external_id or field.unique:
                self._store.run(
                    f'CREATE INDEX IF NOT EXISTS "by_{self.of.name}_{field.name}"'
                    f" ON {self._name} ({column_of(field)})"
                )
        rows = self._store.rows(
            "SELECT seq FROM sqlite_sequence WHERE name = ?", self._name.strip('"')
        )
        return int(rows[0][0]) if rows else 0

    def insert(self, number: int, row: Mapping[str, Any]) -> None:
        """Add a row. Call this inside a transaction.

        Args:
            number: The row's number, which must never have been used in this table.
            row: Values by field name; a missing field is empty.
        """
        self._store.run(self._insert, number, *(row.get(name) for name in self._columns))

    def update(self, record_id: str, values: Mapping[str, Any]) -> None:
        """Change some columns of a row. Call this inside a transaction."""
        changes = ", ".join(f'"{name}" = ?' for name in values)
        self._store.run(
            f"UPDATE {self._name} SET {changes} WHERE Id = ?",  # noqa: S608 - checked names
            *values.values(),
            record_id,
        )

    def remove(self, record_id: str) -> None:
        """Delete a row permanently. Call this inside a transaction."""
        self._store.run(f"DELETE FROM {self._name} WHERE Id = ?", record_id)  # noqa: S608

    def get(self, record_id: str, rows: Rows | None = None) -> Row | None:
        """Return the row with this id, which may be in the Recycle Bin, or None if there is no such
        row.

        Args:
            record_id: 18-character id.
            rows: Function that executes the query; None reads the current state of the store.
        """
        found = self.where("Id = ?", [record_id], rows)
        return found[0] if found else None

    def where(self, condition: str, values: Sequence[Any], rows: Rows | None = None) -> list[Row]:
        """Return the rows that meet an SQL condition, oldest first. Rows in the Recycle Bin are
        included.

        Args:
            condition: SQL expression for the WHERE clause.
            values: The parameters of the expression.
            rows: Function that executes the query; None reads the current state of the store.
        """
        found = (rows or self._store.rows)(
            f"{self._select} WHERE {condition} ORDER BY n",
            *values,
        )
        return [dict(zip(self._columns, row, strict=True)) for row in found]


class Catalog:
    """The stored definitions of the org's objects. Thread-safe.

    Args:
        store: The store with the definitions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        store.run(_TABLE)

    def definitions(self) -> list[str]:
        """Return the definitions of all objects, as JSON."""
        return [row[0] for row in self._store.rows("SELECT definition FROM objects ORDER BY name")]

    def put(self, name: str, definition: str) -> None:
        """Store the definition of an object, given as JSON."""
        self._store.run("INSERT OR REPLACE INTO objects VALUES (?, ?)", name, definition)


def _kind(field: Field) -> str:
    if field.calculated and (field.is_number or field.type == "boolean"):
        return "NUMERIC"
    if field.type in ("int", "boolean"):
        return "INTEGER"
    if field.is_number:
        return "REAL"
    return "TEXT" if is_cased(field) else "TEXT COLLATE NOCASE"
