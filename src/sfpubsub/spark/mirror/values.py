"""Convert the values of a read, from REST JSON or Bulk CSV, to the types of a table's columns.

This module does not need Spark. Both formats are first converted to strings, so that the result
does not depend on the format. An empty string becomes null, as in the org: an empty value in a
result is null (Bulk API 2.0 documentation). A value that does not fit its column becomes null too,
and its row is flagged in the column ``_unfit``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sfpubsub.avro.arrow_types import FIRST_TIME, LAST_TIME, TIME
from sfpubsub.errors import RemoteProtocolError
from sfpubsub.rest.describing import STAMP
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.described import FIRST_DAY, LAST_DAY, Column

_log = logging.getLogger("sfpubsub.spark")

# Intermediate type of decimals before they are rounded to the column's scale: holds almost every
# number of an org, whose fields have at most 18 digits. An org stores and returns numbers with the
# precision that its API was given (Salesforce help 000387302), so some have more decimal places.
_WIDE = pa.decimal128(38, 18)

# Bytes of CSV converted at a time. Larger than any row of an ordinary object, whose texts have up
# to 131,072 characters each, and small enough to hold a few blocks in memory.
_BLOCK = 16 * 1024 * 1024


class Findings:
    """Logs the first value of each object's field that was rounded, and the first that did not fit.

    One instance serves all reads of a process.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, str, bool]] = set()

    def rounded(self, entity: str, field: str, record_id: str) -> None:
        """Record that a number has more decimal places than its field shows."""
        if self._is_first(entity, field, is_unfit=False):
            _log.warning(
                "%s of record %s has more decimal places than the field shows, so it is rounded; "
                "further records are not named",
                field,
                record_id,
            )

    def unfit(self, entity: str, field: str, record_id: str, kind: pa.DataType) -> None:
        """Record that a value does not fit its column."""
        if self._is_first(entity, field, is_unfit=True):
            _log.warning(
                "%s of record %s does not fit into a column of type %s, so it is null, and the row "
                "is not complete; further records are not named",
                field,
                record_id,
                kind,
            )

    def _is_first(self, entity: str, field: str, *, is_unfit: bool) -> bool:
        found = (entity, field, is_unfit)
        is_first = found not in self._known
        self._known.add(found)
        return is_first


def rounded(text: str, kind: pa.Decimal128Type) -> Decimal | None:
    """Return a number rounded to the scale of *kind*, halves away from zero.

    This is how Spark casts the double of an event, too, but for the digits after the 15th: Java
    before version 19 does not print the fewest that identify a double.

    Return None if *text* is not a number, or has too many digits before the decimal point.
    """
    context = Context(
        prec=kind.precision, rounding=ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[]
    )
    context.traps[InvalidOperation] = True
    try:
        found = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), context=context)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def of_json(
    columns: Columns, rows: Sequence[Mapping[str, Any]], findings: Findings | None = None
) -> pa.Table:
    """Convert the rows of a query or a read by id to a table.

    Args:
        columns: The table's columns.
        rows: For each row, a mapping from the API names of fields, including ``Id``, to values. A
            missing field is null.
        findings: Logs values that are changed by the conversion.

    Returns:
        A table with ``record_id``, the columns, ``_unfit``, and ``_stamp``.
    """
    texts = {
        name: pa.array([_text(row.get(name)) for row in rows], pa.string())
        for name in (*columns.selected, STAMP)
    }
    return _table(columns, texts, len(rows), findings or Findings())


def flags_of(texts: pa.ChunkedArray | None, count: int) -> pa.Array:
    """Convert the strings of a checkbox field to booleans; all False if *texts* is None."""
    if texts is None:
        return pa.array([False] * count, pa.bool_())
    return pc.fill_null(pc.equal(texts, "true"), False).combine_chunks()


