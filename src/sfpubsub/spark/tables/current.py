"""Maintain the current tables, the history tables and the reread queue, step by step.

The changes of a step (steps.py) are applied to the rows of their records (records.py, folding.py),
and the result is merged. The order in which tables are written makes a step repeatable after a
crash. The queue is written first, so that no row is ever marked for rereading without an entry in
the queue. An object's history table is written before its current table, because every result is
computed from the previous contents of the current table. Invariant: a table with the number of a
step contains exactly the results of all steps up to that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.columns import paths_of
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.raw.frames import mapped, spark_schema, sql_type
from sfpubsub.spark.runtime.arrow import to_arrow
from sfpubsub.spark.runtime.sql import quoted
from sfpubsub.spark.tables.decode import UNDECODABLE_NAME
from sfpubsub.spark.tables.folding import (
    CHANGES,
    CUE,
    CURRENT,
    FLAGS,
    RENUMBERED,
    VALIDITY,
    VERSION,
    Folding,
    fold_rows,
)
from sfpubsub.spark.tables.queue import Queue, object_row
from sfpubsub.spark.tables.records import Cue, Fields, ObjectCue, Reason
from sfpubsub.spark.tables.steps import Step
from sfpubsub.spark.tables.target import Target

HISTORY_SUFFIX = "_history"

# Values of the stored fact ``kind`` that distinguish these tables from typed tables.
_KINDS = ("current", "history")

_RECORD_ID = pa.schema([("record_id", pa.string())])

# Input columns of the fold that are copied from the typed table. Their names there have no
# underscore.
_TAKEN = ("_change_type", "_commit_timestamp", "_commit_number", "_sequence_number", "_ingest_seq")

# Columns of a cue in `Folding.output`, and the corresponding columns of the queue.
_CUE_COLUMNS = {
    "_reread_reason": "reason",
    "_change_type": "change_type",
    "_commit_timestamp": "commit_timestamp",
    "_ingest_seq": "since_seq",
}

# The name of a change event is its object's name with this suffix, but the change event of
# ``My_Object__c`` is ``My_Object__ChangeEvent``.
_EVENT = "ChangeEvent"


def entity_of(event_type: str) -> str | None:
    """Return the object of a change event type: ``Account`` for ``AccountChangeEvent``.

    Return None for other event types.
    """
    if not event_type.endswith(_EVENT):
        return None
    name = event_type.removesuffix(_EVENT)
    return f"{name}c" if name.endswith("__") else name


class RecordTables:
    """The current tables of one target, with the queue and, optionally, the history tables.

    It implements `sfpubsub.spark.tables.steps.Follower`. Not thread-safe.

    Args:
        target: Target of the tables.
        with_history: Whether there are history tables.
    """

    def __init__(self, target: Target, *, with_history: bool) -> None:
        self._target = target
        self._with_history = with_history
        self._queue = Queue(target)

    @classmethod
    def of(cls, target: Target, *, current: bool, history: bool) -> RecordTables | None:
        """Return an instance if current or history tables are requested or exist; otherwise None.

        Existing tables are always maintained, because a step that leaves them out would make them
        wrong.

        Raises:
            ConfigurationError: The target's tables belong to a mirror.
        """
        queue = Queue(target)
        if queue.is_of_mirror():
            raise ConfigurationError(
                f"{target.place} contains the tables of a mirror, which sfpubsub mirror run "
                f"maintains: choose another target"
            )
        there = queue.exists()
        if not (current or history or there):
            return None
        return cls(target, with_history=history or (there and queue.has_history()))

    def follow(self, step: Step) -> None:
        """See `Follower`."""
        number = step.plan.number
        if step.plan.kind == "rebuild":
            self._clear(number)
            return
        self._check(number)
        if step.plan.kind == "forget":
            return
        unreadable = unreadable_of(self._target, step)
        objects, orphans = [], []
        orphans += [object_row(None, each, number) for each in unreadable.pop(None, ())]
        for name in dict.fromkeys([*step.plan.types, *unreadable]):
            entity = entity_of(name or "")
            if name is None or entity is None:
                continue
            if not self._target.table(name).exists():
                # None of its events could be decoded, so there are no records to mark.
                orphans += [object_row(entity, each, number) for each in unreadable[name]]
                continue
            found = _Object(self._target, entity, name, step, with_history=self._with_history)
            found.about_all = unreadable.get(name, [])
            if found.current.step() < number:
                objects.append(found)
        self._take(objects, orphans, number)

    def _take(
        self, objects: Sequence[_Object], orphans: Sequence[dict[str, Any]], number: int
    ) -> None:
        found = about_all_of([each.rows for each in objects])
        with ExitStack() as cached:
            for each, cues in zip(objects, found, strict=True):
                each.about_all = sorted([*each.about_all, *cues], key=lambda c: c.cue.ingest_seq)
                each.prepare()
                cached.callback(each.fold().unpersist)
            if self._queue.step() < number:
                rows, moves = _cues(objects, number)
                self._queue.note(moves)
                self._queue.add([*orphans, *rows], number)
            for each in objects:
                each.merge(number)

    def _check(self, number: int) -> None:
        """Create the queue in the first step. In later steps, check that no table is missing.

        Raises:
            ConfigurationError: The current or history tables are missing, because earlier steps did
                not build them.
        """
        there = self._queue.exists()
        if there and self._queue.has_history() == self._with_history:
            return
        if number > 1:
            missing = "history" if there else "current"
            raise ConfigurationError(
                f"{self._target.place} has no {missing} tables, and they can only be built from "
                f"the first event on: rebuild all tables with sfpubsub tables rebuild --{missing}"
            )
        self._queue.make(with_history=self._with_history)

    def _clear(self, number: int) -> None:
        self._queue.make(with_history=self._with_history)
        for name in self._target.names():
            table = self._target.table(name)
            if table.facts().get("kind") in _KINDS:
                table.delete("true", number)
        self._queue.clear(number)


class _Object:
    """Updates the tables of one object in one step."""

    def __init__(
        self, target: Target, entity: str, event_type: str, step: Step, *, with_history: bool
    ) -> None:
        self.entity = entity
        self.rows = step.rows(event_type)
        self.about_all: Sequence[ObjectCue] = ()
        self.current = target.table(entity)
        self._history = target.table(f"{entity}{HISTORY_SUFFIX}") if with_history else None
        plan = step.decoding(event_type)
        paths = [paths_of(text, plan.columns) for text in plan.schemas.values()]
        names = {place[0] for found in paths for place in found.values()}
        self._types = pa.schema([each for each in plan.columns if each.name in names])
        self._fields = Fields.of(self._types.names, paths)
        self.folded: DataFrame

    def prepare(self) -> None:
        """Create the object's tables, or add missing columns to them."""
        columns = [*_RECORD_ID, *self._types, *FLAGS]
        self.current.make(pa.schema(columns), {"kind": "current"}, merged=True)
        if self._history is not None:
            columns += VALIDITY
            self._history.make(pa.schema(columns), {"kind": "history"}, merged=True)

    def fold(self) -> DataFrame:
        """Apply the changes to the current rows, and return the result as a cached DataFrame.

        The caller has to unpersist the DataFrame after merging it.
        """
        with_versions = self._history is not None
        folding = Folding(self._fields, self._types, self.about_all, with_versions)
        rows = self._changes().unionByName(self._before()).repartition("record_id")
        rows = rows.sortWithinPartitions("record_id", "_is_change", "_ingest_seq")
        function = partial(fold_rows, folding=folding)
        folded = mapped(rows, folding.input.names, function, folding.output)
        self.folded = folded.persist()
        return self.folded

    def merge(self, number: int) -> None:
        """Merge the result of `fold` into the history table and then into the current table.

        Args:
            number: Number of the step.
        """
        if self._history is not None:
            versions = self.folded.where(f.col("_kind") == VERSION).drop("_kind")
            self._history.merge(
                versions, ["record_id", "_ingest_seq"], number, replaced=["valid_to"]
            )
        rows = self.folded.where(f.col("_kind") == CURRENT).drop("_kind", *VALIDITY.names)
        if self.about_all:
            rows = rows.unionByName(self._marked())
        self.current.merge(rows, ["record_id"], number)

    def _changes(self) -> DataFrame:
        """Return one row per change and record, with the columns of `Folding.input`."""
        one = self.rows.where("change_type <> 'GAP_OVERFLOW'")
        one = one.selectExpr("*", "explode(record_ids) AS record_id")
        return one.where("NOT endswith(record_id, '*')").selectExpr(
            *map(quoted, _RECORD_ID.names + self._types.names),
            *(f"{name.removeprefix('_')} AS {name}" for name in _TAKEN),
            *_nulls(name for name in FLAGS.names if name not in _TAKEN),
            "true AS _is_change",
            "concat(changed_fields, nulled_fields) AS _changed",
            "diff_fields AS _diffs",
        )

    def _before(self) -> DataFrame:
        """Return the current rows of the changed records, with the columns of `Folding.input`."""
        return self._current_rows("left_semi").selectExpr(
            *self._columns, "false AS _is_change", *_nulls(("_changed", "_diffs"))
        )

    def _marked(self) -> DataFrame:
        """Return the rows of records that the step does not change but marks for rereading.

        They differ from the rows in the table only in ``_reread`` and ``_reread_reason``.
        """
        reason = f.coalesce(
            *(
                f.when(f.startswith("record_id", f.lit(each.prefix)), f.lit(str(each.cue.reason)))
                for each in self.about_all
            )
        )
        rows = self._current_rows("left_anti").where("NOT _reread")
        rows = rows.withColumn("_reread_reason", reason).where("_reread_reason IS NOT NULL")
        return rows.withColumn("_reread", f.lit(True)).selectExpr(*self._columns)

    @property
    def _columns(self) -> list[str]:
        return list(map(quoted, _RECORD_ID.names + self._types.names + FLAGS.names))

    def _current_rows(self, how: str) -> DataFrame:
        ids = self.rows.where("change_type <> 'GAP_OVERFLOW'")
        ids = ids.selectExpr("explode(record_ids) AS record_id").distinct()
        return self.current.read().join(f.broadcast(ids), "record_id", how)


