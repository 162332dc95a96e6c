"""Derived tables in Iceberg format: at a path or URL, or in a catalog.

The note of each change (formats/iceberg.py) has the number of its step. A change is published only
if the table does not have this or a higher number yet (steps.py).
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sfpubsub.errors import ConfigurationError, WriteError
from sfpubsub.spark.formats.iceberg import WAP_ID, Busy, History, Iceberg, in_directory
from sfpubsub.spark.raw.frames import frame_of, spark_schema, sql_type
from sfpubsub.spark.runtime.arrow import arrow_schema, frame_of_rows
from sfpubsub.spark.runtime.checks import check_session
from sfpubsub.spark.runtime.session import own_session
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables.logged_target import LoggedTarget, LoggedTargetTable
from sfpubsub.spark.tables.target import DISTINCT, UNORDERED, Place, TargetTable

# Properties: the step of a snapshot or table, and the facts, which mark a table as created by this
# package.
_STEP = "sfpubsub.step"
_FACTS = "sfpubsub.facts"

# For changes, mark rows as deleted and write new ones, instead of rewriting whole files.
_MERGED = {f"write.{change}.mode": "merge-on-read" for change in ("delete", "update", "merge")}


class IcebergTarget(LoggedTarget):
    """A target for tables in Iceberg format. See `Target`."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
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

    def __init__(self, target: IcebergTarget, name: str) -> None:
        super().__init__(target, name)
        path = target.path_of(name)
        self._in_sql = quoted(*path)
        self._table = Iceberg(target.writing, path, _STEP)
        self._exists = False

    def exists(self) -> bool:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if not self._exists and self._table.exists():
                if _FACTS not in self._table.properties():
                    raise ConfigurationError(
                        f"{self._address} is an Iceberg table that sfpubsub did not create: choose "
                        f"another target"
                    )
                self._exists = True
        return self._exists

    def step(self) -> int:
        """See `TargetTable`."""
        if not self.exists():
            return 0
        with self._errors("cannot be read"):
            return self._step_of(self._table.history())

    def facts(self) -> dict[str, str]:
        """See `TargetTable`."""
        if not self.exists():
            return {}
        with self._errors("cannot be read"):
            return dict(json.loads(self._table.properties()[_FACTS]))

    def columns(self) -> list[str]:
        """See `TargetTable`."""
        if not self.exists():
            return []
        with self._errors("cannot be read"):
            return self._table.read().columns

    def make(
        self, columns: pa.Schema, facts: Mapping[str, str] | None = None, *, merged: bool = False
    ) -> None:
        """See `TargetTable`."""
        there = self.exists()
        with self._errors("cannot be created"):
            if not there:
                self._create(columns, facts or {}, merged=merged)
                return
            missing = list(_missing(self._table.read().schema, spark_schema(columns)))
            if missing:
                self._table.alter(f"ADD COLUMNS ({', '.join(missing)})")
            text = json.dumps(dict(facts or {}))
            if facts is not None and self._table.properties()[_FACTS] != text:
                self._table.set({_FACTS: text})

    def append(self, files: Sequence[bytes], step: int) -> bool:
        """See `TargetTable`."""
        with self._errors("was not written"):
            columns = arrow_schema(self._table.read().schema)
            rows = [_completed(pq.read_table(io.BytesIO(file)), columns) for file in files]
            everything = pa.concat_tables([columns.empty_table(), *rows])
            with frame_of(self._target.writing, everything) as frame:
                return self._table.append(frame, _note_of(step), self._is_before(step))

    def merge(
        self,
        source: DataFrame,
        on: Sequence[str],
        step: int,
        *,
        replaced: Sequence[str] | None = None,
    ) -> None:
        """See `TargetTable`."""
        condition = " AND ".join(f"{quoted('t', name)} = {quoted('s', name)}" for name in on)
        new = ", ".join(
            f"{quoted('t', name)} = {quoted('s', name)}" for name in replaced or source.columns
        )
        columns = ", ".join(map(quoted, source.columns))
        values = ", ".join(quoted("s", name) for name in source.columns)
        with self._errors("was not changed"), self._named(source) as name:
            self._change(
                f"MERGE INTO {self._in_sql} t USING {name} s ON {condition} "  # noqa: S608
                f"WHEN MATCHED THEN UPDATE SET {new} "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})",
                step,
            )

    def insert(self, source: DataFrame, step: int) -> None:
        """See `TargetTable`."""
        columns = ", ".join(map(quoted, source.columns))
        with self._errors("was not written"), self._named(source) as name:
            self._change(
                f"INSERT INTO {self._in_sql} ({columns}) SELECT {columns} FROM {name}",  # noqa: S608
                step,
            )

    def delete(self, condition: str, step: int) -> None:
        """See `TargetTable`."""
        with self._errors("was not changed"):
            self._change(  # not DELETE: see `Iceberg.change`
                f"MERGE INTO {self._in_sql} USING (SELECT 1) ON {condition} "
                f"WHEN MATCHED THEN DELETE",
                step,
            )

    def read(self) -> DataFrame:
        """See `TargetTable`."""
        with self._errors("cannot be read"):
            if self._target.place.in_catalog:
                self._spark.catalog.refreshTable(self._address)
            return self._spark.table(self._in_sql)

    def _change(self, statement: str, step: int) -> None:
        """Execute a statement as the change of a step, unless the table already has the step."""
        note = _note_of(step)

        def run() -> None:
            with self._target.settings({WAP_ID: note}):
                if self._target.place.in_catalog:  # appended to in another session
                    self._spark.catalog.refreshTable(self._address)
                self._spark.sql(statement)

        self._table.change(run, note, self._is_before(step))

    def _is_before(self, step: int) -> Callable[[History], bool]:
        return lambda history: self._step_of(history) < step

    def _step_of(self, history: History) -> int:
        """Return the number of the newest step that a snapshot of the main branch records.

        If no snapshot records one, return the number in the table's properties, or 0 if there is
        none.

        Raises:
            WriteError: The snapshots that would tell have expired.
        """
        for found in history.main():
            step = _number_in(found.note)
            if step is not None:
                return step
        copied = _number_in(self._table.properties().get(_STEP)) or 0
        if any((_number_in(found.note) or 0) > copied for found in history.in_doubt):
            raise WriteError(
                f"{self._address} has step {copied} and perhaps a later one, whose process was "
                f"killed before it recorded that; the snapshots that would tell have expired: "
                f"create the table again"
            )
        return copied

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        with super()._errors(what):
            try:
                yield
            except Busy as error:
                raise WriteError(f"{self._address} {what}: {error}") from error

    def _create(self, columns: pa.Schema, facts: Mapping[str, str], *, merged: bool) -> None:
        unordered = {*UNORDERED, *DISTINCT} & {*columns.names} - {"ingest_seq"}
        properties = {
            **(_MERGED if merged else {}),
            _FACTS: json.dumps(dict(facts)),
            "write.distribution-mode": "none",
            **{f"write.metadata.metrics.column.{name}": "none" for name in unordered},
        }
        empty = frame_of_rows(self._target.writing, [], spark_schema(columns))
        self._table.create(empty, properties)
        self._exists = True


def _note_of(step: int) -> str:
    return json.dumps({_STEP: step, "attempt": uuid.uuid4().hex})


def _number_in(note: str | None) -> int | None:
    """Return the number of the step in a note; None if it has none.

    Earlier versions recorded nothing but the number.
    """
    try:
        found = json.loads(note or "null")
    except ValueError:
        return None
    return found if isinstance(found, int) else (found or {}).get(_STEP)


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
