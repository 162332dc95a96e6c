"""The columns of a mirrored object: what the org describes, and what its events have beside.

Pure: no Spark session, no I/O. One table takes reads and change events alike, so its columns are
those of the describe, which knows more: decimals with their scale, dates, labels. An event's value
is converted to them. Invariant: columns are only ever added, and a column never changes its type.

A field whose type or scale has changed has a second column for
the new type, as in typed tables; of these, one has the value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sfpubsub.avro.columns import names_of, type_word
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.mirror.described import Column, described, number_of
from sfpubsub.spark.mirror.event_fields import member_of, sources_of, sql_of, take_source, takes
from sfpubsub.spark.raw.frames import arrow_schema
from sfpubsub.spark.tables.records import Fields


@dataclass(frozen=True)
class Columns:
    """The columns of one object, without its id. Immutable."""

    entity: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, description: ObjectDescription, known: Columns | None = None) -> Columns:
        """Return the columns of a describe, after those that are known.

        Args:
            description: The object, as the user sees it.
            known: The table's, which stay where they are.
        """
        old = () if known is None else known.columns
        found = [replace(each, asked=(), parts=(), described=False) for each in old]
        for field in described(description):
            _take(found, field)
        return cls(description.name, tuple(found))

    @classmethod
    def of_table(cls, entity: str, schema: pa.Schema) -> Columns:
        """Return the columns of a table, of which only names and types are known.

        Args:
            entity: The object.
            schema: Of the columns that hold fields.
        """
        found = []
        for each in schema:
            name, _, word = each.name.rpartition("__")
            is_second = bool(name) and word.rstrip("_") == type_word(each.type)
            api_name = name if is_second else each.name
            found.append(Column(each.name, each.type, api_name, "", described=False))
        return cls(entity, tuple(found))

    def with_events(self, plan: Plan) -> Columns:
        """Return these and what an event type has beside them.

        That is: a field that the user does not see over REST, one of a type that a described column
        does not hold, and further parts of a compound field.
        """
        found = list(self.columns)
        for field, sources in sources_of(plan).items():
            for source in sources:
                take_source(found, field, source)
        return Columns(self.entity, tuple(found))

    @cached_property
    def schema(self) -> pa.Schema:
        """Names, types and comments (as metadata ``comment``), in order."""
        return pa.schema(
            [pa.field(each.name, each.type, metadata=_metadata(each)) for each in self.columns]
        )

    @property
    def selected(self) -> tuple[str, ...]:
        """What a read selects: ``Id`` first."""
        return ("Id", *(name for each in self.columns for name in each.asked))

    def from_events(self, plan: Plan) -> dict[str, str]:
        """Return SQL over a typed table's row, by column: the value in exactly its type.

        A text that was sent as a difference stays that. Times are of a session in UTC. Columns that
        the event type does not have are left out.
        """
        found: dict[str, list[str]] = {}
        for field, sources in sources_of(plan).items():
            for source in sources:
                for column in self._of(field):
                    if takes(column, source):
                        found.setdefault(column.name, []).append(sql_of(column, source))
                        break
        return {
            name: texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"
            for name, texts in found.items()
        }

    def fields(self, plan: Plan) -> Fields:
        """Return where the fields are that events of a type name, by the names of its lists."""
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
        return Fields.of(self.schema.names, places)

    def to_json(self) -> str:
        """Return them as a text, which `from_json` reads."""
        types = json.loads(from_arrow_schema(self.schema).json())["fields"]
        rows = [
            [
                kind["type"], each.name, each.field, each.comment, each.asked, each.parts,
                each.calculated, each.is_time, each.described,
            ]
            for kind, each in zip(types, self.columns, strict=True)
        ]  # fmt: skip
        return json.dumps({"entity": self.entity, "columns": rows})

    @classmethod
    def from_json(cls, text: str) -> Columns:
        """Return what `to_json` wrote."""
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
        return cls(found["entity"], tuple(columns))

    def _of(self, field: str) -> list[Column]:
        """Return a field's columns, the described one first."""
        own = [each for each in self.columns if each.field.lower() == field.lower()]
        return sorted(own, key=lambda each: not each.described)


def _metadata(column: Column) -> dict[str, str] | None:
    return {"comment": column.comment} if column.comment else None


def _take(columns: list[Column], new: Column) -> None:
    """Add a described column, or describe with it the one that is there and holds its values."""
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
    """Return the type that has the members of both structs, or None where types contradict."""
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