def _nulls(names: Iterable[str]) -> list[str]:
    """Return SQL expressions for null columns with names from `FLAGS` or `CHANGES`.

    The columns are SQL text, because Spark parses a hundred of them together ten times faster than
    it creates them one by one.
    """
    kinds = {field.name: field.dataType for field in spark_schema(pa.schema([*FLAGS, *CHANGES]))}
    return [f"CAST(NULL AS {sql_type(kinds[name])}) AS {quoted(name)}" for name in names]


def about_all_of(rows: Sequence[DataFrame]) -> list[list[ObjectCue]]:
    """Return, for each object, the reasons to reread many of its records.

    A reason applies to all records, or to those whose ids begin with a prefix. This runs one Spark
    job.

    Args:
        rows: The typed rows of each object.
    """
    found: list[list[ObjectCue]] = [[] for _ in rows]
    ids = f.col("record_ids")
    overflow = f.col("change_type") == "GAP_OVERFLOW"
    wild = overflow | (f.size(ids) == 0) | f.exists(ids, lambda each: each.endswith("*"))
    columns = ("record_ids", "change_type", "commit_timestamp", "ingest_seq")
    frames = [
        each.where(wild).select(f.lit(number).alias("object"), *columns)
        for number, each in enumerate(rows)
    ]
    for row in reduce(DataFrame.unionAll, frames).collect() if frames else ():
        cue = Cue(Reason.GAP, row.change_type, row.commit_timestamp, row.ingest_seq)
        about = [ObjectCue.of(each, cue) for each in row.record_ids or [None]]
        wanted = [each for each in about if each is not None]
        # An overflow concerns all records, whichever ids it lists.
        found[row.object] += wanted[:1] if row.change_type == "GAP_OVERFLOW" else wanted
    return found


