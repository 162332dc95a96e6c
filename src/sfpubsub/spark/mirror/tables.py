"""Apply the engine's steps (records/step.py) to the tables of a mirror.

A step applies the events of some raw batches, merges pieces of a read (log.py), or requests reads.
Each step first adds new entries to the reread queue (queue.py), then changes each object's table,
then removes closed entries. The decisions about records are those of records/merging.py. Invariant:
a table that has a step contains the effects of all steps up to that one, so repeating a step
changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.typed_rows import Plan
from sfpubsub.errors import ConfigurationError
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.mirror.absences import Loss, Safeguards, are_too_many
from sfpubsub.spark.mirror.log import ReadLog, rows_in
from sfpubsub.spark.mirror.notes import Ask, Merge, Remove, Sweep, note_of
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.settings import Deletes
from sfpubsub.spark.records.bounded import MOST_ENTRIES, entry_row, entry_rows
from sfpubsub.spark.records.fold import Cue, Reason
from sfpubsub.spark.records.follower import RecordTables, asked
from sfpubsub.spark.records.queue import ENTRIES, entry_of
from sfpubsub.spark.records.reads import Entry, Read
from sfpubsub.spark.records.rows import Merging
from sfpubsub.spark.records.step import Step
from sfpubsub.spark.records.table import DELETED, Describe, RecordTable
from sfpubsub.spark.runtime.arrow import frame_of_rows, to_arrow
from sfpubsub.spark.tables.identity import event_name_of

# Minimum number of rows in a merge for which rows of unknown records are inserted separately. For
# fewer rows, a second table change (half a second) costs more than merging them with the others.
_INSERT_FROM = 5000


class MirrorTables:
    """The tables of a mirror, to which the engine's steps are applied. Not thread-safe.

    Implements `sfpubsub.spark.records.step.Follower`.

    Args:
        target: Location of the tables.
        describe: Requests the describe result of an object from the org.
        deletes: What to do with the row of a deleted record.
        wall: Wall clock, in seconds since the epoch.
        safeguards: What stands between an absence and a deleted row.
        history: Whether a new mirror has history tables, with one row per version. An existing one
            keeps those that it has.

    Raises:
        ConfigurationError: The target contains current tables that do not belong to a mirror, or a
            mirror without history tables although they are requested.
    """

    def __init__(
        self,
        target: Target,
        describe: Describe,
        deletes: Deletes,
        wall: Callable[[], float] = time.time,
        safeguards: Safeguards | None = None,
        *,
        history: bool = False,
    ) -> None:
        self.queue: MirrorQueue = MirrorQueue(target, wall)
        if self.queue.exists() and not self.queue.is_of_mirror():
            raise ConfigurationError(
                f"{target.place} contains current tables that do not belong to a mirror: choose "
                f"another target"
            )
        if not self.queue.exists():
            self.queue.make(of_mirror=True, with_history=history)
        with_history = self.queue.has_history()
        if history and not with_history:
            raise ConfigurationError(
                f"the mirror in {target.place} has no history tables, and they can only be built "
                f"from its first step on: choose another target"
            )
        self._target = target
        self._safeguards = safeguards or Safeguards()
        self._records = RecordTables(
            target,
            self.queue,
            with_history=with_history,
            describe=describe,
            removes=deletes == "remove",
            on_note=self._note,
        )
        self._logs: dict[str, ReadLog] = {}
        self.repaired: dict[str, Counter[str]] = {}
        """Number of rows that this process has repaired, by object and `Repair`."""

    @property
    def objects(self) -> Mapping[str, RecordTable]:
        """The mirrored objects, by API name."""
        return self._records.objects

    def add(self, entity: str, newest: Read | None) -> None:
        """Start applying steps to the table of an object.

        Args:
            entity: The object.
            newest: The newest completely merged read of the whole object; None if no read was
                merged completely.
        """
        if newest is not None:
            self._records.newest[entity] = newest
        self._records.add(entity, event_name_of(entity))

    def remove(self, entity: str) -> None:
        """Stop applying steps to the table of an object."""
        self._records.objects.pop(entity, None)
        self._records.newest.pop(entity, None)
        self._logs.pop(entity, None)

    def follow(self, step: Step) -> None:
        """See `sfpubsub.spark.records.step.Follower.follow`."""
        self._records.follow(step)

    def _note(self, step: Step) -> None:
        note = note_of(step.plan.note)
        if isinstance(note, Remove) or note.entity not in self.objects:
            # Or a new process, without the object, repeats the last step.
            self.queue.clear(step.plan.number, note.entity)
        elif isinstance(note, Merge):
            self._merge(note, step)
        elif isinstance(note, Ask):
            self._ask(note, step.plan.number)
        else:
            self._sweep(note, step.plan.number)

    # Reads.

    def _merge(self, note: Merge, step: Step) -> None:
        found, number = self.objects[note.entity], step.plan.number
        if not found.has(number):
            plan = step.decoding(found.event_type) if found.typed.exists() else None
            queued = self.queue.of(note.entity, number)
            about_all = [each for each in map(entry_of, queued) if each.is_about_all]
            merging = found.merging(
                plan,
                read=note.read,
                entries=about_all,
                newest=note.newest,
                by_id=note.kind == "ids",
                counts_repairs=note.kind == "changes" and note.has_events,
                twice=self._safeguards.twice,
                unread=found.columns.unread(note.filled),
            )
            one = [row for row in queued if not entry_of(row).is_about_all]
            make = self._absent if note.is_last else self._returned
            with ExitStack() as cached:
                merged, new = make(note, found, merging, one, plan)
                versions = None
                if merged is not None:
                    cached.callback(merged.persist().unpersist)
                    are_parked = self._queue_cues(note, found, merged, number)
                    versions = found.versions(merged, are_parked=are_parked)
                    merged = found.current(merged, are_parked=are_parked)
                    if isinstance(new, DataFrame) and note.size < _INSERT_FROM and versions is None:
                        merged, new = merged.unionByName(new), None
                found.take(number, merged=merged, new=new, versions=versions)
        self._heal(note, number)

    def _queue_cues(self, note: Merge, found: RecordTable, merged: DataFrame, number: int) -> bool:
        """Add the entries of a merge to the queue.

        Returns:
            Whether the records that count as deleted only by their absence are parked, because they
            are too many. Then they have entries, too.
        """
        of_merge = self._records.found_in({note.entity: merged}, number)
        rows, gone = of_merge.entries, of_merge.gone
        self.repaired.setdefault(note.entity, Counter()).update(of_merge.repairs)
        are_parked = False
        if gone and self._safeguards.limit:
            loss = Loss(number, note.at, len(gone))
            live = found.table.read().where("NOT _is_deleted").count
            losses = self.queue.losses(note.entity)
            are_parked = are_too_many(losses, loss, live, has_events=note.has_events)
            self.queue.keep_loss(note.entity, loss)
        if are_parked:
            cue = Cue(Reason.PARKED, None, None, note.read.as_of.ingest_seq)
            rows += [entry_row(note.entity, each, cue, number, asked=True) for each in gone]
        self.queue.add(rows, number)
        return are_parked

    def _returned(
        self,
        note: Merge,
        found: RecordTable,
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
        # Delta's log may not tell any more that there was a step.
        is_empty = found.table.newest()[0] == 0 and found.table.read().isEmpty()
        is_some = note.kind in ("ids", "changes")
        if not is_empty and (is_some or _may_share(found.table.read(), note.ids)):
            parts.append(found.before(ids))
        if entries:
            parts.append(_among(found.entries(self._frame(entries)), ids))
        if plan is not None and note.applied_seq > note.read.as_of.ingest_seq:
            since = f.col("ingest_seq") > note.read.as_of.ingest_seq
            parts.append(_among(found.changes(found.typed.read().where(since), plan), ids))
        if is_some or any(each.record_id for each in merging.entries):
            return found.merged([*parts, found.found(read)], merging), None
        if (removed := found.removed(ids)) is not None:
            parts.append(removed)
        known = self._record_ids(parts)
        merged = None
        if known is not None:
            rows_of = [part for part in parts if part is not removed]
            merged = found.merged([*rows_of, _among(found.found(read), known[1])], merging)
        new = None
        if pieces is not None:
            rows = chain.from_iterable(map(rows_in, pieces))
            new = found.files(rows, merging, None if known is None else known[0])
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
        found: RecordTable,
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
        gone = found.table.read().where(before).where(f"NOT ({DELETED})")
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
            self._records.newest[note.entity] = note.read
        elif note.kind in ("ids", "changes"):
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
        found = self.objects[note.entity]
        cue = Cue(note.reason, None, None, note.applied_seq)
        ids = (None,) if note.record_ids is None else note.record_ids
        rows = [entry_row(note.entity, each, cue, number, asked=True) for each in ids]
        self.queue.add(rows, number)
        if note.forgets_absences:
            self.queue.forget_absences(note.entity, number)
        if Entry(None, cue).casts_doubt and note.record_ids is None:
            self._records.mark(found, note.reason, number)

    def _sweep(self, note: Sweep, number: int) -> None:
        """Add the records that are only in the table, or only in the org, to the reread queue."""
        found = self.objects[note.entity]
        swept = self.log(note.entity).rows(note.first, note.last).select("record_id")
        live = found.table.read().where("NOT _is_deleted").select("record_id")
        differing = live.join(swept, "record_id", "left_anti").unionAll(
            swept.join(live, "record_id", "left_anti")
        )
        # One more than are kept shows that there are too many.
        ids = differing.distinct().limit(MOST_ENTRIES + 1)
        found_ids = asked(ids.withColumn("since_seq", f.lit(note.applied_seq)), Reason.SWEEP)
        rows = entry_rows(note.entity, found_ids, number, asked=True)
        self.queue.add(rows, number)


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
