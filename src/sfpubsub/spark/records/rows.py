"""Apply the merge rule (merging.py) to the changes of many records, as Arrow data on an executor.

This module does not need Spark. The rows of one record are adjacent: its row in the table, its open
entries in the reread queue, the result of a read, and its changes in order of arrival. Invariant:
the output depends only on these rows, and on the cues and entries that concern many records, not
on how the rows are split into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.records.fold import Change, Cue, Fields, ObjectCue, Reason, Record
from sfpubsub.spark.records.merging import (
    Mirrored,
    Outcome,
    apply_changes,
    merge_absence,
    merge_row,
)
from sfpubsub.spark.records.reads import AsOf, Entry, Read, Row

# Columns of a current table in addition to the record's id and fields, and to `READ`.
FLAGS = pa.schema(
    [
        ("_is_deleted", pa.bool_()),
        ("_complete", pa.bool_()),
        ("_reread", pa.bool_()),
        ("_reread_reason", pa.string()),
        ("_commit_timestamp", TIME),
        ("_commit_number", pa.int64()),
        ("_sequence_number", pa.int64()),
        ("_ingest_seq", pa.int64()),
        ("_change_type", pa.string()),
    ]
)

# How a table stores the newest read merged into a row: see `Read`.
READ_TYPE = pa.struct(
    [
        ("ingest_seq", pa.int64()),
        ("step", pa.int64()),
        ("since_timestamp", TIME),
        ("since_number", pa.int64()),
        ("since_sequence", pa.int64()),
        ("until", TIME),
    ]
)
# `Mirrored.stamp` and `Mirrored.derived_at` of the row that it returned.
READ = pa.schema([("_read", READ_TYPE), ("_stamp", TIME), ("_derived_at", TIME)])

# Further columns of a history table: when a version was valid, and whether a read has found it,
# which no event tells.
VALIDITY = pa.schema([("valid_from", TIME), ("valid_to", TIME), ("from_read", pa.bool_())])

# Additional output column of `merge_rows`: the purpose of a row.
KIND = pa.schema([("_kind", pa.string())])

# `CURRENT`: the new state of a record, or `GONE`, if it counts as deleted only by its absence.
# `CUE`: a new reason to reread the record, in ``_reread_reason``. `RENUMBERED`: the times of the
# record's commits before and after a restart of the commit numbers, in the columns of `VALIDITY`.
# `REPAIRED`: the record was repaired; how (`Repair`), in ``_reread_reason``.
CURRENT, GONE, CUE, RENUMBERED, REPAIRED = "current", "gone", "cue", "renumbered", "repaired"

# With a history table, `CLOSED`: when the record's last version ended, in ``valid_to``; `VERSION`:
# a version that follows it. The other two are the same for a record of kind `GONE`.
CLOSED, VERSION, GONE_CLOSED, GONE_VERSION = "closed", "version", "gone closed", "gone version"

# Kinds of input rows, in the order in which those of one record are processed.
BEFORE, ENTRY, FOUND, ABSENT, CHANGE = range(5)

# Input columns of `merge_rows` in addition to the record's id, its fields, `FLAGS` and `READ`.
PARTS = pa.schema(
    [
        ("_part", pa.int32()),
        ("_asked", pa.int64()),  # only in rows of kind ENTRY
        ("_changed", pa.list_(pa.string())),
        ("_diffs", pa.list_(pa.string())),
        ("_unfit", pa.bool_()),  # in rows of kinds CHANGE and FOUND
    ]
)

# Rows per output batch: a few hundred KiB for an object with a hundred fields.
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Merging:
    """Parameters for merging the rows of one object. Sent to executors."""

    fields: Fields
    types: pa.Schema
    """Types of the columns of `fields`."""
    about_all: Sequence[ObjectCue] = ()
    """When events are applied: the step's reasons to reread many records, in order of arrival."""
    read: Read | None = None
    """The read whose rows are merged, without `Read.until`, which each row contains; None when
    events are applied.
    """
    entries: Sequence[Entry] = ()
    """Open queue entries that concern all records, or all records with an id prefix."""
    newest: Read | None = None
    """The newest read of the whole object that was merged completely; None before the first."""
    unread: tuple[int, ...] = ()
    """Indexes of the columns that the read did not select; see `Columns.unread`."""
    counts_repairs: bool = False
    """Whether rows that `read` repairs are counted. Others are only if an event that undid a change
    without an event has led to the read.
    """
    by_id: bool = False
    """Whether `read` requested its records by id."""
    twice: bool = True
    """See `merge_absence`."""
    with_versions: bool = False
    """Whether there is a history table."""
    removes: bool = False
    """Whether the rows of deleted records are removed. Then a record without a row may have had
    versions before.
    """

    @property
    def input(self) -> pa.Schema:
        """Input schema of `merge_rows`; columns may be in any order."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *PARTS])

    @property
    def output(self) -> pa.Schema:
        """Output schema of `merge_rows`."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *VALIDITY, *KIND])


