"""The columns of the table with the records of an object.

There are columns for the fields in the describe result, if the org is asked for one, and for
further fields in the object's events. Values from reads and from change events are stored in the
same columns. The types come from the describe result, which is more precise than the event schemas
(it has dates, and decimals with their scale), and event values are converted to them. Invariant:
columns are only added, and a column never changes its type.

If the type or scale of a field changes, the field gets a second column for the new type, as in
typed tables. Only one of the two columns contains the value.

This module is pure: no Spark session, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sfpubsub.avro.columns import names_of, type_word
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.records.described import Column, described, number_of
from sfpubsub.spark.records.event_fields import (
    Source,
    member_of,
    sources_of,
    sql_of,
    take_source,
    takes,
    unfit_sql_of,
)
from sfpubsub.spark.records.fold import Fields
from sfpubsub.spark.runtime.arrow import arrow_schema


@dataclass(frozen=True)
class Columns:
    """The columns of one object's table, except for the record id. Immutable."""

    entity: str
    columns: tuple[Column, ...]
    reported: frozenset[str] | None = None
    """Fields in the event schemas seen so far, in lower case; None before the first schema."""
    is_described: bool = True
    """Whether the org has described the object. If not, the columns have the types of its events,
    and nothing is known about fields that events do not have.
    """

    @classmethod
    def of(cls, description: ObjectDescription, known: Columns | None = None) -> Columns:
        """Return the known columns, updated and extended from a describe result.

        Args:
            description: The describe result for the object, as visible to the user.
            known: Columns that the table already has, whose order is kept; None for a new table.
        """
        old, reported = ((), None) if known is None else (known.columns, known.reported)
        found = [replace(each, asked=(), parts=(), described=False) for each in old]
        for field in described(description):
            _take(found, field)
        before = {each.name: each for each in old}
        found = [_with_returns(each, before.get(each.name)) for each in found]
        return cls(description.name, tuple(found), reported)

    @classmethod
    def of_table(cls, entity: str, schema: pa.Schema) -> Columns:
        """Return columns from a table's schema, without the details that only the org provides.

        Args:
            entity: The object.
            schema: Arrow schema of the columns that contain fields.
        """
        found = []
        for each in schema:
            name, _, word = each.name.rpartition("__")
            is_second = bool(name) and word.rstrip("_") == type_word(each.type)
            api_name = name if is_second else each.name
            found.append(Column(each.name, each.type, api_name, "", described=False))
        return cls(entity, tuple(found))

    def with_events(self, plan: Plan) -> Columns:
        """Return these columns, extended so that they can store all values of an event type.

        New columns are needed for fields that the user cannot see over REST, and for fields whose
        event values do not fit the column from the describe result. The struct of a compound field
        may need further fields.
        """
        found = list(self.columns)
        carried = sources_of(plan)
        for field, sources in carried.items():
            for source in sources:
                take_source(found, field, source)
        reported = (self.reported or frozenset()) | {field.lower() for field in carried}
        return replace(self, columns=tuple(found), reported=reported)

    @property
    def unreported(self) -> tuple[str, ...]:
        """Names of the columns that reads fill, but no event: their fields are in no event schema.

        Before the first event schema is known, only formulas and roll-up summaries are included.
        """

        def is_reported(column: Column) -> bool:
            if self.reported is None:
                return not column.calculated
            return column.field.lower() in self.reported

        return tuple(each.name for each in self.columns if each.described and not is_reported(each))

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema with names, types and comments (metadata ``comment``), in order."""
        return pa.schema(
            [pa.field(each.name, each.type, metadata=_metadata(each)) for each in self.columns]
        )

    @property
    def selected(self) -> tuple[str, ...]:
        """Names of the fields that a read selects, ``Id`` first."""
        return ("Id", *(name for each in self.columns for name in each.asked))

    @property
    def filled(self) -> dict[str, int]:
        """Names of the columns that a read fills, each with its `Column.returns`.

        A field whose type changes gets another column, so two reads with equal results selected the
        same fields with the same types.
        """
        return {each.name: each.returns for each in self.columns if each.asked}

    def unread(self, filled: Iterable[str]) -> tuple[int, ...]:
        """Return the indexes of the columns whose values a read leaves as they were.

        These are the columns of fields that the read did not select, because they had been removed
        or hidden. The former column of a field whose type has changed is not one of them.

        Args:
            filled: Names of the columns that the read filled.
        """
        names = frozenset(filled)
        fields = {each.field.lower() for each in self.columns if each.name in names}
        columns = enumerate(self.columns)
        return tuple(n for n, each in columns if each.field.lower() not in fields)

    def changes_since(self, old: Columns) -> str:
        """Return which fields the org has added, removed or changed; empty if none.

        A field that becomes visible or hidden counts as added or removed.
        """
        before, now = _by_field(old), _by_field(self)
        kinds = {
            "added": [name for name in now if name not in before],
            "removed or hidden (their columns keep their values)": [
                name for name in before if name not in now
            ],
            "of another type": [
                f"{name} ({type_word(column.type)})"
                for name, column in now.items()
                if name in before and before[name].name != column.name
            ],
        }
        return "; ".join(f"{', '.join(names)} {kind}" for kind, names in kinds.items() if names)

    def from_events(self, plan: Plan) -> dict[str, str]:
        """Return the SQL expressions that compute columns from a row of the typed table.

        The result maps the name of each column that the event type fills to its expression, whose
        type is exactly that of the column. The session must use UTC. If the event contains
        only a diff for a text field, the expression returns the diff.
        """
        found: dict[str, list[str]] = {}
        for field, sources in sources_of(plan).items():
            for source in sources:
                column = self._taking(field, source)
                if column is not None:
                    found.setdefault(column.name, []).append(sql_of(column, source))
        return {
            name: texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"
            for name, texts in found.items()
        }

    def unfit_in_events(self, plan: Plan) -> str:
        """Return the SQL condition that a row of the typed table has a value that does not fit.

        `from_events` converts such a value to null.
        """
        found = [
            condition
            for field, sources in sources_of(plan).items()
            for source in sources
            if (column := self._taking(field, source)) is not None
            for condition in unfit_sql_of(column, source)
        ]
        return " OR ".join(found) or "false"

    def fields(self, plan: Plan) -> Fields:
        """Return where each field and component of an event is stored: in a column or a struct."""
        places = []
        for field, sources in sources_of(plan).items():
            for column in self._of(field):
                found: dict[str, tuple[str, ...]] = {field: (column.name,)}
                if pa.types.is_struct(column.type):
                    for source in sources:
                        for part, path in source.parts.items():
                            inner = member_of(column, part, path)
                            found[f"{field}.{part}"] = (column.name, *inner)
                places.append(found)
        names = self.schema.names
        unreported = tuple(names.index(name) for name in self.unreported)
        shown = {each.field.lower() for each in self.columns if each.described}
        hidden = [
            number
            for number, each in enumerate(self.columns)
            if shown and each.field.lower() not in shown
        ]
        return replace(Fields.of(names, places), unreported=unreported, hidden=tuple(hidden))

    def to_json(self) -> str:
        """Return the columns as JSON text for `from_json`."""
        types = json.loads(from_arrow_schema(self.schema).json())["fields"]
        rows = [
            [
                kind["type"], each.name, each.field, each.comment, each.asked, each.parts,
                each.calculated, each.is_time, each.described, each.returns,
            ]
            for kind, each in zip(types, self.columns, strict=True)
        ]  # fmt: skip
        reported = None if self.reported is None else sorted(self.reported)
        return json.dumps(
            {
                "entity": self.entity,
                "columns": rows,
                "reported": reported,
                "described": self.is_described,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Columns:
        """Parse the output of `to_json`."""
        found = json.loads(text)
        columns = []
        for kind, name, field, comment, asked, parts, *flags in found["columns"]:
            member = {"name": name, "type": kind, "nullable": True, "metadata": {}}
            spark = StructType.fromJson({"type": "struct", "fields": [member]})
            columns.append(
                Column(
                    name, arrow_schema(spark).field(0).type, field, comment,
                    tuple(asked), tuple(parts), *flags,
                )
            )  # fmt: skip
        reported = None if found["reported"] is None else frozenset(found["reported"])
        return cls(found["entity"], tuple(columns), reported, found["described"])

    def _taking(self, field: str, source: Source) -> Column | None:
        """Return the column that stores the event values at *source*."""
        return next((each for each in self._of(field) if takes(each, source)), None)

    def _of(self, field: str) -> list[Column]:
        """Return the columns of a field; those from the describe result come first."""
        own = [each for each in self.columns if each.field.lower() == field.lower()]
        return sorted(own, key=lambda each: not each.described)


def _metadata(column: Column) -> dict[str, str] | None:
    return {"comment": column.comment} if column.comment else None


def _with_returns(column: Column, before: Column | None) -> Column:
    if before is None:
        return column
    returns = before.returns + (column.described and not before.described)
    return replace(column, returns=returns)


def _by_field(columns: Columns) -> dict[str, Column]:
    return {name: each for each in columns.columns for name in each.asked}


def _take(columns: list[Column], new: Column) -> None:
    """Add the column *new*, or extend the type of an existing column of the same field."""
    for name in names_of(pa.field(new.name, new.type)):
        number = number_of(columns, name)
        if number is None:
            columns.append(replace(new, name=name))
            return
        old = columns[number]
        if old.field.lower() != new.field.lower():
            continue
        both = _both(old.type, new.type)
        if both is not None:
            columns[number] = replace(new, name=old.name, type=both)
            return


def _both(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return a type that can hold the values of both types; None if the types conflict.

    For two structs, the result has the fields of both.
    """
    if old == new:
        return old
    if not (pa.types.is_struct(old) and pa.types.is_struct(new)):
        return None
    members = {member.name.lower(): member for member in old}
    for member in new:
        known = members.setdefault(member.name.lower(), member)
        if known.type != member.type:
            return None
    return pa.struct(list(members.values()))
