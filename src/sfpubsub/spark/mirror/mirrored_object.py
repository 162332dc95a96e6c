"""The table of one object: its columns, and the input and output DataFrames of the merge rule.

The merge rule (merging.py) makes all decisions about records, row by row on executors. The outcome
is the same for all records that are known only from a read, so it is computed only once
(`MirroredObject.alone`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import SfPubSubError
from sfpubsub.rest import ObjectDescription
from sfpubsub.spark.mirror.columns import Columns
from sfpubsub.spark.mirror.failures import Scope, scope_of
from sfpubsub.spark.mirror.folding import (
    ABSENT,
    BEFORE,
    CHANGE,
    ENTRY,
    FOUND,
    GONE,
    PARTS,
    READ,
    READ_TYPE,
    Merging,
    merge_rows,
    row_without,
    rows_without,
)
from sfpubsub.spark.mirror.log import rows_in
from sfpubsub.spark.raw.frames import mapped, spark_schema, sql_type
from sfpubsub.spark.runtime.sql import quoted, sql_text
from sfpubsub.spark.tables.folding import CURRENT, FLAGS
from sfpubsub.spark.tables.records import Fields, Reason
from sfpubsub.spark.tables.target import Target, parquet_of

_log = logging.getLogger("sfpubsub.spark")

# Value of the fact ``kind`` stored with the table.
KIND = "mirror"

# Input columns of the merge rule that are copied from the typed table. Their names there have no
# underscore.
_TAKEN = ("_change_type", "_commit_timestamp", "_commit_number", "_sequence_number", "_ingest_seq")

# Input columns of the merge rule for a queue entry, with the queue's column for each.
_ENTRY = {
    "_reread_reason": "reason",
    "_change_type": "change_type",
    "_commit_timestamp": "commit_timestamp",
    "_ingest_seq": "since_seq",
    "_asked": "asked",
}

_ID = pa.schema([("record_id", pa.string())])

Describe = Callable[[str], ObjectDescription]


class MirroredObject:
    """The table of one object, and its columns. Not thread-safe.

    Args:
        target: Location of the tables.
        entity: The object.
        event_type: Event type of the object's change events.
        describe: Requests the describe result of the object from the org.
    """

    def __init__(self, target: Target, entity: str, event_type: str, describe: Describe) -> None:
        self.entity = entity
        self.event_type = event_type
        self.table = target.table(entity)
        self.typed = target.table(event_type)
        self._describe = describe
        facts = self.table.facts()
        self._schemas: list[str] = json.loads(facts.get("schema_ids", "[]"))
        self._columns = Columns.from_json(facts["columns"]) if facts else None

    @property
    def columns(self) -> Columns:
        """Columns of the table. If they are not known yet, calls `describe` first."""
        if self._columns is None:
            self.describe()
        if self._columns is None:
            raise AssertionError("the object was described, but its columns are still unknown")
        return self._columns

    def describe(self) -> None:
        """Request the object's describe result from the org, and add missing columns."""
        self._keep(self._described(), self._schemas)

    def take_events(self, plan: Plan) -> Columns:
        """Add the columns that the event schemas of *plan* require, and return all columns.

        A new schema may be due to a new field in the org, so the object is described first: the
        describe result has the more precise type. If the org refuses that for this object alone,
        such as one that is gone, the columns have the types of its events. If it does not answer
        at all, the known columns are used, unless they are not sufficient.
        """
        new = [each for each in plan.schemas if each not in self._schemas]
        if new or self._columns is None:
            try:
                columns = self._described().with_events(plan)
            except SfPubSubError as error:
                columns = (self._columns or Columns(self.entity, ())).with_events(plan)
                is_known = self._columns is not None and columns.schema == self._columns.schema
                if scope_of(error) is Scope.MIRROR or (
                    scope_of(error) is Scope.ORG and not is_known
                ):
                    raise
                _log.warning("%s cannot be described: %s", self.entity, error)
            self._keep(columns, [*self._schemas, *new])
        return self.columns

    def _described(self) -> Columns:
        new = Columns.of(self._describe(self.entity), self._columns)
        changes = "" if self._columns is None else new.changes_since(self._columns)
        if changes:
            _log.warning("the fields of %s have changed in the org: %s", self.entity, changes)
        return new

    def _keep(self, columns: Columns, schemas: list[str]) -> None:
        if columns == self._columns and schemas == self._schemas:
            return
        kept = pa.schema([*_ID, *columns.schema, *FLAGS, *READ])
        facts = {
            "kind": KIND,
            "columns": columns.to_json(),
            "schema_ids": json.dumps(schemas),
        }
        self.table.make(kept, facts, merged=True)
        self._columns, self._schemas = columns, schemas

    # Frames.

    def changes(self, rows: DataFrame, plan: Plan) -> DataFrame:
        """Convert change events to the schema `Merging.input`, one row per event and record.

        GAP_OVERFLOW events and record ids with a wildcard are left out, because they do not name
        single records.

        Args:
            rows: Rows of the typed table.
            plan: Decoding plan of the events.
        """
        one = rows.where("change_type <> 'GAP_OVERFLOW'")
        one = one.selectExpr("*", "explode(record_ids) AS record_id")
        given = self.columns.from_events(plan)
        given |= {name: name.removeprefix("_") for name in _TAKEN}
        given |= {
            "_part": str(CHANGE),
            "_changed": "concat(changed_fields, nulled_fields)",
            "_diffs": "diff_fields",
            "_unfit": self.columns.unfit_in_events(plan),
        }
        return one.where("NOT endswith(record_id, '*')").selectExpr(*self._input(given))

    def before(self, ids: DataFrame) -> DataFrame:
        """Return the table rows of the records in *ids*, with the schema `Merging.input`."""
        return self.rows(self.table.read().join(f.broadcast(ids), "record_id", "left_semi"))

    def rows(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the object's table to the schema `Merging.input`."""
        given = {name: quoted(name) for name in self._own()} | {"_part": str(BEFORE)}
        return rows.selectExpr(*self._input(given))

    def entries(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the reread queue to the schema `Merging.input`."""
        given = {name: quoted(old) for name, old in _ENTRY.items()}
        return rows.selectExpr(*self._input({**given, "_part": str(ENTRY)}))

    def found(self, rows: DataFrame) -> DataFrame:
        """Convert rows of the read log to the schema `Merging.input`."""
        there = {field.name: field.dataType for field in rows.schema}
        wanted = {field.name: field.dataType for field in spark_schema(self.columns.schema)}
        given = {n: _as(n, there[n], kind) for n, kind in wanted.items() if n in there}
        given |= {
            "_is_deleted": "_is_deleted",
            "_unfit": "_unfit",
            "_read": _until_sql("_until"),
            "_part": f"IF(_found, {FOUND}, {ABSENT})",
        }
        return rows.selectExpr(*self._input(given))

    def absent(self, rows: DataFrame, until: datetime | None) -> DataFrame:
        """Convert table rows to the schema `Merging.input`, marking them as absent from a read.

        Args:
            rows: Rows of records that the read did not return.
            until: `Read.until` of the read.
        """
        given = {"_read": _until_sql(_time_sql(until)), "_part": str(ABSENT)}
        return rows.selectExpr(*self._input(given))

    def merging(self, plan: Plan | None, **more: Any) -> Merging:
        """Return the parameters for merging rows of the object.

        Args:
            plan: Decoding plan of the object's change events; None if no events are merged.
            **more: Further arguments of `Merging`.
        """
        fields = Fields(tuple(self.columns.schema.names), {}, {})
        if plan is not None:
            fields = self.columns.fields(plan)
        return Merging(fields, self.columns.schema.remove_metadata(), **more)

    def merged(self, parts: Sequence[DataFrame], merging: Merging) -> DataFrame:
        """Apply the merge rule to all records in *parts*, which have the schema `Merging.input`."""
        rows = reduce(DataFrame.unionByName, parts).repartition("record_id")
        rows = rows.sortWithinPartitions("record_id", "_part", "_ingest_seq")
        function = partial(merge_rows, merging=merging)
        return mapped(rows, merging.input.names, function, merging.output)

    def alone(self, rows: DataFrame, merging: Merging) -> DataFrame:
        """Return the merge result for the rows of records that are known only from a read.

        The merge rule has the same result for all these rows, except for the values. So it is
        applied only once, and its result is combined with the values of each row.
        """
        made = row_without(merging)
        if made is None:  # the read is outdated: skip its rows
            made, rows = (None,) * len(merging.output), rows.limit(0)
        said = dict(zip(merging.output.names, made, strict=True))
        given = {name: _literal(said[name], name) for name in FLAGS.names}
        own = {name: quoted(name) for name in ("record_id", *merging.types.names)}
        given |= {**own, "_is_deleted": "_is_deleted", "_kind": sql_text(CURRENT)}
        given["_complete"] += " AND NOT _unfit"
        read = said["_read"] or dict.fromkeys(READ_TYPE.names)
        given["_read"] = _read_sql(read, "_read.until")
        return rows.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in given.items()))

    def files(
        self, pieces: Sequence[bytes], merging: Merging, known: pa.Array | None
    ) -> list[bytes] | None:
        """Return the rows that `alone` returns, as Parquet files created without a Spark job.

        Args:
            pieces: Files of the read log (`ReadLog.take`).
            merging: The parameters, as `merging` returns them.
            known: Ids of records to leave out.

        Returns:
            The files, possibly an empty list; None if a column has different types in the log and
            in the table.
        """
        found = []
        for rows in chain.from_iterable(map(rows_in, pieces)):
            new = rows
            if known is not None:
                new = rows.filter(pc.invert(pc.is_in(rows["record_id"], value_set=known)))
            made = rows_without(new, merging)
            if made is None:
                return None
            if len(made):
                found.append(parquet_of(made))
        return found

    def current(self, merged: DataFrame, *, are_parked: bool = False) -> DataFrame:
        """Extract the new rows of the object's table from the output of the merge rule.

        Args:
            merged: The output.
            are_parked: Whether to leave records that count as deleted only by their absence as they
                are, marked; see `merging.parked`.
        """
        rows = merged.where(f.col("_kind").isin(CURRENT, GONE))
        if are_parked:
            values = {
                "_is_deleted": f.lit(False),
                "_reread": f.lit(True),
                "_reread_reason": f.lit(str(Reason.PARKED)),
            }
            is_gone = f.col("_kind") == GONE
            for name, value in values.items():
                rows = rows.withColumn(name, f.when(is_gone, value).otherwise(f.col(name)))
        return rows.select(*map(quoted, self._own()))

    def marked(self, reason: Any, ids: DataFrame | None = None) -> DataFrame:
        """Return the table rows that have to be marked for rereading, with the mark set.

        Rows that are already marked are left out.

        Args:
            reason: Column expression for the reason; null for rows that stay unmarked.
            ids: Ids of records to leave out, as a column ``record_id``.
        """
        rows = self.table.read()
        if ids is not None:
            rows = rows.join(f.broadcast(ids), "record_id", "left_anti")
        rows = rows.where("NOT _reread").withColumn("_reread_reason", reason)
        rows = rows.where("_reread_reason IS NOT NULL").withColumn("_reread", f.lit(True))
        return rows.select(*map(quoted, self._own()))

    def _own(self) -> list[str]:
        return ["record_id", *self.columns.schema.names, *FLAGS.names, *READ.names]

    def _input(self, given: Mapping[str, str]) -> list[str]:
        """Return SQL for all input columns of the merge rule.

        *given* maps the names of columns to SQL. Columns that it lacks are null, except
        ``record_id``, which is copied.

        SQL text is used, because parsing a hundred columns together is ten times as fast as
        creating them one by one.
        """
        wanted = pa.schema([*_ID, *self.columns.schema.remove_metadata(), *FLAGS, *READ, *PARTS])
        found = []
        for column in spark_schema(wanted).fields:
            kind = sql_type(column.dataType)
            default = "record_id" if column.name == "record_id" else f"CAST(NULL AS {kind})"
            value = given.get(column.name, default)
            found.append(f"CAST({value} AS {kind}) AS {quoted(column.name)}")
        return found


def _as(name: str, there: DataType, wanted: DataType) -> str:
    """Return SQL that converts a column of the read log to the type *wanted*.

    Fields that a struct lacks become null.
    """
    if not (isinstance(there, StructType) and isinstance(wanted, StructType)):
        return quoted(name)
    members = ", ".join(
        f"{sql_text(part.name)}, "
        + (quoted(name, part.name) if part.name in there.names else "NULL")
        for part in wanted
    )
    return f"IF({quoted(name)} IS NULL, NULL, named_struct({members}))"


def _time_sql(time: datetime | None) -> str:
    if time is None:
        return "CAST(NULL AS TIMESTAMP)"
    return f"TIMESTAMP{sql_text(time.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S.%f'))}"


def _until_sql(until: str) -> str:
    return _read_sql(
        dict.fromkeys(READ_TYPE.names),
        until,
    )


def _read_sql(read: Mapping[str, Any], until: str) -> str:
    members = [
        ("ingest_seq", _number_sql(read["ingest_seq"])),
        ("step", _number_sql(read["step"])),
        ("since_timestamp", _time_sql(read["since_timestamp"])),
        ("since_number", _number_sql(read["since_number"])),
        ("since_sequence", _number_sql(read["since_sequence"])),
        ("until", until),
    ]
    return f"named_struct({', '.join(f'{sql_text(name)}, {sql}' for name, sql in members)})"


def _number_sql(number: int | None) -> str:
    return f"CAST({'NULL' if number is None else number} AS BIGINT)"


def _literal(value: Any, name: str) -> str:
    kind = sql_type(spark_schema(pa.schema([FLAGS.field(name)])).fields[0].dataType)
    if isinstance(value, datetime):
        return _time_sql(value)
    if value is None:
        return f"CAST(NULL AS {kind})"
    if isinstance(value, str):
        return sql_text(str(value))
    return f"CAST({str(value).lower()} AS {kind})"
