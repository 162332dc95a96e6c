"""The columns of a mirrored object: what the org describes, and what its events have beside.

Pure: no Spark session, no I/O. One table takes reads and change events alike, so its columns are
those of the describe, which knows more: decimals with their scale, dates, labels. An event's value
is converted to them. Invariant: columns are only ever added, and a column never changes its type.

A field is a column of its name; the parts of a compound field are members of one struct, named as
in events (``BillingAddress.City``). A field whose type or scale has changed has a second column for
the new type, as in typed tables; of these, one has the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.avro.columns import names_of, paths_of, type_word
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.rest import FieldDescription, ObjectDescription
from sfpubsub.spark.raw.frames import sql_text
from sfpubsub.spark.tables.records import Fields

# The table has these in columns of its own.
_OURS = ("Id", "IsDeleted")

# Left out, because no event tells of them and they change all the time: with every change of the
# record, or whenever somebody looks at it, and then for each user differently.
_RESTLESS = ("SystemModstamp", "LastViewedDate", "LastReferencedDate")

# Types of fields that no query returns as a value: files, and compound values of odd kinds.
# A compound field of the usual kinds is put together from its parts.
_UNREADABLE = ("base64", "complexvalue", "address", "location")

# Most digits of a number in an org. All decimals have so many, whatever the org says of a field, so
# that a field that gets more of them in front of the point keeps its column.
_DIGITS = 18

_KINDS = {
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "date": pa.date32(),
    "datetime": TIME,
}

_DECIMALS = ("double", "currency", "percent")

# A custom compound field's parts are ``Site__City__s`` of ``Site__c``.
_CUSTOM_PART, _CUSTOM = "__s", "__c"

# Where an org has person accounts. Only there a name is either a text or in parts.
_PERSON_ACCOUNTS = "IsPersonAccount"


@dataclass(frozen=True)
class Column:
    """One column of a mirrored object's table."""

    name: str
    type: pa.DataType
    field: str
    """API name of the field, as change events have it: `name`, but for a second column."""
    comment: str
    """The label and, in parentheses, the API name."""
    asked: tuple[str, ...] = ()
    """API names that a read selects for it: itself, or a compound field's parts. Empty of a column
    that is not described."""
    parts: tuple[str, ...] = ()
    """Of a compound field: the member of the struct for each of `asked`. Where the first one is
    called like the field, it is the whole name of what has no name in parts: null if another one
    is set. The struct may have further members, which only events fill."""
    calculated: bool = False
    """A formula or a roll-up: no event tells of it."""
    is_time: bool = False
    """A time of day, as REST has it: a text such as ``09:30:00.000Z``."""
    described: bool = True
    """Whether the org describes it, so that a read fills it. Not so of a field that only events
    have, or that the org has removed, or that has another type now."""


@dataclass(frozen=True)
class _Source:
    """A field of an event type in one column of its typed table."""

    name: str
    type: pa.DataType
    parts: Mapping[str, tuple[str, ...]]
    """Where its parts are: the names inside of the column, by the names of events."""

    @property
    def whole(self) -> tuple[tuple[str, ...], pa.DataType] | None:
        """Where the value is that has no parts, and its type; None for a record.

        Of a union (a name is a text or a person's) it is the first member that is no record.
        """
        if not pa.types.is_struct(self.type):
            return (self.name,), self.type
        steps = {path[0] for path in self.parts.values()}
        for member in self.type:
            if member.name not in steps and not pa.types.is_struct(member.type):
                return (self.name, member.name), member.type
        return None


@dataclass(frozen=True)
class Columns:
    """The columns of one object, without its id. Immutable."""

    entity: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, description: ObjectDescription, known: Columns | None = None) -> Columns:
        """Return the columns of a describe, behind those that are known.

        Args:
            description: The object, as the user sees it.
            known: The table's, which stay where they are.
        """
        old = () if known is None else known.columns
        found = [replace(each, asked=(), parts=(), described=False) for each in old]
        for field in _fields(description):
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
        for field, sources in _sources(plan).items():
            for source in sources:
                _take_source(found, field, source)
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
        for field, sources in _sources(plan).items():
            for source in sources:
                for column in self._of(field):
                    if _takes(column, source):
                        found.setdefault(column.name, []).append(_sql(column, source))
                        break
        return {
            name: texts[0] if len(texts) == 1 else f"coalesce({', '.join(texts)})"
            for name, texts in found.items()
        }

    def fields(self, plan: Plan) -> Fields:
        """Return where the fields are that events of a type name, by the names of its lists."""
        places = []
        for field, sources in _sources(plan).items():
            for column in self._of(field):
                found: dict[str, tuple[str, ...]] = {field: (column.name,)}
                if pa.types.is_struct(column.type):
                    for source in sources:
                        for part, path in source.parts.items():
                            inner = _member(column, part, path)
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
                    name, to_arrow_schema(spark, timezone="UTC").field(0).type, field, comment,
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


