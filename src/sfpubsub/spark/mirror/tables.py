"""Apply the engine's steps (tables/steps.py) to the tables of a mirror.

A step applies the events of some raw batches, merges pieces of a read (log.py), or requests reads.
Each step first adds new entries to the reread queue (queue.py), then changes each object's table,
then removes closed entries. merging.py makes the decisions about records. Invariant: a table
that has recorded the number of a step contains the effects of all steps up to and including that
step, so repeating a step changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.mirror.absences import Loss, Safeguards, are_too_many
from sfpubsub.spark.mirror.bounded import MOST_ENTRIES, entry_row, entry_rows
from sfpubsub.spark.mirror.folding import GONE, Merging
from sfpubsub.spark.mirror.log import ReadLog
from sfpubsub.spark.mirror.mirrored_object import Describe, MirroredObject
from sfpubsub.spark.mirror.notes import Ask, Merge, Remove, Sweep, note_of
from sfpubsub.spark.mirror.queue import ENTRIES, MirrorQueue, entry_of
from sfpubsub.spark.mirror.reads import Entry, Read, is_numbered
from sfpubsub.spark.mirror.settings import Deletes
from sfpubsub.spark.runtime.arrow import frame_of_rows, to_arrow
from sfpubsub.spark.tables.current import about_all_of, entity_of, unreadable_of
from sfpubsub.spark.tables.folding import CUE
from sfpubsub.spark.tables.identity import event_names
from sfpubsub.spark.tables.queue import QUEUE_NAME, Queue
from sfpubsub.spark.tables.records import Cue, ObjectCue, Reason
from sfpubsub.spark.tables.steps import Step
from sfpubsub.spark.tables.target import Target

# Condition for rows of deleted records that need no reread. The setting ``remove`` deletes these
# rows.
_DELETED = "_is_deleted AND NOT _reread"

# Minimum number of rows in a merge for which rows of unknown records are inserted separately. For
# fewer rows, a second table change (half a second) costs more than merging them with the others.
_INSERT_FROM = 5000

# Output columns of the merge rule that become columns of queue rows.
_CUE = ("record_id", "_reread_reason", "_change_type", "_commit_timestamp", "_ingest_seq")
_ENTRY = ["record_id", "reason", "change_type", "commit_timestamp", "since_seq"]


@dataclass
class _Applied:
    """Intermediate results of applying a step's events to one object's table."""

    of: MirroredObject
    merging: Merging
    rows: DataFrame
    about_all: Sequence[ObjectCue]
    merged: DataFrame


class MirrorTables:
    """The tables of a mirror, to which the engine's steps are applied. Not thread-safe.

    Implements `sfpubsub.spark.tables.steps.Follower`.

    Args:
        target: Location of the tables.
        describe: Requests the describe result of an object from the org.
        deletes: What to do with the row of a deleted record.
        wall: Wall clock, in seconds since the epoch.
        safeguards: What stands between an absence and a deleted row.

    Raises:
        ConfigurationError: The target contains current tables that do not belong to a mirror.
    """

    def __init__(
        self,
        target: Target,
        describe: Describe,
        deletes: Deletes,
        wall: Callable[[], float] = time.time,
        safeguards: Safeguards | None = None,
    ) -> None:
        if target.table(QUEUE_NAME).exists() and not Queue(target).is_of_mirror():
            raise ConfigurationError(
                f"{target.place} contains current tables that do not belong to a mirror: choose "
                f"another target"
            )
        self._target = target
        self._describe = describe
        self._deletes = deletes
        self._safeguards = safeguards or Safeguards()
        self.queue: MirrorQueue = MirrorQueue(target, wall)
        self.queue.make()
        self._objects: dict[str, MirroredObject] = {}
        self._logs: dict[str, ReadLog] = {}
        self._newest: dict[str, Read] = {}

    @property
    def objects(self) -> Mapping[str, MirroredObject]:
        """The mirrored objects, by API name."""
        return self._objects

    def add(self, entity: str, newest: Read | None) -> None:
        """Start applying steps to the table of an object.

        Args:
            entity: The object.
            newest: The newest completely merged read of the whole object; None if no read was
                merged completely.
        """
        if newest is not None:
            self._newest[entity] = newest
        if entity not in self._objects:
            (event_type,) = event_names([entity]) - {entity}
            self._objects[entity] = MirroredObject(self._target, entity, event_type, self._describe)

    def remove(self, entity: str) -> None:
        """Stop applying steps to the table of an object."""
        self._objects.pop(entity, None)
        self._logs.pop(entity, None)
        self._newest.pop(entity, None)

    def follow(self, step: Step) -> None:
        """See `sfpubsub.spark.tables.steps.Follower.follow`."""
        kind = step.plan.kind
        if kind in ("rows", "again"):
            self._apply(step)
        elif kind == "beside":
            note = note_of(step.plan.note)
            if isinstance(note, Remove) or note.entity not in self._objects:
                # Or a new process, without the object, repeats the last step.
                self.queue.clear(note.entity, step.plan.number)
            elif isinstance(note, Merge):
                self._merge(note, step)
            elif isinstance(note, Ask):
                self._ask(note, step.plan.number)
            else:
                self._sweep(note, step.plan.number)
        elif kind == "rebuild":
            self._doubt_all(step)

    # Events.

    def _apply(self, step: Step) -> None:
        number = step.plan.number
        unreadable = unreadable_of(self._target, step)
        cues: list[dict[str, Any]] = []
        concerned: list[tuple[MirroredObject, str]] = []
        doubted: list[MirroredObject] = []
        for name in dict.fromkeys([*step.plan.types, *unreadable]):
            entity = entity_of(name or "")
            if name is None or entity is None or entity not in self._objects:
                continue
            found = self._objects[entity]
            if not self._target.table(name).exists():  # none of its events could be decoded
                cues += [_row_about(entity, each, number) for each in unreadable[name]]
                doubted.append(found)
            elif not self._has(found, number):
                concerned.append((found, name))
        with ExitStack() as cached:
            applied = self._applied(step, concerned, unreadable)
            for each in applied:
                each.merged.persist()
                cached.callback(each.merged.unpersist)
            self.queue.add([*cues, *self._cues_of(applied, step)], number)
            for each in applied:
                self._take(each.of, number, merged=self._rows_of(each))
        for found in doubted:
            self._mark(found, Reason.GAP, number)

    def _applied(
        self,
        step: Step,
        concerned: Sequence[tuple[MirroredObject, str]],
        unreadable: Mapping[str | None, Sequence[ObjectCue]],
    ) -> list[_Applied]:
        about_all = about_all_of([step.rows(name) for _, name in concerned])
        found = []
        for (each, name), cues in zip(concerned, about_all, strict=True):
            plan = step.decoding(name)
            each.take_events(plan)
            rows = step.rows(name)
            marks = [*unreadable.get(name, ()), *cues]
            marks.sort(key=lambda about: about.cue.ingest_seq)
            merging = each.merging(plan, about_all=marks, newest=self._newest.get(each.entity))
            parts = [each.changes(rows, plan), each.before(_ids_of(rows))]
            found.append(_Applied(each, merging, rows, marks, each.merged(parts, merging)))
        return found

    def _cues_of(self, applied: Sequence[_Applied], step: Step) -> list[dict[str, Any]]:
        number = step.plan.number
        rows = []
        for each in applied:
            rows += _cue_rows(each.of.entity, each.merged, number)[0]
            rows += [_row_about(each.of.entity, about, number) for about in each.about_all]
            if step.plan.kind == "again":  # a newer read may already have been merged
                again = each.rows.selectExpr("explode(record_ids) AS record_id", "ingest_seq")
                again = again.groupBy("record_id").agg(f.max("ingest_seq").alias("since_seq"))
                rows += entry_rows(each.of.entity, _asked(again, Reason.ASKED), number, asked=True)
        return rows

    def _rows_of(self, applied: _Applied) -> DataFrame:
        rows = applied.of.current(applied.merged)
        if not applied.about_all:
            return rows
        reasons = [
            f.when(f.startswith("record_id", f.lit(each.prefix)), f.lit(str(each.cue.reason)))
            for each in applied.about_all
        ]
        return rows.unionByName(applied.of.marked(f.coalesce(*reasons), _ids_of(applied.rows)))

    # Reads.

    def _merge(self, note: Merge, step: Step) -> None:
        found, number = self._objects[note.entity], step.plan.number
        if not self._has(found, number):
            plan = step.decoding(found.event_type) if found.typed.exists() else None
            queued = self.queue.of(note.entity, number)
            about_all = [each for each in map(entry_of, queued) if each.is_about_all]
            merging = found.merging(
                plan,
                read=note.read,
                entries=about_all,
                newest=note.newest,
                by_id=note.kind == "ids",
                twice=self._safeguards.twice,
                unread=found.columns.unread(note.filled),
            )
            one = [row for row in queued if not entry_of(row).is_about_all]
            make = self._absent if note.is_last else self._returned
            are_parked = False
            with ExitStack() as cached:
                merged, new = make(note, found, merging, one, plan)
                if merged is not None:
                    cached.callback(merged.persist().unpersist)
                    are_parked = self._queue_cues(note, found, merged, number)
                    if isinstance(new, DataFrame) and note.size < _INSERT_FROM:
                        merged, new = merged.unionByName(new), None
                if merged is not None:
                    merged = found.current(merged, are_parked=are_parked)
                if isinstance(new, DataFrame):
                    new = found.current(new)
                self._take(found, number, merged=merged, new=new)
        self._heal(note, number)

    def _queue_cues(
        self, note: Merge, found: MirroredObject, merged: DataFrame, number: int
    ) -> bool:
        """Add the entries of a merge to the queue.

        Returns:
            Whether the records that count as deleted only by their absence are parked, because they
            are too many. Then they have entries, too.
        """
        rows, gone = _cue_rows(note.entity, merged, number)
        are_parked = False
        if gone and self._safeguards.limit:
            loss = Loss(number, note.at, len(gone))
            live = found.table.read().where("NOT _is_deleted").count
            are_parked = are_too_many(self.queue.losses(note.entity), loss, live)
            self.queue.keep_loss(note.entity, loss)
        if are_parked:
            cue = Cue(Reason.PARKED, None, None, note.read.as_of.ingest_seq)
            rows += [entry_row(note.entity, each, cue, number, asked=True) for each in gone]
        self.queue.add(rows, number)
        return are_parked

    def _returned(
        self,
        note: Merge,
        found: MirroredObject,
        merging: Merging,
        entries: Sequence[Mapping[str, Any]],
        plan: Plan | None,
    ) -> tuple[DataFrame | None, DataFrame | list[bytes] | None]:
        """Return the merge results for the records in some pieces of a read.

        Returns:
            Two elements, either of which may be None. The first contains the results for the
            records that are merged one by one: new rows of the object's table and of the reread
            queue. The second contains the new rows of all other records, which are known only from
            the read and are not yet in the table. If possible, it is a list of Parquet files.
        """
        log = self.log(note.entity)
        pieces = log.take(note.first, note.last)
        read = log.rows(note.first, note.last)
        ids = read.select("record_id")
        parts = []
        if found.table.step() and (note.kind == "ids" or _may_share(found.table.read(), note.ids)):
            parts.append(found.before(ids))
        if entries:
            parts.append(_among(found.entries(self._frame(entries)), ids))
        if plan is not None and note.applied_seq > note.read.as_of.ingest_seq:
            since = f.col("ingest_seq") > note.read.as_of.ingest_seq
            parts.append(_among(found.changes(found.typed.read().where(since), plan), ids))
        if note.kind == "ids" or any(each.record_id for each in merging.entries):
            return found.merged([*parts, found.found(read)], merging), None
        known = self._record_ids(parts)
        merged = None
        if known is not None:
            merged = found.merged([*parts, _among(found.found(read), known[1])], merging)
        new = None
        if pieces is not None:
            new = found.files(pieces, merging, None if known is None else known[0])
        if new is not None:
            # Without rows, only the step has to be recorded, which the merge does.
            return merged, new if new or merged is None else None
        others = found.found(read)
        if known is not None:
            others = others.join(f.broadcast(known[1]), "record_id", "left_anti")
        return merged, found.alone(others, merging)

    def _record_ids(self, parts: Sequence[DataFrame]) -> tuple[pa.Array, DataFrame] | None:
        """Return the distinct record ids in *parts*, as an array and as a DataFrame.

        Return None if *parts* has no rows.
        """
        if not parts:  # usual on the first read: saves a job
            return None
        ids = reduce(DataFrame.unionAll, (part.select("record_id") for part in parts)).distinct()
        found = to_arrow(ids)
        if not len(found):
            return None
        return found["record_id"].combine_chunks(), frame_of_rows(self._target.spark, found)

    def _absent(
        self,
        note: Merge,
        found: MirroredObject,
        merging: Merging,
        entries: Sequence[Mapping[str, Any]],
        _plan: Plan | None,
    ) -> tuple[DataFrame | None, DataFrame | None]:
        """Return the merge results for the records that a read of the whole object did not return.

        Returns:
            Two elements, as for `_returned`. The first contains the results, or is None if there
            are no such records. The second is always None, because none of the records is new.
        """
        as_of = note.read.as_of
        before = (
            f"_read IS NULL OR _read.ingest_seq < {as_of.ingest_seq} OR "
            f"(_read.ingest_seq = {as_of.ingest_seq} AND _read.step < {as_of.asked})"
        )
        gone = found.table.read().where(before).where(f"NOT ({_DELETED})")
        if gone.isEmpty():  # always on the first read
            return None, None
        parts = [found.absent(gone, note.read.until), found.rows(gone)]
        if entries:
            parts.append(
                found.entries(self._frame(entries)).join(
                    gone.select("record_id"), "record_id", "left_semi"
                )
            )
        return found.merged(parts, merging), None

    def _frame(self, entries: Sequence[Mapping[str, Any]]) -> DataFrame:
        rows = pa.Table.from_pylist([dict(row) for row in entries], ENTRIES)
        return frame_of_rows(self._target.spark, rows)

    def _heal(self, note: Merge, number: int) -> None:
        if note.is_last:
            self.queue.remove(note.entity, note.read, number)
            self._newest[note.entity] = note.read
        elif note.kind == "ids":
            rows = self.log(note.entity).rows(note.first, note.last).select("record_id").collect()
            ids = [row["record_id"] for row in rows]
            self.queue.remove(note.entity, note.read, number, ids)

    def log(self, entity: str) -> ReadLog:
        """Return the read log of an object: the same `ReadLog` instance on every call."""
        if entity not in self._logs:
            self._logs[entity] = ReadLog(self._target, entity)
        return self._logs[entity]

    # Requests.

    def _ask(self, note: Ask, number: int) -> None:
        found = self._objects[note.entity]
        cue = Cue(note.reason, None, None, note.applied_seq)
        ids = (None,) if note.record_ids is None else note.record_ids
        rows = [entry_row(note.entity, each, cue, number, asked=True) for each in ids]
        self.queue.add(rows, number)
        if note.forgets_absences:
            self.queue.forget_absences(note.entity, number)
        if Entry(None, cue).casts_doubt and note.record_ids is None:
            self._mark(found, note.reason, number)

    def _doubt_all(self, step: Step) -> None:
        """Request a new read of all objects, because events may be missing in their tables."""
        number = step.plan.number
        cue = Cue(Reason.GAP, None, None, step.plan.applied_seq)
        self.queue.add(
            [entry_row(name, None, cue, number, asked=True) for name in self._objects], number
        )
        for found in self._objects.values():
            self._mark(found, Reason.GAP, number)

    def _mark(self, found: MirroredObject, reason: Reason, number: int) -> None:
        """Mark all rows of an object for rereading; its table may not exist yet."""
        if found.table.exists() and not self._has(found, number):
            self._take(found, number, merged=found.marked(f.lit(str(reason))))

    def _sweep(self, note: Sweep, number: int) -> None:
        """Add the records that are only in the table, or only in the org, to the reread queue."""
        found = self._objects[note.entity]
        swept = self.log(note.entity).rows(note.first, note.last).select("record_id")
        live = found.table.read().where("NOT _is_deleted").select("record_id")
        differing = live.join(swept, "record_id", "left_anti").unionAll(
            swept.join(live, "record_id", "left_anti")
        )
        # One more than are kept shows that there are too many.
        ids = differing.distinct().limit(MOST_ENTRIES + 1)
        found_ids = _asked(ids.withColumn("since_seq", f.lit(note.applied_seq)), Reason.SWEEP)
        rows = entry_rows(note.entity, found_ids, number, asked=True)
        self.queue.add(rows, number)

    # Tables.

    def _has(self, found: MirroredObject, number: int) -> bool:
        """Return whether a table has all changes of step *number*.

        The changes of a step have up to three version numbers, from 3 * number to 3 * number + 2.
        """
        return found.table.step() >= 3 * number + 2

    def _take(
        self,
        found: MirroredObject,
        number: int,
        *,
        merged: DataFrame | None = None,
        new: DataFrame | list[bytes] | None = None,
    ) -> None:
        """Write a step's rows to a table in up to three commits.

        The commits have consecutive numbers, up to the last one that the step may use. If the step
        is repeated after a crash, the commits that the table already has are skipped. The repeated
        step may merge a row that the first attempt inserted, which is harmless. It never inserts a
        row that the first attempt merged, which would duplicate the row.

        Args:
            found: The object.
            number: Number of the step.
            merged: Rows of records that the table may already contain.
            new: Rows of records that the table does not have, as a DataFrame or as files.
        """
        changes: list[Callable[[int], object]] = []
        if merged is not None:
            changes.append(partial(found.table.merge, merged, ["record_id"]))
        if isinstance(new, list):
            changes.append(partial(found.table.append, new))
        elif new is not None:
            changes.append(partial(found.table.insert, new))
        if self._deletes == "remove":
            changes.append(partial(found.table.delete, _DELETED))
        changes = changes or [partial(found.table.append, [])]
        for version, change in enumerate(changes, 3 * number + 3 - len(changes)):
            if found.table.step() < version:
                change(version)


def _among(rows: DataFrame, ids: DataFrame) -> DataFrame:
    """Return the rows whose record id is in *ids*."""
    return rows.join(f.broadcast(ids), "record_id", "left_semi")


def _may_share(table: DataFrame, ids: tuple[str, str] | None) -> bool:
    """Return whether a table has a record id in the range *ids* (both ends inclusive).

    True if *ids* is None. During a first read the result is usually False, because the pieces of a
    Bulk read are ranges of ids. This check reads only the files that overlap with the range,
    whereas a join would read the whole table for each piece.
    """
    return ids is None or not table.where(f.col("record_id").between(*ids)).isEmpty()


def _ids_of(rows: DataFrame) -> DataFrame:
    """Return the distinct record ids of change events, as a column ``record_id``.

    GAP_OVERFLOW events are left out, because they concern all records of the object.
    """
    one = rows.where("change_type <> 'GAP_OVERFLOW'")
    return one.selectExpr("explode(record_ids) AS record_id").distinct()


def _cue_rows(
    entity: str, merged: DataFrame, number: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Extract the new rows of the reread queue from the output of the merge rule.

    Also return the ids of the records that count as deleted only by their absence.
    """
    found = to_arrow(merged.where(f.col("_kind").isin(CUE, GONE)).select("_kind", *_CUE))
    is_gone = pc.equal(found["_kind"], GONE)
    gone = found.filter(is_gone)["record_id"].to_pylist()
    cues = found.filter(pc.invert(is_gone)).select(_CUE).rename_columns(_ENTRY)
    reasons = pa.array([str(each) for each in Reason if is_numbered(each)])
    by_read = pc.is_in(cues["reason"], value_set=reasons)
    rows = entry_rows(entity, cues.filter(pc.invert(by_read)), number)
    return rows + entry_rows(entity, cues.filter(by_read), number, asked=True), gone


def _asked(rows: DataFrame, reason: Reason) -> pa.Table:
    """Return columns of queue rows that no event caused, from record ids and `since_seq`."""
    found = rows.select(
        "record_id",
        f.lit(str(reason)).alias("reason"),
        f.lit(None).cast("string").alias("change_type"),
        f.lit(None).cast("timestamp").alias("commit_timestamp"),
        f.col("since_seq").cast("long").alias("since_seq"),
    )
    return to_arrow(found)


def _row_about(entity: str, about: ObjectCue, number: int) -> dict[str, Any]:
    """Return the row of the reread queue for *about*, a reason to reread several records.

    The row's record id is the prefix of their ids followed by ``*``; null for all records of the
    object.
    """
    record_id = f"{about.prefix}*" if about.prefix else None
    return entry_row(entity, record_id, about.cue, number)