def unreadable_of(target: Target, step: Step) -> dict[str | None, list[ObjectCue]]:
    """Return a reason to reread records for each change event that a step could not decode.

    The reasons are grouped by event type. Each applies to all records of the event's object,
    because the event may be about any of them. The type of an event without a schema is that of its
    topic; if the topic is a channel or unknown, the event concerns every type of the step, or, if
    the step has events of all types, every type with a table and the key None, for any other type.
    """
    table = target.table(UNDECODABLE_NAME)
    if step.plan.kind != "rows" or table.step() != step.plan.number:
        return {}
    rows = table.read().where(f.col("batch").isin(*(each.id for each in step.plan.batches)))
    rows = rows.select("event_name", "topic", "schema_id", "ingest_seq")
    found: dict[str | None, list[ObjectCue]] = {}
    for row in rows.collect():
        cue = ObjectCue("", Cue(Reason.GAP, None, None, row.ingest_seq))
        for name in _concerned(row.event_name, row.topic, row.schema_id, target, step):
            found.setdefault(name, []).append(cue)
    return found


def _concerned(
    event_name: str | None, topic: str | None, schema_id: str | None, target: Target, step: Step
) -> list[str | None]:
    """Return the types of change events to which an undecodable event may belong."""
    if not schema_id:  # JSON of the Streaming API, which contains no change events
        return []
    topic = topic or ""
    if event_name or topic.endswith(_EVENT) or topic.startswith("/event/"):
        name = event_name or topic.rpartition("/")[2]
        return [name] if entity_of(name) and _is_wanted(name, step) else []
    if step.plan.names is None:
        return [*(name for name in target.names() if entity_of(name)), None]
    # The names contain a change event for each name given, even if it is not that of an object.
    events = ("__e", _EVENT)
    return [name for name in step.plan.names if not (entity_of(name) or events[0]).endswith(events)]


def _is_wanted(name: str, step: Step) -> bool:
    return step.plan.names is None or name in step.plan.names


def _cues(
    objects: Sequence[_Object], number: int
) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Return the new rows of the reread queue, and the *moves* to pass to `Queue.note`.

    One Spark job computes them for all objects.
    """
    columns = ("record_id", *_CUE_COLUMNS, "_kind", *VALIDITY.names)
    wanted = f.col("_kind").isin(CUE, RENUMBERED)
    frames = [
        each.folded.where(wanted).select(f.lit(each.entity).alias("entity_name"), *columns)
        for each in objects
    ]
    rows: list[dict[str, Any]] = []
    moves = []
    found = to_arrow(reduce(DataFrame.unionAll, frames)).to_pylist() if frames else []
    for row in found:
        if row["_kind"] == RENUMBERED:
            moves.append((_milliseconds(row["valid_from"]), _milliseconds(row["valid_to"])))
        else:
            named = {new: row[old] for old, new in _CUE_COLUMNS.items()}
            kept = {name: row[name] for name in ("entity_name", "record_id")}
            rows.append({**kept, **named, "step": number})
    for each in objects:
        rows += [object_row(each.entity, about, number) for about in each.about_all]
    return rows, moves


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
