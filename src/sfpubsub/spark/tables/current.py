"""Current tables, history tables and the queue of what is to be read again, step by step.

The changes of a step are folded over the rows of the records that they are about (records.py,
folding.py), and what comes out is merged. Decides nothing about events. The order of the commits of
one step is what makes it repeatable after a crash: the queue before everything else, so that no
row is ever marked without its cue; then each object's history; and its current table last, because
the others are computed from what it held before. Invariant: a table that has a step's number holds
what all steps up to it say, and nothing else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.avro.columns import Plan, paths_of
from sfpubsub.spark.raw.frames import spark_schema
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
from sfpubsub.spark.tables.records import Cue, Fields, ObjectCue, Reason
from sfpubsub.spark.tables.target import Target, TargetTable, parquet_of

_log = logging.getLogger("sfpubsub.spark")

QUEUE_NAME = "_reread"
HISTORY_SUFFIX = "_history"

QUEUE = pa.schema(
    [
        ("entity_name", pa.string()),
        ("record_id", pa.string()),  # null, or a prefix and an asterisk, for records of an object
        ("reason", pa.string()),
        ("change_type", pa.string()),
        ("commit_timestamp", TIME),
        ("since_seq", pa.int64()),  # of the event: a read of what was so after it is recent enough
        ("step", pa.int64()),
    ]
)

_RECORD_ID = pa.schema([("record_id", pa.string())])

# What the queue's table keeps of moves of the org: when commit numbers have started anew.
_EPOCHS = "number_epochs"

# Columns of a typed table that the fold takes as they are, without what stands before them there.
_TAKEN = ("_change_type", "_commit_timestamp", "_commit_number", "_sequence_number", "_ingest_seq")

# A change event's name without this is its object's, but for a custom object's suffix.
_EVENT = "ChangeEvent"


def entity_of(event_type: str) -> str | None:
    """Return the object that a change event type is about; None for other events."""
    if not event_type.endswith(_EVENT):
        return None
    name = event_type.removesuffix(_EVENT)
    return f"{name}c" if name.endswith("__") else name


@dataclass(frozen=True)
class TypedRows:
    """The rows of one step in the typed table of one change event type."""

    event_type: str
    plan: Plan
    rows: DataFrame
    """A frame of `Target.spark` that yields the same rows whenever it is evaluated."""


class RecordTables:
    """The current tables of one target, with the queue and, if asked for, the history tables.

    Args:
        target: Where they are.
        with_history: Whether there are history tables.

    Raises:
        ConfigurationError: The target's format cannot replace rows.
    """

    def __init__(self, target: Target, *, with_history: bool) -> None:
        target.check_merge("current and history tables")
        self._target = target
        self._with_history = with_history

    def take(self, types: Iterable[TypedRows], step: int) -> None:
        """Take the changes of one step. Can die and begin again with the same rows.

        Args:
            types: Those that have rows in the step; other than change events are left out.
            step: Its number.

        Raises:
            WriteError: Not all tables have the step.
        """
        objects = [_Object(self._target, found, self._with_history) for found in types]
        objects = [each for each in objects if each.current.step() < step]
        with ExitStack() as cached:
            for each in objects:
                each.prepare()
            for each, cues in zip(objects, _about_all(objects), strict=True):
                cached.callback(each.fold(cues).unpersist)
            self._queue(objects, step)
            for each in objects:
                each.merge(step)

    def _queue(self, objects: Sequence[_Object], step: int) -> None:
        queue = self._target.table(QUEUE_NAME)
        queue.make(QUEUE)
        if queue.step() >= step or not objects:
            return
        cues, moves = _cues(objects, step)
        epochs = json.loads(queue.facts().get(_EPOCHS, "[]"))
        known = _with_moves(epochs, moves)
        if known != epochs:
            queue.make(QUEUE, {**queue.facts(), _EPOCHS: json.dumps(known)})
        # Without cues, none of the objects that may come again after a crash has any either.
        if len(cues):
            queue.append([parquet_of(cues)], step)


class _Object:
    """What one step does to the tables of one object."""

    def __init__(self, target: Target, typed: TypedRows, with_history: bool) -> None:
        entity = entity_of(typed.event_type)
        if entity is None:
            raise AssertionError(f"{typed.event_type} is not a change event")
        self.entity = entity
        self.rows = typed.rows
        self.current = target.table(entity)
        self._history = target.table(f"{entity}{HISTORY_SUFFIX}") if with_history else None
        paths = [paths_of(text, typed.plan.columns) for text in typed.plan.schemas.values()]
        names = {place[0] for found in paths for place in found.values()}
        self._types = pa.schema([each for each in typed.plan.columns if each.name in names])
        self._fields = Fields.of(self._types.names, paths)
        self.folded: DataFrame
        self.about_all: Sequence[ObjectCue] = ()

    def prepare(self) -> None:
        """Give the tables the columns that they lack."""
        columns = [*_RECORD_ID, *self._types, *FLAGS]
        self.current.make(pa.schema(columns), merged=True)
        if self._history is not None:
            self._history.make(pa.schema([*columns, *VALIDITY]), merged=True)

    def fold(self, about_all: Sequence[ObjectCue]) -> DataFrame:
        """Fold the changes. What comes out is computed once, and kept until it is merged."""
        self.about_all = about_all
        with_versions = self._history is not None
        folding = Folding(self._fields, self._types, about_all, with_versions)
        rows = self._changes().unionByName(self._before()).repartition("record_id")
        rows = rows.sortWithinPartitions("record_id", "_is_change", "_ingest_seq")
        folded = rows.select(folding.input.names).mapInArrow(
            partial(_fold_rows, folding=folding), spark_schema(folding.output)
        )
        self.folded = folded.persist()
        return self.folded

    def merge(self, step: int) -> None:
        """Merge what came out, into the current table last."""
        if self._history is not None:
            versions = self.folded.where(f.col("_kind") == VERSION).drop("_kind")
            self._history.merge(versions, ["record_id", "_ingest_seq"], step, replaced=["valid_to"])
        rows = self.folded.where(f.col("_kind") == CURRENT).drop("_kind", *VALIDITY.names)
        if self.about_all:
            rows = rows.unionByName(self._marked())
        self.current.merge(rows, ["record_id"], step)

    def _changes(self) -> DataFrame:
        """Return a row for each change of each record, in the form that is folded."""
        one = self.rows.where(f.col("change_type") != "GAP_OVERFLOW")
        one = one.select("*", f.explode("record_ids").alias("record_id"))
        nothing = [
            f.lit(None).cast(field.dataType).alias(field.name)
            for field in spark_schema(FLAGS)
            if field.name not in _TAKEN
        ]
        changed = f.concat("changed_fields", "nulled_fields").alias("_changed")
        return one.where(~f.endswith("record_id", f.lit("*"))).select(
            "record_id",
            *map(_quoted, self._types.names),
            *(f.col(name.removeprefix("_")).alias(name) for name in _TAKEN),
            *nothing,
            f.lit(True).alias("_is_change"),
            changed,
            f.col("diff_fields").alias("_diffs"),
        )

    def _before(self) -> DataFrame:
        """Return the rows of the records that the changes are about, in the same form."""
        nothing = [
            f.lit(None).cast(field.dataType).alias(field.name) for field in spark_schema(CHANGES)
        ]
        names = [*_RECORD_ID.names, *self._types.names, *FLAGS.names]
        rows = self._current_rows("left_semi").select(*map(_quoted, names), *nothing)
        return rows.withColumn("_is_change", f.lit(False))

    def _marked(self) -> DataFrame:
        """Return the rows of all other records that the step has made doubtful.

        One that is marked stays as it is. Each of these has to be read again, and so written again;
        a reader that leaves out what is marked must not miss them until then.
        """
        rows = self._current_rows("left_anti").where(~f.col("_reread"))
        reason = f.coalesce(
            *(
                f.when(f.startswith("record_id", f.lit(each.prefix)), f.lit(str(each.cue.reason)))
                for each in self.about_all
            )
        )
        rows = rows.withColumn("_reread_reason", reason).where("_reread_reason IS NOT NULL")
        names = [*_RECORD_ID.names, *self._types.names, *FLAGS.names]
        return rows.withColumn("_reread", f.lit(True)).select(*map(_quoted, names))

    def _current_rows(self, how: str) -> DataFrame:
        ids = self.rows.where(f.col("change_type") != "GAP_OVERFLOW")
        ids = ids.select(f.explode("record_ids").alias("record_id")).distinct()
        return self.current.read().join(f.broadcast(ids), "record_id", how)


def _fold_rows(batches: Iterator[pa.RecordBatch], folding: Folding) -> Iterator[pa.RecordBatch]:
    return fold_rows(batches, folding)


def _quoted(name: str) -> Column:
    return f.col(f"`{name}`")


def _about_all(objects: Sequence[_Object]) -> list[list[ObjectCue]]:
    """Return what the step says of all records of each object. One job for all of them."""
    found: list[list[ObjectCue]] = [[] for _ in objects]
    if not objects:
        return found
    ids = f.col("record_ids")
    overflow = f.col("change_type") == "GAP_OVERFLOW"
    wild = overflow | (f.size(ids) == 0) | f.exists(ids, lambda each: each.endswith("*"))
    columns = ("record_ids", "change_type", "commit_timestamp", "ingest_seq")
    frames = [
        each.rows.where(wild).select(f.lit(number).alias("object"), *columns)
        for number, each in enumerate(objects)
    ]
    for row in reduce(DataFrame.unionAll, frames).orderBy("ingest_seq").collect():
        cue = Cue(Reason.GAP, row.change_type, row.commit_timestamp, row.ingest_seq)
        about = [ObjectCue.of(each, cue) for each in row.record_ids or [None]]
        wanted = [each for each in about if each is not None]
        # An overflow is about all records, whichever it names.
        found[row.object] += wanted[:1] if row.change_type == "GAP_OVERFLOW" else wanted
    return found


def _cues(objects: Sequence[_Object], step: int) -> tuple[pa.Table, list[tuple[int, int]]]:
    """Return the queue's rows of a step, and where commit numbers have started anew.

    Computes what is folded, of all objects in one job.
    """
    columns = ("record_id", *_CUE_COLUMNS, "_kind", *VALIDITY.names)
    wanted = f.col("_kind").isin(CUE, RENUMBERED)
    frames = [
        each.folded.where(wanted).select(f.lit(each.entity).alias("entity_name"), *columns)
        for each in objects
    ]
    rows: list[Mapping[str, Any]] = []
    moves = []
    for found in reduce(DataFrame.unionAll, frames).toArrow().to_pylist():
        if found["_kind"] == RENUMBERED:
            span = (found["valid_from"], found["valid_to"])
            moves.append((_milliseconds(span[0]), _milliseconds(span[1])))
            continue
        named = {new: found[old] for old, new in _CUE_COLUMNS.items()}
        rows.append({**found, **named, "step": step})
    for each in objects:
        rows += [_object_cue(each.entity, about, step) for about in each.about_all]
    rows.sort(key=lambda row: (row["since_seq"], row["record_id"] or ""))
    return pa.Table.from_pylist(rows, QUEUE), moves


# Where a cue is in the columns of `Folding.output`, and in those of the queue.
_CUE_COLUMNS = {
    "_reread_reason": "reason",
    "_change_type": "change_type",
    "_commit_timestamp": "commit_timestamp",
    "_ingest_seq": "since_seq",
}


def _object_cue(entity: str, about: ObjectCue, step: int) -> dict[str, Any]:
    return {
        "entity_name": entity,
        "record_id": f"{about.prefix}*" if about.prefix else None,
        "reason": about.cue.reason,
        "change_type": about.cue.change_type,
        "commit_timestamp": about.cue.commit_timestamp,
        "since_seq": about.cue.ingest_seq,
        "step": step,
    }


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _with_moves(epochs: Sequence[int], moves: Iterable[tuple[int, int]]) -> list[int]:
    """Return the known beginnings of numbers with those that *moves* tell of, and say the new ones.

    Args:
        epochs: Commit timestamps in milliseconds.
        moves: Of records whose numbers went down: the commits before and after.
    """
    known = list(epochs)
    for before, after in sorted(moves, key=lambda move: move[1]):
        if not any(before < epoch <= after for epoch in known):
            known.append(after)
            _log.warning(
                "commit numbers start anew at commit timestamp %d: the org was moved to another "
                "instance; changes are ordered by time, and nothing is to be done",
                after,
            )
    return known


__all__ = ["QUEUE", "QUEUE_NAME", "RecordTables", "TargetTable", "TypedRows", "entity_of"]
