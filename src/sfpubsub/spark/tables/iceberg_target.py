"""Derived tables in Iceberg format: at a path or URL, or in a catalog.

The note of each change (formats/iceberg.py) has its number. A change is published only if the table
does not have this or a higher number yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sfpubsub.errors import WriteError
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.iceberg import (
    WAP_ID,
    History,
    Iceberg,
    in_directory,
)
from sfpubsub.spark.formats.target import DISTINCT, FACTS, UNORDERED, TargetTable
from sfpubsub.spark.raw.frames import frame_of, spark_schema, sql_type
from sfpubsub.spark.runtime.arrow import arrow_schema, frame_of_rows
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables.logged_target import (
    NUMBER,
    LoggedTarget,
    LoggedTargetTable,
    note_of,
    number_in,
    step_of,
)

# For changes, mark rows as deleted and write new ones, instead of rewriting whole files.
_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("delete", "update", "merge")}


class IcebergTarget(LoggedTarget):
    """A target for tables in Iceberg format. See `Target`."""

    def __init__(self, spark: SparkSession, place: Destination) -> None:
        check_session(spark, "iceberg")
        super().__init__(spark, place, {})
        self.writing = own_session(spark)
        """A session for what several threads may do at once, so its settings never change."""

    def _open(self, name: str) -> TargetTable:
        return IcebergTargetTable(self, name)

    def path_of(self, name: str) -> Sequence[str]:
        """Return the parts of the name that a table has in both sessions."""
        if self.place.in_catalog:
            return (*self.place.address.split("."), name)
        for session in (self.spark, self.writing):
            path = in_directory(session, self.place.of(name))
        return path


class IcebergTargetTable(LoggedTargetTable):
    """One Iceberg table. See `TargetTable`."""

    _target: IcebergTarget
    _store: Iceberg

    def __init__(self, target: IcebergTarget, name: str) -> None:
        path = target.path_of(name)
        super().__init__(target, name, Iceberg(target.writing, path, NUMBER), quoted(*path))

    def _number(self) -> int:
        with self._errors("cannot be read"):
            return self._number_of(self._store.history())

    def _append(self, rows: Sequence[pa.Table], number: int) -> bool:
        columns = arrow_schema(self._store.columns())
        completed = [_completed(each, columns) for each in rows]
        everything = pa.concat_tables([columns.empty_table(), *completed])
        with frame_of(self._target.writing, everything) as frame:
            return self._store.append(frame, note_of(number), self._is_before(number))

    def _insert(self, source: DataFrame, number: int) -> None:
        columns = ", ".join(map(quoted, source.columns))
        with self._named(source) as name:
            self._change(
                f"INSERT INTO {self._in_sql} ({columns}) SELECT {columns} FROM {name}",  # noqa: S608
                number,
            )

    def _deletion(self, condition: str) -> str:
        return (  # not DELETE: see `Iceberg.change`
            f"MERGE INTO {self._in_sql} USING (SELECT 1) ON {condition} WHEN MATCHED THEN DELETE"
        )

    def _read(self) -> DataFrame:
        if self._target.place.in_catalog:
            self._spark.catalog.refreshTable(self._address)
        return self._spark.table(self._in_sql)

    def _change(self, statement: str, number: int) -> None:
        note = note_of(number)

        def run() -> None:
            with self._target.settings({WAP_ID: note}):
                if self._target.place.in_catalog:  # appended to in another session
                    self._spark.catalog.refreshTable(self._address)
                self._spark.sql(statement)

        self._store.change(run, note, self._is_before(number))

    def _is_before(self, number: int) -> Callable[[History], bool]:
        return lambda history: self._number_of(history) < number

    def _number_of(self, history: History) -> int:
        """Return the number of the newest change that a snapshot of the main branch records.

        If no snapshot records one, return the number in the table's properties, or 0 if there is
        none.

        Raises:
            WriteError: The snapshots that would tell have expired.
        """
        for found in history.main():
            number = number_in(found.note)
            if number is not None:
                return number
        copied = number_in(self._store.properties().get(NUMBER)) or 0
        if any((number_in(found.note) or 0) > copied for found in history.in_doubt):
            raise WriteError(
                f"{self._address} has step {step_of(copied)} and perhaps a later one, which was "
                f"killed before it recorded that; the snapshots that would tell have expired: "
                f"create the table again"
            )
        return copied

    def _widen(self, columns: StructType) -> None:
        missing = list(_missing(self._store.columns(), columns))
        if missing:
            self._store.alter(f"ADD COLUMNS ({', '.join(missing)})")

    def _create(self, columns: pa.Schema, facts: str, *, merged: bool) -> None:
        unordered = {*UNORDERED, *DISTINCT} & {*columns.names} - {"ingest_seq"}
        properties = {
            **(_MERGED if merged else {}),
            FACTS: facts,
            "write.distribution-mode": "none",
            **{f"write.metadata.metrics.column.{name}": "none" for name in unordered},
        }
        empty = frame_of_rows(self._target.writing, [], spark_schema(columns))
        self._store.create(empty, properties)


def _completed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with exactly these columns: those that are missing are null, at every depth."""
    kinds = {field.name: field.dataType.simpleString() for field in spark_schema(rows.schema)}
    completed = []
    for field, wanted in zip(columns, spark_schema(columns), strict=True):
        if field.name not in kinds:
            completed.append(pa.nulls(len(rows), field.type))
        elif kinds[field.name] == wanted.dataType.simpleString():
            completed.append(rows[field.name].cast(field.type))
        else:  # casts of pyarrow 18 add no fields
            completed.append(pa.array(rows[field.name].to_pylist(), field.type))
    return pa.table(completed, columns)


def _missing(there: StructType, wanted: StructType, *path: str) -> Iterator[str]:
    """Yield the definitions in SQL of the columns, and fields at every depth, that are missing."""
    for field in wanted:
        if field.name in there.names:
            yield from _missing_in(there[field.name].dataType, field.dataType, *path, field.name)
        else:
            comment = field.metadata.get("comment")
            said = f" COMMENT {sql_text(comment)}" if comment else ""
            yield f"{quoted(*path, field.name)} {sql_type(field.dataType)}{said}"


def _missing_in(there: DataType, wanted: DataType, *path: str) -> Iterator[str]:
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        yield from _missing(there, wanted, *path)
    elif isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        yield from _missing_in(there.elementType, wanted.elementType, *path, "element")
    elif isinstance(there, MapType) and isinstance(wanted, MapType):
        yield from _missing_in(there.valueType, wanted.valueType, *path, "value")