# What the org describes.


def _fields(description: ObjectDescription) -> Iterator[Column]:
    """Yield the columns of a describe: each field, or the compound field that has it as a part."""
    parts: dict[str, list[FieldDescription]] = {}
    for field in description.fields:
        if compound := _compound_of(description, field):
            parts.setdefault(compound, []).append(field)
    for field in description.fields:
        if field.name in (*_OURS, *_RESTLESS) or _compound_of(description, field):
            continue
        own = parts.get(field.name, [])
        if own and field.type not in _UNREADABLE and description.field(_PERSON_ACCOUNTS):
            own = [field, *own]
        readable = [each for each in own or [field] if each.type not in _UNREADABLE]
        if not readable:
            continue
        asked = tuple(each.name for each in readable)
        names = tuple(_part(field.name, each.name) for each in readable) if own else ()
        types = [_type(each) for each in readable]
        yield Column(
            field.name,
            pa.struct(list(zip(names, types, strict=True))) if own else types[0],
            field.name,
            f"{field.label} ({field.name})",
            asked,
            names,
            calculated=field.calculated,
            is_time=field.type == "time",
        )


def _compound_of(description: ObjectDescription, field: FieldDescription) -> str | None:
    """Return the compound field that a field is a part of; a name may be said to be its own."""
    name = field.compound_field_name
    found = None if name is None else description.field(name)
    return None if found is None or found.name == field.name else found.name


def _part(compound: str, field: str) -> str:
    """Return what a part is called in events: ``City`` is ``BillingCity`` of ``BillingAddress``."""
    if field.endswith(_CUSTOM_PART) and compound.endswith(_CUSTOM):
        stem = f"{compound.removesuffix(_CUSTOM)}__"
        return field.removesuffix(_CUSTOM_PART).removeprefix(stem)
    if not compound.endswith("Address"):
        return field
    return field.removeprefix(compound.removesuffix("Address"))


def _type(field: FieldDescription) -> pa.DataType:
    """Return the type of a field's column. Picklists, references, times of day: texts."""
    if field.type in _DECIMALS:
        return pa.decimal128(max(_DIGITS, field.precision, field.scale), field.scale)
    return _KINDS.get(field.type, pa.string())


def _take(columns: list[Column], new: Column) -> None:
    """Add a described column, or describe with it the one that is there and holds its values."""
    for name in names_of(pa.field(new.name, new.type)):
        number = _number(columns, name)
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


def _number(columns: list[Column], name: str) -> int | None:
    for number, column in enumerate(columns):
        if column.name.lower() == name.lower():  # Spark does not tell names apart by case
            return number
    return None


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


# What events have.


def _sources(plan: Plan) -> dict[str, list[_Source]]:
    """Return where a typed table has each field of an event type; several places if it changed."""
    types = {column.name: column.type for column in plan.columns}
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for text in plan.schemas.values():
        paths = paths_of(text, plan.columns)
        for name, path in paths.items():
            field, _, part = name.partition(".")
            parts = found.setdefault(field, {}).setdefault(path[0], {})
            if part:
                parts[part] = path[1:]
    return {
        field: [_Source(name, types[name], parts) for name, parts in places.items()]
        for field, places in found.items()
    }


def _take_source(columns: list[Column], field: str, source: _Source) -> None:
    """Make sure that a column takes what events have of a field."""
    own = [n for n, each in enumerate(columns) if each.field.lower() == field.lower()]
    for number in sorted(own, key=lambda n: not columns[n].described):
        column = columns[number]
        if _takes(column, source):
            columns[number] = replace(column, type=_with_parts(column, source))
            return
    for name in names_of(pa.field(field, source.type)):
        if _number(columns, name) is None:
            columns.append(Column(name, source.type, field, f"({field})", described=False))
            return