@dataclass
class _Known:
    """What the input rows of `merge_rows` contain about one record."""

    mirrored: Mirrored | None = None
    entries: list[Entry] = field(default_factory=list)
    row: Row | None = None
    read: Read | None = None
    changes: list[Change] = field(default_factory=list)


def merge_rows(rows: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge the rows of each record.

    Args:
        rows: Batches with the schema `Merging.input`, sorted by record, `_part` and `_ingest_seq`.
        merging: The parameters.

    Yields:
        Batches with the schema `Merging.output`: the new row of each changed record, and further
        rows about it, each with its purpose in ``_kind``: see `CURRENT` and `CLOSED`.
    """
    made: list[tuple[Any, ...]] = []
    for record_id, known in _by_record(rows, merging):
        made += _merged(record_id, known, merging)
        if len(made) >= _BATCH_ROWS:
            yield _batch_of(made, merging.output)
            made = []
    if made:
        yield _batch_of(made, merging.output)


def row_without(merging: Merging, *, until: Any = None) -> tuple[Any, ...] | None:
    """Return the merge result for the row of a record that is known only from a read.

    All values in the result are null; the caller replaces them with the values that were read. If
    the read is outdated (`merging.is_outdated`), the result is None, and the caller must skip the
    row.
    """
    nothing = Row([None] * len(merging.types))
    known = _Known(row=nothing, read=replace(_read_of(merging), until=until))
    found = list(_merged("", known, merging))
    return next((row for row in found if row[-1] == CURRENT), None)


def rows_without(rows: pa.Table, merging: Merging) -> pa.Table | None:
    """Return the new rows of an object's table for records that are known only from a read.

    Args:
        rows: Rows of the read log.
        merging: The parameters.

    Returns:
        A table with the columns of the object's table. Columns and struct fields that *rows* lacks
        are null. The result is None if another column or struct field does not have the same type
        in *rows* as in the object's table.
    """
    made = row_without(merging)
    if made is None:  # the read is outdated: skip its rows
        made, rows = (None,) * len(merging.output), rows.slice(0, 0)
    said = dict(zip(merging.output.names, made, strict=True))
    types = pa.schema([("record_id", pa.string()), *merging.types])
    columns: dict[str, Any] = {}
    for wanted in types:
        column = _as_type(rows, wanted)
        if column is None:
            return None
        columns[wanted.name] = column
    for flag in FLAGS:
        columns[flag.name] = pa.repeat(pa.scalar(said[flag.name], flag.type), len(rows))
    columns["_is_deleted"] = rows["_is_deleted"]
    columns["_complete"] = pc.and_(columns["_complete"], pc.invert(rows["_unfit"]))
    read = said["_read"] or dict.fromkeys(READ_TYPE.names)
    parts = [pa.repeat(pa.scalar(read[part.name], part.type), len(rows)) for part in READ_TYPE]
    parts[READ_TYPE.get_field_index("until")] = rows["_until"].combine_chunks()
    columns["_read"] = pa.StructArray.from_arrays(parts, fields=list(READ_TYPE))
    columns |= {name: rows[name] for name in ("_stamp", "_derived_at")}
    return pa.table(columns, schema=pa.schema([*types, *FLAGS, *READ]))


def as_versions(rows: pa.Table) -> pa.Table:
    """Return the versions of records that are known only from a read, from `rows_without`."""
    columns = [
        rows["_commit_timestamp"],
        pa.nulls(len(rows), TIME),
        pa.repeat(pa.scalar(True), len(rows)),
    ]
    for name, column in zip(VALIDITY.names, columns, strict=True):
        rows = rows.append_column(name, column)
    return rows


def _as_type(rows: pa.Table, wanted: pa.Field) -> pa.Array | None:
    if wanted.name not in rows.column_names:
        return pa.nulls(len(rows), wanted.type)
    column = rows[wanted.name].combine_chunks()
    if column.type == wanted.type:
        return column
    if not (pa.types.is_struct(column.type) and pa.types.is_struct(wanted.type)):
        return None
    there = {part.name: part.type for part in column.type}
    if any(there.get(part.name, part.type) != part.type for part in wanted.type):
        return None
    members = [
        column.field(part.name) if part.name in there else pa.nulls(len(column), part.type)
        for part in wanted.type
    ]
    return pa.StructArray.from_arrays(members, fields=list(wanted.type), mask=column.is_null())


def struct_of(read: Read | None) -> dict[str, Any] | None:
    """Convert *read* to the struct that a table stores (`READ_TYPE`); None if *read* is None."""
    if read is None:
        return None
    timestamp, number, sequence = read.since or (None, None, None)
    return {
        "ingest_seq": read.as_of.ingest_seq,
        "step": read.as_of.asked,
        "since_timestamp": timestamp,
        "since_number": number,
        "since_sequence": sequence,
        "until": read.until,
    }


def read_from(found: Mapping[str, Any] | None) -> Read | None:
    """Convert a table's `READ_TYPE` struct to a `Read`; None if it is null or contains no read."""
    if found is None or found["ingest_seq"] is None:
        return None
    since = None
    if found["since_timestamp"] is not None:
        since = (found["since_timestamp"], found["since_number"], found["since_sequence"])
    return Read(AsOf(found["ingest_seq"], found["step"]), since, found["until"])


def _read_of(merging: Merging) -> Read:
    if merging.read is None:
        raise AssertionError("bug in sfpubsub: rows of a read, but no Merging.read")
    return merging.read


def _by_record(rows: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[tuple[str, _Known]]:
    record_id: str | None = None
    known = _Known()
    for batch in rows:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        values = list(zip(*(columns[name] for name in merging.types.names), strict=True))
        for number, found_id in enumerate(columns["record_id"]):
            if found_id != record_id:
                if record_id is not None:
                    yield record_id, known
                record_id, known = found_id, _Known()
            facts = {name: columns[name][number] for name in _FACTS}
            _take(known, found_id, facts, values[number] if values else (), merging)
    if record_id is not None:
        yield record_id, known


_FACTS = (*FLAGS.names, *READ.names, *PARTS.names)


def _take(
    known: _Known, record_id: str, facts: Mapping[str, Any], values: Sequence[Any], merging: Merging
) -> None:
    part = facts["_part"]
    if part == CHANGE:
        known.changes.append(_change_of(facts, values))
    elif part == BEFORE:
        read = read_from(facts["_read"])
        known.mirrored = Mirrored(
            _record_of(facts, values), read, facts["_stamp"], facts["_derived_at"]
        )
    elif part == ENTRY:
        cue = Cue(
            Reason(facts["_reread_reason"]),
            facts["_change_type"],
            facts["_commit_timestamp"],
            facts["_ingest_seq"],
        )
        known.entries.append(Entry(record_id, cue, facts["_asked"] or 0))
    else:
        until = (facts["_read"] or {}).get("until")
        known.read = replace(_read_of(merging), until=until)
        if part == FOUND:
            is_deleted, unfit = bool(facts["_is_deleted"]), bool(facts["_unfit"])
            stamp, derived_at = facts["_stamp"], facts["_derived_at"]
            row = Row(values, is_deleted, merging.unread, unfit, stamp, derived_at)
            # A record that changes during a read of changed records can be on two of its pages.
            if (
                known.row is None
                or known.row.stamp is None
                or row.stamp is None
                or row.stamp >= known.row.stamp
            ):
                known.row = row


def _merged(record_id: str, known: _Known, merging: Merging) -> Iterator[tuple[Any, ...]]:
    outcome = _outcome(record_id, known, merging)
    if outcome is None:
        return
    found = outcome.mirrored
    if merging.removes and known.read and not known.mirrored and found and found.record.is_deleted:
        return  # its row was removed, and its last version says so
    if found is not None and found is not known.mirrored:
        kind = GONE if outcome.by_absence else CURRENT
        yield (*_row_of(record_id, found), None, None, None, kind)
    nothing = [None] * len(merging.types)
    for entry in outcome.added:
        cue = entry.cue
        order = (cue.commit_timestamp, None, None, cue.ingest_seq)
        flags = (None, None, None, cue.reason, *order, cue.change_type)
        yield (record_id, *nothing, *flags, *_NO_READ, None, None, None, CUE)
    nulls = (record_id, *nothing, *_NO_FLAGS, *_NO_READ)
    if outcome.repair is not None and (merging.counts_repairs or _is_untold(known)):
        told = (None, None, None, outcome.repair, *_NO_FLAGS[4:])
        yield (record_id, *nothing, *told, *_NO_READ, None, None, None, REPAIRED)
    for span in outcome.renumbered:
        yield (*nulls, *span, None, RENUMBERED)
    if merging.with_versions and outcome.versions:
        closed, version = CLOSED, VERSION
        if outcome.by_absence:
            closed, version = GONE_CLOSED, GONE_VERSION
        starts = [start_of(each, outcome, known.mirrored, known.read) for each in outcome.versions]
        if known.mirrored is not None or merging.removes:
            yield (*nulls, None, starts[0], None, closed)
        ends = [*starts[1:], None]
        for record, start, end in zip(outcome.versions, starts, ends, strict=True):
            row = _row_of(record_id, replace(found or Mirrored(record), record=record))
            yield (*row, start, end, known.read is not None, version)


def _is_untold(known: _Known) -> bool:
    return known.mirrored is not None and known.mirrored.record.reread_reason is Reason.UNTOLD


_NO_FLAGS = (None,) * len(FLAGS)
_NO_READ = (None,) * len(READ)


def start_of(
    version: Record, outcome: Outcome, before: Mirrored | None, read: Read | None
) -> datetime | None:
    """Return the time from which a version is valid; None if it is not known.

    It is the time of the newest commit, or the stamp of the newest row that a read returned,
    whichever is later. If neither tells, because the object had no event yet and the stamp has not
    moved, it is the time of the response. That of the first version is not known without an event.

    Args:
        version: One of `Outcome.versions`.
        outcome: The result of a merge.
        before: The state known so far.
        read: The read that was merged; None if events were applied.
    """
    if before is None:
        return version.commit_timestamp
    stamp = None if outcome.mirrored is None else outcome.mirrored.stamp
    times = [each for each in (version.commit_timestamp, stamp) if each is not None]
    has_moved = stamp is not None and (before.stamp is None or before.stamp < stamp)
    if read is not None and version.commit_timestamp is None and not has_moved:
        return read.until
    return max(times, default=None)


def _row_of(record_id: str, mirrored: Mirrored) -> tuple[Any, ...]:
    record = mirrored.record
    return (
        record_id,
        *record.values,
        record.is_deleted,
        record.is_complete,
        record.reread_reason is not None,
        record.reread_reason,
        record.commit_timestamp,
        record.commit_number,
        record.sequence_number,
        record.ingest_seq,
        record.change_type,
        struct_of(mirrored.read),
        mirrored.stamp,
        mirrored.derived_at,
    )


def _change_of(row: Mapping[str, Any], values: Sequence[Any]) -> Change:
    return Change(
        row["_change_type"],
        row["_commit_timestamp"],
        row["_commit_number"],
        row["_sequence_number"],
        row["_ingest_seq"],
        values,
        row["_changed"] or (),
        row["_diffs"] or (),
        bool(row["_unfit"]),
    )


def _record_of(row: Mapping[str, Any], values: Sequence[Any]) -> Record:
    reason = row["_reread_reason"]
    return Record(
        values,
        row["_is_deleted"],
        row["_complete"],
        None if reason is None else Reason(reason),
        row["_commit_timestamp"],
        row["_commit_number"],
        row["_sequence_number"],
        row["_ingest_seq"],
        row["_change_type"],
    )


def _batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(found, kind) for found, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _outcome(record_id: str, known: _Known, merging: Merging) -> Outcome | None:
    """Apply the merge rule to one record. Return None if the read does not cover the record."""
    if merging.read is None:
        marks = [each.cue for each in merging.about_all if record_id.startswith(each.prefix)]
        return apply_changes(
            merging.fields, record_id, known.mirrored, known.changes, marks, merging.newest
        )
    about_all = [each for each in merging.entries if each.concerns(record_id)]
    entries = sorted([*known.entries, *about_all], key=lambda each: each.cue.ingest_seq)
    if known.read is None:
        return None  # this row was looked up, but the read does not cover it
    if known.row is None:
        return merge_absence(
            record_id,
            known.mirrored,
            known.read,
            entries,
            merging.newest,
            by_id=merging.by_id,
            twice=merging.twice,
        )
    return merge_row(
        merging.fields,
        record_id,
        known.mirrored,
        known.read,
        known.row,
        known.changes,
        entries,
        merging.newest,
    )
