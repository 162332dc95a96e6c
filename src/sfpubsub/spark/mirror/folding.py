"""Rows in and rows out of the merge rule, as Arrow data, on an executor.

Needs no Spark. Rows of one record are next to each other: its row of the table, its open entries of
the queue, what a read returned of it, and its changes in order of arrival. Invariant: what comes
out depends on these rows alone, and not on how they are cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.mirror.merging import Mirrored, Outcome, lay, merge_absence, merge_row
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

# What a table says of the newest read that was merged into a row: see `Read`.
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

# What a row is, in the order in which those of one record are taken.
BEFORE, ENTRY, FOUND, ABSENT, CHANGE = range(5)

# What `merge_rows` takes beside a record's id, its fields, `FLAGS` and `READ`.
PARTS = pa.schema(
    [
        ("_part", pa.int32()),
        ("_asked", pa.int64()),  # of an entry
        ("_changed", pa.list_(pa.string())),
        ("_diffs", pa.list_(pa.string())),
    ]
)

# Rows of one batch that is yielded: some hundred KiB of an object with a hundred fields.
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Merging:
    """How rows of one object are merged. Travels to executors."""

    fields: Fields
    types: pa.Schema
    """Of the columns of `fields`."""
    about_all: Sequence[ObjectCue] = ()
    """Of the same step, in order of arrival, when events are laid."""
    read: Read | None = None
    """The read whose rows are merged, without its `Read.until`, which each row has; None when
    events are laid."""
    entries: Sequence[Entry] = ()
    """Open ones about all records, or all with a prefix."""
    newest: Read | None = None
    """The newest read of the whole object that was merged as a whole."""

    @property
    def input(self) -> pa.Schema:
        """What `merge_rows` takes, in any order."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *PARTS])

    @property
    def output(self) -> pa.Schema:
        """What it yields."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *READ, *KIND])


@dataclass
class _Known:
    """All that there is of one record."""

    mirrored: Mirrored | None = None
    entries: list[Entry] = field(default_factory=list)
    row: Row | None = None
    is_absent: bool = False
    read: Read | None = None
    changes: list[Change] = field(default_factory=list)


def merge_rows(rows: Iterable[pa.RecordBatch], merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge what there is of each record.

    Args:
        rows: Of `Merging.input`, sorted by record, `_part` and `_ingest_seq`.
        merging: How.

    Yields:
        Batches of `Merging.output`: of each record that is not as before its new row (`CURRENT`),
        and a row for each entry that the queue gets (`CUE`).
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
    """Return what becomes of a row that a read returned, and that nothing else is known of.

    Its values are nulls, to be replaced by those of the read. None where such a row is left out.
    """
    nothing = Row([None] * len(merging.types))
    known = _Known(row=nothing, read=replace(_read_of(merging), until=until))
    found = list(_merged("", known, merging))
    return next((row for row in found if row[-1] == CURRENT), None)


def struct_of(read: Read | None) -> dict[str, Any] | None:
    """Return a read as a table has it."""
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
    """Return the read that a table has."""
    if found is None or found["ingest_seq"] is None:
        return None
    since = None
    if found["since_timestamp"] is not None:
        since = (found["since_timestamp"], found["since_number"], found["since_sequence"])
    return Read(AsOf(found["ingest_seq"], found["step"]), since, found["until"])


def _read_of(merging: Merging) -> Read:
    if merging.read is None:
        raise AssertionError("rows of a read are merged with what the read is worth")
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
        known.changes.append(change_of(facts, values))
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
            known.row = Row(values, bool(facts["_is_deleted"]))


def _merged(record_id: str, known: _Known, merging: Merging) -> Iterator[tuple[Any, ...]]:
    outcome = _outcome(record_id, known, merging)
    if outcome is None:
        return
    found = outcome.mirrored
    if found is not None and found is not known.mirrored:
        yield (*row_of(record_id, found.record), struct_of(found.read), CURRENT)
    nothing = [None] * len(merging.types)
    for entry in outcome.added:
        yield (*cue_row(record_id, entry.cue, nothing), None, CUE)


def _outcome(record_id: str, known: _Known, merging: Merging) -> Outcome | None:
    """Ask the rule."""
    if merging.read is None:
        marks = [each.cue for each in merging.about_all if record_id.startswith(each.prefix)]
        return lay(merging.fields, record_id, known.mirrored, known.changes, marks, merging.newest)
    about_all = [each for each in merging.entries if each.concerns(record_id)]
    entries = sorted([*known.entries, *about_all], key=lambda each: each.cue.ingest_seq)
    if known.read is None:
        return None  # of the rows that were looked up, one that the read has nothing to do with
    if known.row is None:
        return merge_absence(record_id, known.mirrored, known.read, entries, merging.newest)
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
