"""Apply the merge rule (merging.py) to Arrow batches on an executor.

This module does not need Spark. The rows of one record are adjacent: its row in the table, its open
entries in the reread queue, the result of a read, and its changes in order of arrival. Invariant:
the output depends only on these rows, not on how they are split into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.mirror.merging import Mirrored, Outcome, apply_changes, merge_absence, merge_row
from sfpubsub.spark.mirror.reads import AsOf, Entry, Read, Row
from sfpubsub.spark.tables.folding import (
    CUE,
    CURRENT,
    FLAGS,
    KIND,
    batch_of,
    change_of,
    cue_row,
    record_of,
    row_of,
)
from sfpubsub.spark.tables.records import Change, Cue, Fields, ObjectCue, Reason

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
READ = pa.schema([("_read", READ_TYPE)])

# Kind of an output row: the new state of a record that counts as deleted only by its absence.
GONE = "gone"

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
    by_id: bool = False
    """Whether `read` requested its records by id."""
    twice: bool = True
    """See `merge_absence`."""

    @property
    def input(self) -> pa.Schema:
        """Input schema of `merge_rows`; columns may be in any order."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *PARTS])

    @property
    def output(self) -> pa.Schema:
        """Output schema of `merge_rows`."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *KIND])


@dataclass
class _Known:
    """What the input rows of `merge_rows` contain about one record."""

    mirrored: Mirrored | None = None
    entries: list[Entry] = field(default_factory=list)
    row: Row | None = None
    is_absent: bool = False
    read: Read | None = None
    changes: list[Change] = field(default_factory=list)


def merge_rows(rows: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge the rows of each record.

    Args:
        rows: Batches with the schema `Merging.input`, sorted by record, `_part` and `_ingest_seq`.
        merging: The parameters.

    Yields:
        Batches with the schema `Merging.output`: the new row of each changed record (`CURRENT`, or
        `GONE` for a deletion by absence), and one row for each new queue entry (`CUE`).
    """
    made: list[tuple[Any, ...]] = []
    for record_id, known in _by_record(rows, merging):
        made += _merged(record_id, known, merging)
        if len(made) >= _BATCH_ROWS:
            yield batch_of(made, merging.output)
            made = []
    if made:
        yield batch_of(made, merging.output)


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
    return pa.table(columns, schema=pa.schema([*types, *FLAGS, *READ]))


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
        change = change_of(facts, values)
        known.changes.append(replace(change, unfit=True) if facts["_unfit"] else change)
    elif part == BEFORE:
        known.mirrored = Mirrored(record_of(facts, values), read_from(facts["_read"]))
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
        known.is_absent = part == ABSENT
        if part == FOUND:
            is_deleted, unfit = bool(facts["_is_deleted"]), bool(facts["_unfit"])
            known.row = Row(values, is_deleted, merging.unread, unfit)


def _merged(record_id: str, known: _Known, merging: Merging) -> Iterator[tuple[Any, ...]]:
    outcome = _outcome(record_id, known, merging)
    if outcome is None:
        return
    found = outcome.mirrored
    if found is not None and found is not known.mirrored:
        kind = GONE if outcome.by_absence else CURRENT
        yield (*row_of(record_id, found.record), struct_of(found.read), kind)
    nothing = [None] * len(merging.types)
    for entry in outcome.added:
        yield (*cue_row(record_id, entry.cue, nothing), None, CUE)


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
