"""The tables of one object: columns, and the input and output DataFrames of the merge rule.

The merge rule (merging.py) makes all decisions about records, row by row on executors. The outcome
is the same for all records that are known only from a read, so it is computed only once
(`RecordTable.alone`).
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import SfPubSubError
from sfpubsub.rest import ObjectDescription
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.formats.frames import mapped, spark_schema, sql_type
from sfpubsub.spark.formats.target import LAST, Target, TargetTable, parquet_of
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import Fields, Reason
from sfpubsub.spark.records.rows import (
    ABSENT,
    BEFORE,
    CHANGE,
    CLOSED,
    CURRENT,
    ENTRY,
    FLAGS,
    FOUND,
    GONE,
    GONE_CLOSED,
    GONE_VERSION,
    PARTS,
    READ,
    READ_TYPE,
    VALIDITY,
    VERSION,
    Merging,
    as_versions,
    merge_rows,
    row_without,
    rows_without,
)
from sfpubsub.spark.runtime.sql import quoted, sql_text

_log = logging.getLogger("sfpubsub.spark")

# Values of the fact ``kind`` stored with the tables.
KINDS = ("current", "history")

HISTORY_SUFFIX = "_history"

_FROM_READ = VALIDITY.field("from_read").with_metadata(
    {
        "comment": "Whether a read of the org has found the version. Of an object without events, "
        "there is at most one for each read."
    }
)

# A row of the source is that of the same record.
_SAME = "t.record_id = s.record_id"

# A row of the kind `CLOSED`, which alone has no change type, matches the record's open version.
_IS_CLOSED = "s._change_type IS NULL"
_END = {"valid_to": "greatest(t.valid_from, s.valid_to)"}  # ignores null
_ENDS = f"{_SAME} AND t.valid_to IS NULL AND {_IS_CLOSED}"

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

# Condition for rows of deleted records that need no reread.
DELETED = "_is_deleted AND NOT _reread"

Describe = Callable[[str], ObjectDescription]


class RecordTable:
    """The current table of one object, and its history table if there is one. Not thread-safe.

    Args:
        target: Location of the tables.
        entity: The object.
        event_type: Event type of the object's change events.
        describe: Requests the describe result of the object from the org; None if there is no org
            to ask. Then the columns have the types of the events.
        history: Whether there is a history table, with one row per version.
        removes: Whether the rows of deleted records are removed from the current table.
    """

    def __init__(
        self,
        target: Target,
        entity: str,
        event_type: str,
        describe: Describe | None,
        *,
        history: bool,
        removes: bool = False,
    ) -> None:
        self.entity = entity
        self.event_type = event_type
        self.table: TargetTable = target.table(entity)
        self.typed: TargetTable = target.table(event_type)
        self._history = target.table(f"{entity}{HISTORY_SUFFIX}") if history else None
        self._removes = removes
        self._describe = describe
        facts = self.table.facts()
        self._schemas: list[str] = json.loads(facts.get("schema_ids", "[]"))
        self._columns = Columns.from_json(facts["columns"]) if facts else None
        if self._columns is not None:
            # An earlier version may have made the tables with fewer columns of its own, and a
            # rebuild may add a history table.
            self._make(self._columns, self._schemas)

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
        if self._describe is None:
            return self._columns or Columns(self.entity, (), is_described=False)
        if self._columns is not None and not self._columns.is_described:
            return self._columns  # a table keeps the types that it was made with
        new = Columns.of(self._describe(self.entity), self._columns)
        changes = "" if self._columns is None else new.changes_since(self._columns)
        if changes:
            _log.warning("the fields of %s have changed in the org: %s", self.entity, changes)
        return new

    def _keep(self, columns: Columns, schemas: list[str]) -> None:
        if columns != self._columns or schemas != self._schemas:
            self._make(columns, schemas)

    def _make(self, columns: Columns, schemas: list[str]) -> None:
        kept = [*_ID, *columns.schema, *FLAGS, *READ]
        if self._history is not None:
            versions = pa.schema([*kept, *VALIDITY.remove(2), _FROM_READ])
            self._history.make(versions, {"kind": KINDS[1]}, merged=True)
        facts = {
            "kind": KINDS[0],
            "columns": columns.to_json(),
            "schema_ids": json.dumps(schemas),
        }
        self.table.make(pa.schema(kept), facts, merged=True)
        self._columns, self._schemas = columns, schemas

    # Changes.

    def has(self, step: int) -> bool:
        """Return whether the current table has all changes of a step."""
        return self.table.has(step)

    def take(
        self,
        step: int,
        *,
        merged: DataFrame | None = None,
        new: DataFrame | Sequence[bytes] | None = None,
        versions: DataFrame | None = None,
    ) -> None:
        """Make the changes of a step.

        The history table is written first, because every result is computed from the previous
        contents of the current table. If the step is repeated after a crash, the changes that a
        table already has are skipped. The repeated step may merge a row that the first attempt
        inserted, which is harmless. It never inserts a row that the first attempt merged, which
        would duplicate the row.

        Args:
            step: Number of the step.
            merged: Rows of records that the table may already contain.
            new: Rows of records that the table does not have, as a DataFrame or as files.
            versions: The merge results, which contain the versions of the records in *merged*.
        """
        if self._history is not None:
            self._take_versions(self._history, step, versions, new)
        changes: list[Callable[[int, int], object]] = []
        if merged is not None:
            changes.append(partial(self.table.merge, merged, _SAME))
        if new is not None:
            changes.append(partial(_added, self.table, new))
        if self._removes:
            changes.append(partial(self.table.delete, DELETED))
        _in_parts(self.table, step, changes)

    def _take_versions(
        self,
        history: TargetTable,
        step: int,
        versions: DataFrame | None,
        new: DataFrame | Sequence[bytes] | None,
    ) -> None:
        changes: list[Callable[[int, int], object]] = []
        if versions is not None:
            rows = versions.select(*map(quoted, [*self._own(), *VALIDITY.names]))
            added = f"NOT {_IS_CLOSED}"
            change = partial(history.merge, rows, _ENDS, replaced=_END, added=added)
            changes.append(change)
        if isinstance(new, DataFrame):
            start = "_commit_timestamp AS valid_from"
            end = "CAST(NULL AS TIMESTAMP) AS valid_to"
            new = new.selectExpr("*", start, end, "true AS from_read")
        elif new is not None:
            tables = [pq.read_table(io.BytesIO(each)) for each in new]
            new = [parquet_of(as_versions(each)) for each in tables]
        if new is not None:
            changes.append(partial(_added, history, new))
        _in_parts(history, step, changes)

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

    def removed(self, ids: DataFrame) -> DataFrame | None:
        """Return those of *ids* whose rows were removed at some time, as a column ``record_id``.

        Return None if rows are not removed, or if there is no history table to which it matters.
        The versions that say that a record was deleted stay, so a repeated step finds the same ids.
        """
        if self._history is None or not self._removes:
            return None
        rows = self._history.read().where("_is_deleted").select("record_id")
        return rows.join(f.broadcast(ids), "record_id", "left_semi")

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
            "_read": _of_row_sql("_until"),
            "_stamp": "_stamp",
            "_derived_at": "_derived_at",
            "_part": f"IF(_found, {FOUND}, {ABSENT})",
        }
        return rows.selectExpr(*self._input(given))

    def absent(self, rows: DataFrame, until: datetime | None) -> DataFrame:
        """Convert table rows to the schema `Merging.input`, marking them as absent from a read.

        Args:
            rows: Rows of records that the read did not return.
            until: `Read.until` of the read.
        """
        given = {"_read": _of_row_sql(_time_sql(until)), "_part": str(ABSENT)}
        return rows.selectExpr(*self._input(given))

    def merging(self, plan: Plan | None, **more: Any) -> Merging:
        """Return the parameters for merging rows of the object.

        Args:
            plan: Decoding plan of the object's change events; None if no events are merged.
            **more: Further arguments of `Merging`.
        """
        names = self.columns.schema.names
        unreported = tuple(map(names.index, self.columns.unreported))
        fields = Fields(tuple(names), {}, {}, unreported)
        if plan is not None:
            fields = self.columns.fields(plan)
        return Merging(
            fields,
            self.columns.schema.remove_metadata(),
            with_versions=self._history is not None,
            removes=self._removes,
            **more,
        )

    def merged(self, parts: Sequence[DataFrame], merging: Merging) -> DataFrame:
        """Apply the merge rule to all records in *parts*, which have the schema `Merging.input`."""
        rows = reduce(DataFrame.unionByName, parts).repartition("record_id")
        rows = rows.sortWithinPartitions("record_id", "_part", "_ingest_seq")
        function = partial(merge_rows, merging=merging)
        return mapped(rows, merging.input.names, function, merging.output)

    def alone(self, rows: DataFrame, merging: Merging) -> DataFrame:
        """Return the new rows of records that are known only from a read.

        The merge rule has the same result for all these rows, except for the values. So it is
        applied only once, and its result is combined with the values of each row.
        """
        made = row_without(merging)
        if made is None:  # the read is outdated: skip its rows
            made, rows = (None,) * len(merging.output), rows.limit(0)
        said = dict(zip(merging.output.names, made, strict=True))
        given = {name: _literal(said[name], name) for name in FLAGS.names}
        own = {name: quoted(name) for name in ("record_id", *merging.types.names)}
        given |= {**own, "_is_deleted": "_is_deleted"}
        given["_complete"] += " AND NOT _unfit"
        read = said["_read"] or dict.fromkeys(READ_TYPE.names)
        given |= {"_read": _read_sql(read, "_read.until"), "_stamp": "_stamp"}
        given["_derived_at"] = "_derived_at"
        return rows.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in given.items()))

    def files(
        self, pieces: Iterable[pa.Table], merging: Merging, known: pa.Array | None
    ) -> list[bytes] | None:
        """Return the rows that `alone` returns, as Parquet files created without a Spark job.

        Args:
            pieces: Rows of the read log.
            merging: The parameters, as *merging* returns them.
            known: Ids of records to leave out.

        Returns:
            The files, possibly an empty list; None if a column has different types in the log and
            in the table.
        """
        found = []
        for rows in pieces:
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

    def versions(self, merged: DataFrame, *, are_parked: bool = False) -> DataFrame | None:
        """Extract the new rows of the history table; None if there is no such table.

        Args:
            merged: The output of the merge rule.
            are_parked: See `current`.
        """
        if self._history is None:
            return None
        kinds = [CLOSED, VERSION]
        if not are_parked:
            kinds += [GONE_CLOSED, GONE_VERSION]
        return merged.where(f.col("_kind").isin(*kinds))

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


def _added(table: TargetTable, rows: DataFrame | Sequence[bytes], step: int, part: int) -> None:
    if isinstance(rows, DataFrame):
        table.insert(rows, step, part)
    else:
        table.append(rows, step, part)


def _in_parts(
    table: TargetTable, step: int, changes: Sequence[Callable[[int, int], object]]
) -> None:
    """Make the changes of a step as its last parts, except for those that the table already has."""
    changes = changes or [partial(table.append, [])]
    for part, change in enumerate(changes, LAST + 1 - len(changes)):
        if not table.has(step, part):
            change(step, part)


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


def _of_row_sql(until: str) -> str:
    return _read_sql(dict.fromkeys(READ_TYPE.names), until)


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