def _takes(column: Column, source: _Source) -> bool:
    """Whether a column can have all values of a field's place in typed tables."""
    if column.type == source.type:
        return True
    if not pa.types.is_struct(column.type):
        if source.whole is None:
            return False
        kind = source.whole[1]
        return _convertible(kind, column.type) or (column.is_time and pa.types.is_int64(kind))
    members = {member.name.lower(): member.type for member in column.type}
    if column.field.lower() in members and source.whole is None:
        return False
    kinds = {part: _inside(source.type, path) for part, path in source.parts.items()}
    return bool(kinds) and all(
        part.lower() not in members or _convertible(kind, members[part.lower()])
        for part, kind in kinds.items()
    )


def _with_parts(column: Column, source: _Source) -> pa.DataType:
    if column.type == source.type or not pa.types.is_struct(column.type):
        return column.type
    members = list(column.type)
    known = {member.name.lower() for member in members}
    members += [
        pa.field(part, _inside(source.type, path))
        for part, path in source.parts.items()
        if part.lower() not in known
    ]
    return pa.struct(members)


def _inside(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    for name in path:
        kind = kind.field(name).type
    return kind


def _member(column: Column, part: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return where a part is in a column's struct, which is as in events if only they have it."""
    for member in column.type:
        if member.name.lower() == part.lower():
            return (member.name,)
    return path


# From an event's value to a column's, in SQL.

_MILLISECONDS_A_DAY = 86_400_000


# How REST writes a time of day; events have its milliseconds.
_TIME_OF_DAY = "HH:mm:ss.SSS'Z'"


def _convertible(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_decimal(new):
        return bool(pa.types.is_float64(old) or pa.types.is_int64(old))
    return bool(old == new or (pa.types.is_int64(old) and pa.types.is_date(new)))


def _converted(value: str, old: pa.DataType, new: pa.DataType) -> str:
    """Return a value as SQL in another type; for what is `_convertible`, and times of day."""
    if old == new:
        return value
    if pa.types.is_decimal(new):  # of a double its shortest digits count, halves away from zero
        return f"CAST({value} AS DECIMAL({new.precision}, {new.scale}))"
    if pa.types.is_date(new):
        days = f"CAST(floor({value} / {_MILLISECONDS_A_DAY}) AS INT)"
        return f"date_add(DATE'1970-01-01', {days})"
    return f"date_format(timestamp_millis({value}), {sql_text(_TIME_OF_DAY)})"


def _sql(column: Column, source: _Source) -> str:
    """Return a column's value as SQL; only for what it `_takes`."""
    if column.type == source.type:
        return _quoted(source.name)
    if not pa.types.is_struct(column.type):
        path, kind = _whole(source)
        return _converted(_quoted(*path), kind, column.type)
    parts = {part.lower(): path for part, path in source.parts.items()}
    members: list[tuple[str, str]] = []
    for member in column.type:
        if member.name.lower() in parts:
            path = parts[member.name.lower()]
            value, kind = _quoted(source.name, *path), _inside(source.type, path)
        elif member.name.lower() == column.field.lower():
            whole, kind = _whole(source)
            value = _quoted(*whole)
        else:
            value, kind = f"CAST(NULL AS {_in_sql(member.type)})", member.type
        members.append((member.name, _converted(value, kind, member.type)))
    is_set = " OR ".join(f"{value} IS NOT NULL" for _, value in members)
    values = ", ".join(f"{sql_text(name)}, {value}" for name, value in members)
    return f"CASE WHEN {is_set} THEN named_struct({values}) END"


def _whole(source: _Source) -> tuple[tuple[str, ...], pa.DataType]:
    if source.whole is None:
        raise AssertionError(f"{source.name} has parts only")
    return source.whole


def _quoted(*path: str) -> str:
    return ".".join(f"`{name}`" for name in path)


def _in_sql(kind: pa.DataType) -> str:
    spark: Any = from_arrow_schema(pa.schema([("value", kind)])).fields[0].dataType
    return str(spark.simpleString())
