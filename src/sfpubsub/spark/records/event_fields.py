"""Map the fields of an event type to the columns of a mirrored object.

This module is pure: no Spark session, no I/O. Event types are less precise than a describe result:
numbers are doubles, dates are milliseconds since 1970, and a name is a string or a struct (first
name, last name, and so on). So this module generates SQL expressions that convert the columns of
the typed table to the types of the mirrored object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from sfpubsub.avro.columns import merge, names_of, paths_of
from sfpubsub.avro.typed_rows import Plan
from sfpubsub.spark.formats.frames import sql_type
from sfpubsub.spark.records.described import FIRST_DAY, LAST_DAY, Column, number_of
from sfpubsub.spark.runtime.sql import quoted, sql_text


@dataclass(frozen=True)
class Source:
    """The location of an event field in one column of the typed table."""

    name: str
    type: pa.DataType
    parts: Mapping[str, tuple[str, ...]]
    """Path of each part of the field inside the column, by the part's name in events."""

    @property
    def whole(self) -> tuple[tuple[str, ...], pa.DataType] | None:
        """Path and type of the field's single value; None if it is stored only as components.

        For a union, such as a name that is a string or a struct, this is the first member that is
        not a struct.
        """
        if not pa.types.is_struct(self.type):
            return (self.name,), self.type
        steps = {path[0] for path in self.parts.values()}
        for member in self.type:
            if member.name not in steps and not pa.types.is_struct(member.type):
                return (self.name, member.name), member.type
        return None


def sources_of(plan: Plan) -> dict[str, list[Source]]:
    """Return the locations of the event fields in the typed table, by field name.

    A field whose type has changed has several locations.
    """
    types = {column.name: column.type for column in plan.columns}
    found: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {}
    for text in plan.schemas.values():
        field = ""
        for name, path in paths_of(text, plan.columns).items():
            if len(path) == 1:  # otherwise it is a component of the last field
                field = name
            parts = found.setdefault(field, {}).setdefault(path[0], {})
            if len(path) > 1:
                parts[name.removeprefix(f"{field}.")] = path[1:]
    return {
        field: [Source(name, types[name], parts) for name, parts in places.items()]
        for field, places in found.items()
    }


def take_source(columns: list[Column], field: str, source: Source) -> None:
    """Ensure that a column can store the event values of a field.

    An existing column is extended if possible; otherwise a new column is added.
    """
    own = [n for n, each in enumerate(columns) if each.field.lower() == field.lower()]
    for number in sorted(own, key=lambda n: not columns[n].described):
        column = columns[number]
        if not column.described and _extends(source.type, column.type):
            columns[number] = replace(column, type=source.type)
            return
        if takes(column, source):
            columns[number] = replace(column, type=_with_parts(column, source))
            return
    for name in names_of(pa.field(field, source.type)):
        if number_of(columns, name) is None:
            columns.append(Column(name, source.type, field, f"({field})", described=False))
            return


def _extends(new: pa.DataType, old: pa.DataType) -> bool:
    """Return whether a typed table's column of the type *old* became *new* with a later schema."""
    both = merge(pa.schema([("value", old)]), pa.schema([("value", new)]))
    return bool(both.types == [new])


def takes(column: Column, source: Source) -> bool:
    """Return whether *column* can store all values of the event field at *source*."""
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


def _with_parts(column: Column, source: Source) -> pa.DataType:
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


def member_of(column: Column, part: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of the struct member that stores a component of a compound field.

    Args:
        column: The compound field's column, which is a struct.
        part: The component's name in events; case is ignored.
        path: Returned if the struct has no such member, because only events have the component.
    """
    for member in column.type:
        if member.name.lower() == part.lower():
            return (member.name,)
    return path


# SQL that converts event values to column values.

_MILLISECONDS_A_DAY = 86_400_000


# Format of a time of day in REST; events have milliseconds since midnight.
_TIME_OF_DAY = "HH:mm:ss.SSS'Z'"


def _convertible(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_decimal(new):
        return bool(pa.types.is_float64(old) or pa.types.is_int64(old))
    return bool(old == new or (pa.types.is_int64(old) and pa.types.is_date(new)))


def _converted(value: str, old: pa.DataType, new: pa.DataType) -> str:
    """Return SQL that converts *value* from type *old* to type *new*; null if it does not fit.

    Supports the types that `_convertible` accepts, and times of day.
    """
    if old == new:
        return value
    # As `values.rounded`: the shortest decimal digits of the double, rounded half away from zero.
    if pa.types.is_decimal(new):
        return f"try_cast({value} AS DECIMAL({new.precision}, {new.scale}))"
    if pa.types.is_date(new):
        days = f"floor({value} / {_MILLISECONDS_A_DAY})"
        date = f"date_add(DATE'1970-01-01', CAST({days} AS INT))"
        return f"CASE WHEN {days} BETWEEN {FIRST_DAY} AND {LAST_DAY} THEN {date} END"
    time = f"date_format(timestamp_millis({value}), {sql_text(_TIME_OF_DAY)})"
    return f"CASE WHEN {value} BETWEEN 0 AND {_MILLISECONDS_A_DAY - 1} THEN {time} END"


def sql_of(column: Column, source: Source) -> str:
    """Return SQL that converts the value at *source* to the type of *column*.

    Call this only if `takes` returns True for the same arguments.
    """
    if column.type == source.type:
        return quoted(source.name)
    members = [(name, _converted(*each)) for name, *each in _members(column, source)]
    if not pa.types.is_struct(column.type):
        return members[0][1]
    is_set = " OR ".join(f"{value} IS NOT NULL" for _, value in members)
    values = ", ".join(f"{sql_text(name)}, {value}" for name, value in members)
    return f"CASE WHEN {is_set} THEN named_struct({values}) END"


def unfit_sql_of(column: Column, source: Source) -> Iterator[str]:
    """Yield SQL conditions: each is true if a value at *source* does not fit into *column*."""
    if column.type != source.type:
        for _, value, old, new in _members(column, source):
            if old != new:
                yield f"({value} IS NOT NULL AND {_converted(value, old, new)} IS NULL)"


def _members(column: Column, source: Source) -> Iterator[tuple[str, str, pa.DataType, pa.DataType]]:
    """Yield the name of each struct member, its value as SQL, and the types of value and member.

    A column that is not a struct is treated as its only member.
    """
    if not pa.types.is_struct(column.type):
        path, kind = _whole(source)
        yield column.name, quoted(*path), kind, column.type
        return
    parts = {part.lower(): path for part, path in source.parts.items()}
    for member in column.type:
        if member.name.lower() in parts:
            path = parts[member.name.lower()]
            value, kind = quoted(source.name, *path), _inside(source.type, path)
        elif member.name.lower() == column.field.lower():
            whole, kind = _whole(source)
            value = quoted(*whole)
        else:
            value, kind = f"CAST(NULL AS {_in_sql(member.type)})", member.type
        yield member.name, value, kind, member.type


def _whole(source: Source) -> tuple[tuple[str, ...], pa.DataType]:
    if source.whole is None:
        raise AssertionError(f"{source.name} has no single value, only components")
    return source.whole


def _in_sql(kind: pa.DataType) -> str:
    spark: Any = from_arrow_schema(pa.schema([("value", kind)])).fields[0].dataType
    return sql_type(spark)