def of_csv(
    columns: Columns,
    file: BinaryIO,
    names: Sequence[str],
    *,
    has_header: bool,
    findings: Findings | None = None,
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Convert a page of Bulk results to tables, block by block.

    Args:
        columns: The table's columns.
        file: The page as the org sent it.
        names: Selected fields, in the order of the query.
        has_header: Whether the file begins with a header row.
        findings: Logs values that are changed by the conversion.

    Yields:
        For each block, the converted rows, as `of_json` returns them, and a table with the original
        strings of the fields *names*.

    Raises:
        RemoteProtocolError: The file is not valid CSV.
    """
    findings = findings or Findings()
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
            yield _table(columns, texts, len(found), findings), found
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


def _table(
    columns: Columns, texts: Mapping[str, pa.Array], count: int, findings: Findings
) -> pa.Table:
    converting = _Converting(columns.entity, texts, count, findings)
    stamps = texts[STAMP].cast(TIME) if STAMP in texts else pa.nulls(count, TIME)
    arrays = [texts["Id"], *map(converting.column, columns.columns), converting.unfit, stamps]
    fields = [pa.field("record_id", pa.string()), *columns.schema.remove_metadata()]
    own = [("_unfit", pa.bool_()), ("_stamp", TIME)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*fields, *own]))


class _Converting:
    """Converts the strings of some rows, and collects in which rows a value does not fit."""

    def __init__(
        self, entity: str, texts: Mapping[str, pa.Array], count: int, findings: Findings
    ) -> None:
        self._entity = entity
        self._texts = texts
        self._count = count
        self._findings = findings
        self.unfit = pa.repeat(False, count)

    def column(self, column: Column) -> pa.Array:
        """Return the values of a column."""
        kind = column.type
        pairs = zip(column.parts or column.asked, column.asked, strict=True)
        parts = {part: name for part, name in pairs if name in self._texts}
        if not parts:  # not described, or newer than the query
            return pa.nulls(self._count, kind)
        if not column.parts:
            return self._typed(column.asked[0], kind)
        members = {
            member.name: self._typed(parts[member.name], member.type)
            for member in kind
            if member.name in parts
        }
        whole = next((part for part in members if part.lower() == column.field.lower()), None)
        others = [array for name, array in members.items() if name != whole]
        in_parts = _any(others, self._count)
        if whole is not None:  # the member for values that are not divided into parts
            members[whole] = pc.if_else(
                in_parts, pa.scalar(None, kind.field(whole).type), members[whole]
            )
        arrays = [members.get(each.name, pa.nulls(self._count, each.type)) for each in kind]
        is_set = _any(list(members.values()), self._count)
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.invert(is_set))

    def _typed(self, name: str, kind: pa.DataType) -> pa.Array:
        texts = self._texts[name]
        try:
            found, changed = _converted(texts, kind)
        except pa.ArrowInvalid:  # in some row; almost never, so speed does not matter
            found, changed = _converted_one_by_one(texts, kind)
        unfit = pc.and_(texts.is_valid(), found.is_null())
        for is_so, report in (
            (changed, self._findings.rounded),
            (unfit, partial(self._findings.unfit, kind=kind)),
        ):
            first = -1 if is_so is None else pc.index(is_so, True).as_py()
            if first >= 0:
                report(self._entity, name, self._texts["Id"][first].as_py())
        self.unfit = pc.or_(self.unfit, unfit)
        return found


def _converted(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """Convert strings to *kind*; a date outside Spark's range becomes null.

    Returns:
        The values, and for decimals, which of them were rounded.

    Raises:
        pa.ArrowInvalid: A value does not fit.
    """
    if pa.types.is_decimal(kind):
        wide = texts.cast(_WIDE)
        found = pc.round(wide, ndigits=kind.scale, round_mode="half_towards_infinity")
        return found.cast(kind), pc.fill_null(pc.not_equal(found, wide), False)
    found = texts.cast(kind)
    if pa.types.is_date(kind):
        return _within(found, pa.int32(), FIRST_DAY, LAST_DAY), None
    if pa.types.is_timestamp(kind):
        return _within(found, pa.int64(), 1000 * FIRST_TIME, 1000 * LAST_TIME + 999), None
    return found, None


def _converted_one_by_one(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """Do the same as `_converted`, but return null for a value that does not fit."""
    if pa.types.is_decimal(kind):
        values = [None if text is None else rounded(text, kind) for text in texts.to_pylist()]
        changed = [
            value is not None and value != Decimal(text)
            for value, text in zip(values, texts.to_pylist(), strict=True)
        ]
        return pa.array(values, kind), pa.array(changed, pa.bool_())
    found = []
    for number in range(len(texts)):
        try:
            found.append(_converted(texts.slice(number, 1), kind)[0])
        except pa.ArrowInvalid:
            found.append(pa.nulls(1, kind))
    return pa.concat_arrays(found), None


def _within(array: pa.Array, integers: pa.DataType, first: int, last: int) -> pa.Array:
    numbers = array.view(integers)
    is_in = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(is_in, array, pa.scalar(None, array.type))


def _any(arrays: Sequence[pa.Array], count: int) -> pa.Array:
    """Return a mask of *count* values, true where at least one of the arrays is not null."""
    found = pa.array([False] * count, pa.bool_()) if not arrays else arrays[0].is_valid()
    for array in arrays[1:]:
        found = pc.or_(found, array.is_valid())
    return found
