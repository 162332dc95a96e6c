"""The merge rule: computes a record's state from its events and reads.

This module is pure: no Spark, no I/O, no clock. `Fold` (tables/records.py) applies a change to a
record, as in current tables. This module decides to which state a change is applied, and which
entries of the reread queue are closed. The *as-of* of a read states which events the read is
guaranteed to contain, and the *margin* is the longest lag of the org's responses (reads.py).

**A row.** A read contains every event up to its as-of, and perhaps later ones. So its row replaces
the known state, and every event after the as-of is applied to it in order of arrival. Applying an
event that the row already contains is harmless: each of its fields is set again by the later events
that changed the field, up to the value in the row. A text diff that the row already contains does
not match, and is skipped.

**An entry.** Some events do not say which fields changed. If a read's row is older than such a
change, merging the row reverts the change. So every such change has a queue entry, which is closed
only by a read that began at least one margin later (`reads.heals`).

**Absence.** A record that a read does not return counts as deleted only if no event about it
arrived after the as-of. Otherwise it may have been created or restored since.

**Order.** Events up to a read's as-of are applied before the read is merged. An older read merged
after a newer one changes nothing. Invariant: a row that may differ from the org, other than in
fields that no event names, has an open entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfpubsub.spark.mirror.reads import Entry, Read, Row, heals
from sfpubsub.spark.tables.records import Change, Cue, Fields, Fold, Record

# This package's change type for a record whose state comes from a read.
READ = "READ"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The known state of one record, as stored in its table row."""

    record: Record
    """The record. Its `ingest_seq` is never less than ``read.as_of.ingest_seq``."""
    read: Read | None = None
    """The newest merged read; None if only events were merged."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The new state of one record, and the changes to the reread queue."""

    mirrored: Mirrored | None
    """The new state; None if nothing is known about the record."""
    added: tuple[Entry, ...] = ()
    """New entries. They must be durable before the record, so that no row is marked without an
    entry. After a crash an entry may be added again, which is harmless: the queue is a set.
    """
    healed: tuple[Entry, ...] = ()
    """The record's own entries that the merged read closes. Remove them only after the record is
    durable.
    """


def apply_changes(
    fields: Fields,
    record_id: str,
    mirrored: Mirrored | None,
    changes: Sequence[Change],
    about_all: Sequence[Cue],
    newest: Read | None = None,
) -> Outcome:
    """Apply the next events to the known state of a record.

    Args:
        fields: Positions of fields in a record's values.
        record_id: Id of the record.
        mirrored: The state known so far; None for an unknown record.
        changes: The record's changes, in order of arrival.
        about_all: Reasons, found in the same raw rows, to reread all records, including this one.
        newest: The newest merged read of all the object's records, or of a part of them that
            includes the record; None before the first. A change older than this read is late even
            if the read did not return the record, because the record may have been deleted.
    """
    read = None if mirrored is None else mirrored.read
    before = None if mirrored is None else mirrored.record
    since = max((each.since for each in (read, newest) if each and each.since), default=None)
    fold = Fold(fields, before, since=since, until=None if read is None else read.until)
    _apply(fold, changes, about_all)
    added = tuple(Entry(record_id, cue) for cue in fold.cues)
    return Outcome(None if fold.record is None else Mirrored(fold.record, read), added)


def merge_row(
    fields: Fields,
    record_id: str,
    mirrored: Mirrored | None,
    read: Read,
    row: Row,
    changes: Sequence[Change],
    entries: Sequence[Entry],
    newest: Read | None = None,
) -> Outcome:
    """Merge a record that a read returned, and apply the events that arrived since.

    Args:
        fields: Positions of fields in a record's values.
        record_id: Id of the record.
        mirrored: The state known so far; None for an unknown record.
        read: The read.
        row: The returned row.
        changes: All changes of the record that arrived after the read's as-of and were already
            applied, in order of arrival. The caller must repeat the read instead if some of
            their raw rows no longer exist.
        entries: Open entries that concern the record.
        newest: The newest merged read of all the object's records, or of a part of them that
            includes the record; None before the first.
    """
    if is_outdated(read, mirrored, newest):
        return Outcome(mirrored)
    healed, open_entries = _sorted_out(record_id, read, entries)
    base = Record(_values(row, mirrored), row.is_deleted, True, None, None, None, None, 0, READ)
    fold = Fold(fields, _placed(base, mirrored, read), since=read.since, until=read.until)
    _apply(fold, changes, [each.cue for each in open_entries if each.casts_doubt])
    if fold.record is None:
        raise AssertionError("bug in sfpubsub: a known record was lost while changes were applied")
    found = [Entry(record_id, cue) for cue in fold.cues]
    added = [each for each in found if each not in open_entries and not heals(read, each)]
    return Outcome(Mirrored(fold.record, read), tuple(added), healed)


