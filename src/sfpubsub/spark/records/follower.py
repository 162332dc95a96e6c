"""Apply the engine's steps to the current and history tables, and to the reread queue.

The changes of a step (step.py) are applied to the rows of their records (merging.py, rows.py). The
order in which tables are written makes a step repeatable after a crash. The queue is written first,
so that no row is ever marked for rereading without an entry in the queue. Invariant: a table that
has a step contains exactly the results of all steps up to that one.

A current table is a mirrored table that no read fills. A mirror's further steps, which merge reads
of the org, are in mirror/tables.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.records.bounded import entry_row, entry_rows
from sfpubsub.spark.records.fold import Cue, ObjectCue, Reason
from sfpubsub.spark.records.queue import RereadQueue
from sfpubsub.spark.records.reads import Read, is_numbered
from sfpubsub.spark.records.rows import CUE, GONE, RENUMBERED, REPAIRED, VALIDITY, Merging
from sfpubsub.spark.records.step import UNDECODABLE_NAME, Step
from sfpubsub.spark.records.table import KINDS, Describe, RecordTable
from sfpubsub.spark.runtime.arrow import to_arrow

# Columns of `Merging.output` in a row of kind `CUE`, and the columns of the queue.
_CUE = ["record_id", "_reread_reason", "_change_type", "_commit_timestamp", "_ingest_seq"]
_ENTRY = ["record_id", "reason", "change_type", "commit_timestamp", "since_seq"]

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


@dataclass
class _Applied:
    """Intermediate results of applying a step's events to one object's tables."""

    of: RecordTable
    rows: DataFrame
    about_all: Sequence[ObjectCue]
    merged: DataFrame


@dataclass(frozen=True)
class Found:
    """What merge results contain besides the rows of records."""

    entries: list[dict[str, Any]]
    """New rows of the reread queue."""
    gone: list[str]
    """Ids of the records that count as deleted only by their absence."""
    repairs: Counter[str]
    """Number of records that were repaired, by `Repair`."""
    moves: list[tuple[int, int]]
    """Restarts of the commit numbers; see `RereadQueue.note`."""


class RecordTables:
    """The current tables of one target, with the queue and, optionally, the history tables.

    It implements `sfpubsub.spark.records.step.Follower`. Not thread-safe.

    Args:
        target: Target of the tables.
        queue: Its reread queue.
        with_history: Whether there are history tables.
        describe: See `RecordTable`.
        removes: See `RecordTable`.
        on_note: For a mirror: performs a step that processes no raw rows.
    """

    def __init__(
        self,
        target: Target,
        queue: RereadQueue,
        *,
        with_history: bool,
        describe: Describe | None = None,
        removes: bool = False,
        on_note: Callable[[Step], None] | None = None,
    ) -> None:
        self._target = target
        self._queue = queue
        self._with_history = with_history
        self._describe = describe
        self._removes = removes
        self._on_note = on_note
        self.objects: dict[str, RecordTable] = {}
        """The objects by API name. Without a mirror, objects are added when their first event
        arrives.
        """
        self.newest: dict[str, Read] = {}
        """The newest read of each object that was merged completely."""

    @classmethod
    def of(
        cls, target: Target, *, current: bool, history: bool, describe: Describe | None = None
    ) -> RecordTables | None:
        """Return an instance if current or history tables are requested or exist; otherwise None.

        Existing tables are always maintained, because a step that leaves them out would make them
        wrong.

        Raises:
            ConfigurationError: The target's tables belong to a mirror.
        """
        queue = RereadQueue(target)
        if queue.is_of_mirror():
            raise ConfigurationError(
                f"{target.place} contains the tables of a mirror, which sfpubsub mirror run "
                f"maintains: choose another target"
            )
        there = queue.exists()
        if not (current or history or there):
            return None
        with_history = history or (there and queue.has_history())
        return cls(target, queue, with_history=with_history, describe=describe)

    @property
    def _is_mirror(self) -> bool:
        return self._on_note is not None

    def add(self, entity: str, event_type: str) -> RecordTable:
        """Start applying steps to the tables of an object, and return them."""
        if entity not in self.objects:
            self.objects[entity] = RecordTable(
                self._target,
                entity,
                event_type,
                self._describe,
                history=self._with_history,
                removes=self._removes,
            )
        return self.objects[entity]

    def follow(self, step: Step) -> None:
        """See `Follower`."""
        kind, number = step.plan.kind, step.plan.number
        if kind == "rebuild":
            self._start_over(step)
            return
        if not self._is_mirror:
            self._check(number)
        if kind in ("rows", "redecode"):
            self._apply(step)
        elif self._on_note is not None and kind == "instruction":
            self._on_note(step)

    def mark(self, found: RecordTable, reason: Reason, step: int) -> None:
        """Mark all rows of an object for rereading; its table may not exist yet."""
        if found.table.exists() and not found.has(step):
            found.take(step, merged=found.marked(f.lit(str(reason))))

    def found_in(self, merged: Mapping[str, DataFrame], step: int) -> Found:
        """Return what the merge results of some objects contain besides the rows of records.

        One Spark job computes it for all objects.
        """
        columns = ("_kind", *_CUE, *VALIDITY.names)
        wanted = f.col("_kind").isin(CUE, GONE, RENUMBERED, REPAIRED)
        frames = [
            rows.where(wanted).select(f.lit(name).alias("entity"), *columns)
            for name, rows in merged.items()
        ]
        found = Found([], [], Counter(), [])
        rows = to_arrow(reduce(DataFrame.unionAll, frames)) if frames else pa.table({})
        for name in merged:
            own = rows.filter(pc.equal(rows["entity"], name))
            kind = own["_kind"]
            found.gone.extend(own.filter(pc.equal(kind, GONE))["record_id"].to_pylist())
            repaired = own.filter(pc.equal(kind, REPAIRED))
            found.repairs.update(repaired["_reread_reason"].to_pylist())
            for row in own.filter(pc.equal(kind, RENUMBERED)).to_pylist():
                span = (_milliseconds(row["valid_from"]), _milliseconds(row["valid_to"]))
                found.moves.append(span)
            cues = own.filter(pc.equal(kind, CUE)).select(_CUE).rename_columns(_ENTRY)
            reasons = pa.array([str(each) for each in Reason if is_numbered(each)])
            by_read = pc.is_in(cues["reason"], value_set=reasons)
            found.entries.extend(entry_rows(name, cues.filter(pc.invert(by_read)), step))
            found.entries.extend(entry_rows(name, cues.filter(by_read), step, asked=True))
        return found

    # Events.

    def _apply(self, step: Step) -> None:
        number = step.plan.number
        unreadable = unreadable_of(self._target, step)
        entries = [row_about(None, each, number) for each in unreadable.pop(None, ())]
        concerned: list[tuple[RecordTable, str]] = []
        doubted: list[RecordTable] = []
        for name in dict.fromkeys([*step.plan.types, *unreadable]):
            entity = entity_of(name or "")
            if name is None or entity is None:
                continue
            if self._is_mirror and entity not in self.objects:
                continue
            if not self._target.table(name).exists():  # none of its events could be decoded
                entries += [row_about(entity, each, number) for each in unreadable[name]]
                if entity in self.objects:
                    doubted.append(self.objects[entity])
                continue
            found = self.add(entity, name)
            if not found.has(number):
                concerned.append((found, name))
        with ExitStack() as cached:
            applied = self._applied(step, concerned, unreadable)
            for each in applied:
                each.merged.persist()
                cached.callback(each.merged.unpersist)
            if not self._queue.has_added(number):
                self._queue_cues(applied, entries, step)
            for each in applied:
                versions = each.of.versions(each.merged)
                each.of.take(number, merged=_rows_of(each), versions=versions)
        for found in doubted:
            self.mark(found, Reason.GAP, number)

    def _applied(
        self,
        step: Step,
        concerned: Sequence[tuple[RecordTable, str]],
        unreadable: Mapping[str | None, Sequence[ObjectCue]],
    ) -> list[_Applied]:
        about_all = _about_all_of([step.rows(name) for _, name in concerned])
        applied = []
        for (each, name), cues in zip(concerned, about_all, strict=True):
            plan = step.decoding(name)
            each.take_events(plan)
            rows = step.rows(name)
            marks = [*unreadable.get(name, ()), *cues]
            marks.sort(key=lambda about: about.cue.ingest_seq)
            merging: Merging = each.merging(
                plan, about_all=marks, newest=self.newest.get(each.entity)
            )
            parts = [each.changes(rows, plan), each.before(_ids_of(rows))]
            applied.append(_Applied(each, rows, marks, each.merged(parts, merging)))
        return applied

    def _queue_cues(
        self, applied: Sequence[_Applied], entries: Sequence[dict[str, Any]], step: Step
    ) -> None:
        number = step.plan.number
        found = self.found_in({each.of.entity: each.merged for each in applied}, number)
        rows = [*entries, *found.entries]
        for each in applied:
            rows += [row_about(each.of.entity, about, number) for about in each.about_all]
            if self._is_mirror and step.plan.kind == "redecode":
                # A newer read may already have been merged.
                again = each.rows.selectExpr("explode(record_ids) AS record_id", "ingest_seq")
                again = again.groupBy("record_id").agg(f.max("ingest_seq").alias("since_seq"))
                rows += entry_rows(each.of.entity, asked(again, Reason.ASKED), number, asked=True)
        self._queue.note(found.moves)
        self._queue.add(rows, number)

    # The first step, and starting over.

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
        self._queue.make(of_mirror=False, with_history=self._with_history)

    def _start_over(self, step: Step) -> None:
        """Remove all rows; for a mirror: mark them, and request a new read of all objects."""
        number = step.plan.number
        if self._is_mirror:
            cue = Cue(Reason.GAP, None, None, step.plan.applied_seq)
            rows = [entry_row(name, None, cue, number, asked=True) for name in self.objects]
            self._queue.add(rows, number)
            for found in self.objects.values():
                self.mark(found, Reason.GAP, number)
            return
        self._queue.make(of_mirror=False, with_history=self._with_history)
        for name in self._target.names():
            table = self._target.table(name)
            if table.facts().get("kind") in KINDS:
                table.delete("true", number)
        self._queue.clear(number)


def _rows_of(applied: _Applied) -> DataFrame:
    """Return the new rows of the current table: of changed records, and of those to be marked."""
    rows = applied.of.current(applied.merged)
    if not applied.about_all:
        return rows
    reasons = [
        f.when(f.startswith("record_id", f.lit(each.prefix)), f.lit(str(each.cue.reason)))
        for each in applied.about_all
    ]
    return rows.unionByName(applied.of.marked(f.coalesce(*reasons), _ids_of(applied.rows)))


def _ids_of(rows: DataFrame) -> DataFrame:
    """Return the distinct record ids of change events, as a column ``record_id``.

    GAP_OVERFLOW events are left out, because they concern all records of the object.
    """
    one = rows.where("change_type <> 'GAP_OVERFLOW'")
    return one.selectExpr("explode(record_ids) AS record_id").distinct()


def asked(rows: DataFrame, reason: Reason) -> pa.Table:
    """Return columns of queue rows that no event caused, from record ids and `since_seq`."""
    found = rows.select(
        "record_id",
        f.lit(str(reason)).alias("reason"),
        f.lit(None).cast("string").alias("change_type"),
        f.lit(None).cast("timestamp").alias("commit_timestamp"),
        f.col("since_seq").cast("long").alias("since_seq"),
    )
    return to_arrow(found)


def row_about(entity: str | None, about: ObjectCue, step: int) -> dict[str, Any]:
    """Return the queue row for a reason to reread many records of an object.

    The row stands for the records whose ids begin with ``about.prefix``, or for all records of the
    object if the prefix is empty. If *entity* is None, the object is not known.
    """
    record_id = f"{about.prefix}*" if about.prefix else None
    return entry_row(entity, record_id, about.cue, step)


def _about_all_of(rows: Sequence[DataFrame]) -> list[list[ObjectCue]]:
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


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
