"""Apply `records.Fold` to the changes of many records, as Arrow data on an executor.

This module does not need Spark. The rows of a record are adjacent: its row of the current table, if
it has one, and then its changes in order of arrival. Invariant: the result depends only on these
rows and on the cues (`records.Cue`) that concern all records, not on how the rows are split into
batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sfpubsub.avro.arrow_types import TIME
from sfpubsub.spark.tables.records import Change, Cue, Fields, Fold, ObjectCue, Reason, Record

# Columns of a current table in addition to the record's fields.
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

# Additional columns of a history table.
VALIDITY = pa.schema([("valid_from", TIME), ("valid_to", TIME)])

# Input columns of `fold_rows` in addition to the record's id, its fields and `FLAGS`.
CHANGES = pa.schema(
    [
        ("_is_change", pa.bool_()),  # otherwise it is a row of the current table
        ("_changed", pa.list_(pa.string())),
        ("_diffs", pa.list_(pa.string())),
    ]
)

# Additional output column: the purpose of a row.
KIND = pa.schema([("_kind", pa.string())])

CURRENT, VERSION, CUE, RENUMBERED = "current", "version", "cue", "renumbered"

# Rows per output batch: a few hundred KiB for an object with a hundred fields.
_BATCH_ROWS = 1000


@dataclass(frozen=True)
class Folding:
    """Parameters for applying the changes of one object's records. Sent to executors."""

    fields: Fields
    types: pa.Schema
    """Types of the columns of `fields`."""
    about_all: Sequence[ObjectCue]
    """Cues of the step that concern all records, in order of arrival."""
    with_versions: bool
    """Whether there is a history table."""

    @property
    def input(self) -> pa.Schema:
        """Input columns of `fold_rows`, in any order."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *CHANGES])

    @property
    def output(self) -> pa.Schema:
        """Output columns of `fold_rows`."""
        return pa.schema([("record_id", pa.string()), *self.types, *FLAGS, *VALIDITY, *KIND])


def fold_rows(rows: Iterable[pa.RecordBatch], folding: Folding) -> Iterator[pa.RecordBatch]:
    """Apply the changes of each record to its row.

    Args:
        rows: Batches of `Folding.input`, sorted by record, `_is_change` and `_ingest_seq`.
        folding: The parameters.

    Yields:
        Batches of `Folding.output`. For each record, they contain rows of these kinds:

        - `CURRENT`: its new state.
        - `CUE`: each new reason to reread it, in ``_reread_reason``.
        - `VERSION`, with a history table: its previous version, now with ``valid_to``, and the
          version after each applied change.
        - `RENUMBERED`: for each restart of the commit numbers, the times of the record's commits
          before and after it, in the columns of `VALIDITY`.
    """
    made: list[tuple[Any, ...]] = []
    for record_id, before, changes in _by_record(rows, folding.fields.columns):
        made += _folded(record_id, before, changes, folding)
        if len(made) >= _BATCH_ROWS:
            yield batch_of(made, folding.output)
            made = []
    if made:
        yield batch_of(made, folding.output)


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(found, kind) for found, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _by_record(
    rows: Iterable[pa.RecordBatch], fields: Sequence[str]
) -> Iterator[tuple[str, Record | None, list[Change]]]:
    record_id: str | None = None
    before: Record | None = None
    changes: list[Change] = []
    for batch in rows:
        for found_id, row in _rows(batch, fields):
            if found_id != record_id:
                if record_id is not None:
                    yield record_id, before, changes
                record_id, before, changes = found_id, None, []
            if isinstance(row, Record):
                before = row
            else:
                changes.append(row)
    if record_id is not None:
        yield record_id, before, changes


def _rows(batch: pa.RecordBatch, fields: Sequence[str]) -> Iterator[tuple[str, Record | Change]]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    values = zip(*(columns[name] for name in fields), strict=True)
    for number, (record_id, found) in enumerate(zip(columns["record_id"], values, strict=True)):
        row = {name: columns[name][number] for name in (*FLAGS.names, *CHANGES.names)}
        yield record_id, change_of(row, found) if row["_is_change"] else record_of(row, found)


def change_of(row: Mapping[str, Any], values: Sequence[Any]) -> Change:
    return Change(
        row["_change_type"],
        row["_commit_timestamp"],
        row["_commit_number"],
        row["_sequence_number"],
        row["_ingest_seq"],
        values,
        row["_changed"] or (),
        row["_diffs"] or (),
    )


def record_of(row: Mapping[str, Any], values: Sequence[Any]) -> Record:
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


def _folded(
    record_id: str, before: Record | None, changes: Sequence[Change], folding: Folding
) -> Iterator[tuple[Any, ...]]:
    fold = Fold(folding.fields, before)
    cues = [each.cue for each in folding.about_all if record_id.startswith(each.prefix)]
    place = 0
    for change in changes:
        while place < len(cues) and cues[place].ingest_seq < change.ingest_seq:
            fold.mark(cues[place])
            place += 1
        fold.apply(change)
    for cue in cues[place:]:
        fold.mark(cue)
    if fold.record is None:
        return
    yield (*row_of(record_id, fold.record), None, None, CURRENT)
    nothing = [None] * len(folding.fields.columns)
    for cue in fold.cues:
        yield (*cue_row(record_id, cue, nothing), None, None, CUE)
    for span in fold.renumbered:
        yield (record_id, *nothing, *[None] * len(FLAGS), *span, RENUMBERED)
    if folding.with_versions and fold.versions:
        versions = fold.versions if before is None else [before, *fold.versions]
        ends = [version.commit_timestamp for version in versions[1:]]
        for version, end in zip(versions, [*ends, None], strict=True):
            yield (*row_of(record_id, version), version.commit_timestamp, end, VERSION)


def row_of(record_id: str, record: Record) -> tuple[Any, ...]:
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
    )


def cue_row(record_id: str, cue: Cue, nothing: Sequence[None]) -> tuple[Any, ...]:
    order = (cue.commit_timestamp, None, None, cue.ingest_seq)
    return (record_id, *nothing, None, None, None, cue.reason, *order, cue.change_type)