def _values(row: Row, mirrored: Mirrored | None) -> Sequence[Any]:
    if mirrored is None or not row.unread:
        return row.values
    values = list(row.values)
    for number in row.unread:
        values[number] = mirrored.record.values[number]
    return values


def merge_absence(
    record_id: str,
    mirrored: Mirrored | None,
    read: Read,
    entries: Sequence[Entry],
    newest: Read | None = None,
) -> Outcome:
    """Update the state of a record that a read covers but did not return.

    Args:
        record_id: Id of the record.
        mirrored: The state known so far; None for an unknown record.
        read: The read. It either requested the record by its id, or belongs to a read of all the
            object's records, including deleted ones. The user who made it must be able to see
            every record.
        entries: Open entries that concern the record.
        newest: The newest merged read of all the object's records, or of a part of them that
            includes the record; None before the first.
    """
    if is_outdated(read, mirrored, newest):
        return Outcome(mirrored)
    healed, open_entries = _sorted_out(record_id, read, entries)
    if mirrored is None:
        return Outcome(None, (), healed)
    if not proves_deletion(mirrored, read, open_entries):
        return Outcome(mirrored)
    old = mirrored.record
    is_sound = old.is_complete and old.reread_reason is None
    gone = replace(old, is_deleted=True, is_complete=is_sound, reread_reason=None, change_type=READ)
    fold = Fold(Fields((), {}, {}), _placed(gone, mirrored, read))
    _apply(fold, (), [each.cue for each in open_entries if each.casts_doubt])
    if fold.record is None:
        raise AssertionError("bug in sfpubsub: a known record was lost while changes were applied")
    return Outcome(Mirrored(fold.record, read), (), healed)


def is_outdated(read: Read, mirrored: Mirrored | None, newest: Read | None) -> bool:
    """Return whether a newer read of the record was merged, so *read* must be ignored.

    Args:
        read: The read.
        mirrored: The known state of the record.
        newest: The newest merged read of all the object's records, or of a part of them that
            includes the record. If it did not return the record, and no event names the record,
            nothing else prevents an older read from wrongly restoring the record.
    """
    merged = [newest, None if mirrored is None else mirrored.read]
    return any(each is not None and read.as_of < each.as_of for each in merged)


def proves_deletion(mirrored: Mirrored, read: Read, entries: Iterable[Entry]) -> bool:
    """Return whether a record that a read did not return counts as deleted.

    It does if no event about it arrived after the read's as-of.

    Args:
        mirrored: The known state of the record.
        read: The read.
        entries: Open entries that concern the record. Late events are not applied, so only their
            entries show that they arrived.
    """
    last = max(
        [mirrored.record.ingest_seq, *(each.cue.ingest_seq for each in entries if not each.asked)]
    )
    return last <= read.as_of.ingest_seq


def _sorted_out(
    record_id: str, read: Read, entries: Iterable[Entry]
) -> tuple[tuple[Entry, ...], list[Entry]]:
    """Return the record's own entries that the read closes, and all entries that it does not close.

    An entry about many records is never in the first result: even if the read closes it for this
    record, it must stay in the queue for the others.
    """
    known = list(entries)
    healed = tuple(each for each in known if each.record_id == record_id and heals(read, each))
    return healed, [each for each in known if not heals(read, each)]


def _placed(record: Record, mirrored: Mirrored | None, read: Read) -> Record:
    """Return *record* with its position in the order of changes (`Change.order`).

    A change that arrives later but precedes this position is late. The position is the later of two
    positions: that of *read*, and that of the record in *mirrored*. The latter is ignored if it
    comes from an event after the read's as-of, because such events are applied again.
    """
    placed = replace(
        record,
        commit_timestamp=None if read.since is None else read.since[0],
        commit_number=None,
        sequence_number=None,
        ingest_seq=read.as_of.ingest_seq,
    )
    # Events after the as-of are applied again, so their position must not count yet.
    old = None if mirrored is None else mirrored.record
    if old is None or old.ingest_seq > read.as_of.ingest_seq or old.order <= placed.order:
        return placed
    return replace(
        placed,
        commit_timestamp=old.commit_timestamp,
        commit_number=old.commit_number,
        sequence_number=old.sequence_number,
    )


def _apply(fold: Fold, changes: Sequence[Change], cues: Iterable[Cue]) -> None:
    """Apply changes and cues (reasons to reread) to *fold*, in order of arrival.

    A change that deletes the record, or describes it completely, overrides earlier cues.
    """
    waiting = sorted(cues, key=lambda cue: cue.ingest_seq, reverse=True)
    for change in changes:
        while waiting and waiting[-1].ingest_seq < change.ingest_seq:
            fold.mark(waiting.pop())
        fold.apply(change)
    while waiting:
        fold.mark(waiting.pop())
