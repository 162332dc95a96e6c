"""Convert the values of a read, from REST JSON or Bulk CSV, to the types of a table's columns.

This module does not need Spark. Both formats are first converted to strings, so that the result
does not depend on the format. An empty string becomes null, as in the org: an empty value in a
result is null (Bulk API 2.0 documentation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sfpubsub.errors import RemoteProtocolError
from sfpubsub.spark.mirror.columns import Columns
from sfpubsub.spark.mirror.described import Column

# Intermediate type of decimals before they are rounded to the column's scale. Holds any number of
# an org, which has at most 18 digits.
_WIDE = pa.decimal128(38, 18)

# Bytes of CSV converted at a time. Larger than any row of an ordinary object, whose texts have up
# to 131,072 characters each, and small enough to hold a few blocks in memory.
_BLOCK = 16 * 1024 * 1024


def of_json(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert the rows of a query or a read by id to a table; its first column is ``record_id``.

    Args:
        columns: The table's columns.
        rows: For each row, a mapping from the API names of fields, including ``Id``, to values. A
            missing field is null.

    Raises:
        RemoteProtocolError: A value does not match its field's type.
    """
    texts = {
        name: pa.array([_text(row.get(name)) for row in rows], pa.string())
        for name in columns.selected
    }
    return _table(columns, texts, len(rows))


def flags_of(texts: pa.ChunkedArray | None, count: int) -> pa.Array:
    """Convert the strings of a checkbox field to booleans; all False if *texts* is None."""
    if texts is None:
        return pa.array([False] * count, pa.bool_())
    return pc.fill_null(pc.equal(texts, "true"), False).combine_chunks()


def of_csv(
    columns: Columns, file: BinaryIO, names: Sequence[str], *, has_header: bool
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Convert a page of Bulk results to tables, block by block.

    Args:
        columns: The table's columns.
        file: The page as the org sent it.
        names: Selected fields, in the order of the query.
        has_header: Whether the file begins with a header row.

    Yields:
        For each block, the converted rows, with ``record_id`` as the first column, and a table
        with the original strings of the fields *names*.

    Raises:
        RemoteProtocolError: The file is not valid CSV, or a value does not match its field's type.
    """
    file.seek(0)
    try:
        reader = csv.open_csv(
            file,
            read_options=csv.ReadOptions(
                column_names=list(names), skip_rows=1 if has_header else 0, block_size=_BLOCK
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )
        for batch in reader:
            found = pa.Table.from_batches([batch])
            texts = {name: found[name].combine_chunks() for name in found.column_names}
            yield _table(columns, texts, len(found)), found
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            return
        raise RemoteProtocolError(
            f"the org returned Bulk results for {columns.entity} that are not valid CSV"
        ) from error


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)


def _table(columns: Columns, texts: Mapping[str, pa.Array], count: int) -> pa.Table:
    arrays = [texts["Id"], *(_column(each, texts, count) for each in columns.columns)]
    fields = [pa.field("record_id", pa.string()), *columns.schema.remove_metadata()]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _column(column: Column, texts: Mapping[str, pa.Array], count: int) -> pa.Array:
    kind = column.type
    pairs = zip(column.parts or column.asked, column.asked, strict=True)
    parts = {part: name for part, name in pairs if name in texts}
    if not parts:  # not described, or newer than the query
        return pa.nulls(count, kind)
    if not column.parts:
        return _typed(texts[column.asked[0]], kind, column.asked[0])
    members = {
        member.name: _typed(texts[parts[member.name]], member.type, parts[member.name])
        for member in kind
        if member.name in parts
    }
    whole = next((part for part in members if part.lower() == column.field.lower()), None)
    others = [array for name, array in members.items() if name != whole]
    in_parts = _any(others, count)
    if whole is not None:  # the member for values that are not divided into parts
        members[whole] = pc.if_else(
            in_parts, pa.scalar(None, kind.field(whole).type), members[whole]
        )
    arrays = [members.get(member.name, pa.nulls(count, member.type)) for member in kind]
    is_set = _any(list(members.values()), count)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.invert(is_set))


def _any(arrays: Sequence[pa.Array], count: int) -> pa.Array:
    """Return a mask of *count* values, true where at least one of the arrays is not null."""
    found = pa.array([False] * count, pa.bool_()) if not arrays else arrays[0].is_valid()
    for array in arrays[1:]:
        found = pc.or_(found, array.is_valid())
    return found


def _typed(texts: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        if pa.types.is_decimal(kind):
            # Round half away from zero, as Spark does when it casts an event's double.
            wide = texts.cast(_WIDE)
            rounded = pc.round(wide, ndigits=kind.scale, round_mode="half_towards_infinity")
            return rounded.cast(kind)
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        # Without the error's text, which contains a value of a record.
        raise RemoteProtocolError(
            f"the org returned a value of {name} that is not of type {kind}"
        ) from error
