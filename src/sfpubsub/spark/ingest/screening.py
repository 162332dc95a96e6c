"""Select which events of several sources to write.

Duplicates are dropped, conflicts are returned separately, and the policy for undecodable events is
applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sfpubsub.errors import DecodeError
from sfpubsub.spark.ingest.dedupe import Conflict, Verdict
from sfpubsub.spark.ingest.known_events import KnownEvents
from sfpubsub.spark.ingest.result import WriteResult
from sfpubsub.spark.ingest.undecodable import Undecodable
from sfpubsub.spark.raw.rows import EventRows
from sfpubsub.spark.raw.schema import SCHEMA


@dataclass(frozen=True)
class Part:
    """The events of one source, before screening."""

    source: str
    """Name of the source."""
    rows: EventRows
    """The events; never empty."""


@dataclass(frozen=True)
class ScreenedPart:
    """The rows of one source's `Part` that should be written."""

    rows: pa.Table
    marks: list[int]
    """One mark per row."""
    result: WriteResult
    """The counts of this part. `batch_id`, `first_seq` and `position` are set after the write."""


@dataclass(frozen=True)
class Screened:
    """The result of `screen`: for each `Part`, the rows to write or an error; and the conflicts."""

    now: float
    """The time of the write, in seconds since the epoch."""
    parts: list[ScreenedPart | DecodeError]
    """One entry per part, in order: the rows, or the error that excludes the part."""
    judged: pa.Table
    """All rows of the parts that are not excluded."""
    conflicts: list[Conflict]
    """Conflicts among `judged`."""


def screen(parts: Sequence[Part], known: KnownEvents, undecodable: Undecodable) -> Screened:
    """Select the rows of *parts* to write, and apply the policy for undecodable events.

    With the policy ``fail``, a part with a new undecodable event is excluded: the result contains
    the error instead of its rows.

    Raises:
        WriteError: The table could not be read, or the quarantine could not be written.
    """
    tables = [part.rows.table() for part in parts]
    now = known.time_of(pa.concat_tables([*tables, SCHEMA.empty_table()]), is_live=True)
    marks = [known.marks(table, now) for table in tables]
    errors: dict[int, DecodeError] = {}
    while True:
        # Judge all parts together, because one table lookup for all parts costs about as much as
        # one for a single part. Leave out excluded parts: their events are not written, so the same
        # events in other parts are not duplicates.
        going = [n for n in range(len(parts)) if n not in errors]
        rows = pa.concat_tables([SCHEMA.empty_table(), *(tables[n] for n in going)])
        verdict = known.judge(rows, [mark for n in going for mark in marks[n]], now, is_live=True)
        screened: dict[int, ScreenedPart] = {}
        start = 0
        for n in going:
            own = _share(verdict, start, len(tables[n]))
            start += len(tables[n])
            try:
                screened[n] = _part(parts[n].rows, tables[n], marks[n], own, undecodable)
            except DecodeError as error:
                errors[n] = error
        if len(screened) == len(going):
            break
    found: dict[int, ScreenedPart | DecodeError] = {**screened, **errors}
    return Screened(now, [found[n] for n in range(len(parts))], rows, verdict.conflicts)


def taken_of(rows: pa.Table, kept: list[int]) -> pa.Table:
    """Return the rows at the given indexes, which must be sorted."""
    return rows if len(kept) == len(rows) else rows.take(pa.array(kept, pa.int64()))


def _part(
    rows: EventRows, table: pa.Table, marks: list[int], verdict: Verdict, undecodable: Undecodable
) -> ScreenedPart:
    """Apply the policy for undecodable events to one part, and select its rows to write.

    Raises:
        DecodeError: The policy is ``fail``, and a new event cannot be decoded.
        WriteError: The quarantine could not be written.
    """
    new = kept = verdict.new
    news = set(new) if rows.undecodable else set()
    bad = {index: row for index, row in rows.undecodable if index in news}
    if bad and not undecodable.keeps(list(bad.values())):
        kept = [index for index in new if index not in bad]
    result = WriteResult(
        rows=len(kept),
        duplicates=len(table) - len(new) - len(verdict.conflicts),
        undecodable=len(bad),
        batch_id=None,
        first_seq=None,
        position=None,
        set_aside=len(new) - len(kept),
        conflicts=len(verdict.conflicts),
        reencoded=len(verdict.reencoded),
    )
    return ScreenedPart(taken_of(table, kept), [marks[index] for index in kept], result)


def _share(verdict: Verdict, start: int, count: int) -> Verdict:
    """Return *verdict* for the *count* rows from *start*, with indexes relative to *start*."""
    end = start + count
    return Verdict(
        [index - start for index in verdict.new if start <= index < end],
        [index - start for index in verdict.reencoded if start <= index < end],
        [
            replace(conflict, index=conflict.index - start)
            for conflict in verdict.conflicts
            if start <= conflict.index < end
        ],
    )
