"""The merge rule: computes a record's state from its events and reads.

This module is pure: no Spark, no I/O, no clock. `Fold` (fold.py) applies a change to a
record. This module decides to which state a change is applied, and which
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

**Stamps.** Some changes have no event. Almost all of them move the record's SystemModstamp, its
*stamp*, and two states of a record are in the order of their stamps. So a row never replaces one
with a later stamp: it comes from a response that lags more. And an event that was committed before
a row's stamp is contained in the row, so applying it must leave the row as it is. If it does not, a
change without an event came after the event, and the record is read again, a margin after the
event. Stamps and commits are never compared otherwise: they come from different clocks.

**Absence.** A record that a read does not return may be deleted, or hidden from the user, or left
out. So it is marked at first, and counts as deleted only if a second read, by its id, does not
return it either. The second read must have begun a margin after the mark was durable. Neither read
counts if an event about the record arrived after its as-of, because the record may have been
created or restored since. An event, or another read that returns the record, voids the first read.

**Order.** Events up to a read's as-of are applied before the read is merged. An older read merged
after a newer one changes nothing. Invariant: a row that may differ from the org, other than in
fields that no event names, has an open entry.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sfpubsub.spark.records.fold import Change, Cue, Fields, Fold, Reason, Record
from sfpubsub.spark.records.reads import Entry, Read, Row, heals

# Stamps are in whole seconds, rounded down.
_SECOND = timedelta(seconds=1)

# This package's change type for a record whose state comes from a read.
READ = "READ"


class Repair(enum.StrEnum):
    """How a row differed from the org although nothing said so: a change had no event."""

    MISSING = "missing"
    """There was no row."""
    EXISTENCE = "existence"
    """The record was deleted or restored."""
    CHANGED = "changed"
    """A field that events report had another value."""
    DERIVED = "derived"
    """Only fields that no event reports had other values."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The known state of one record, as stored in its table row."""

    record: Record
    """The record. Its `ingest_seq` is never less than ``read.as_of.ingest_seq``."""
    read: Read | None = None
    """The newest merged read; None if only events were merged."""
    stamp: datetime | None = None
    """The stamp of the row that `read` returned; None if it had none."""
    derived_at: datetime | None = None
    """`Row.derived_at` of that row: fields that no event reports have their values as of then."""


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
    versions: tuple[Record, ...] = ()
    """The record after each change: one for each applied event, or, if a read was merged, one if
    the read found other values than were known, or that the record is or is not deleted. A version
    is valid from its `Record.commit_timestamp`: for a read that is the commit of the newest event
    that the read contains or that was applied after it.
    """
    renumbered: tuple[tuple[datetime, datetime], ...] = ()
    """See `Fold.renumbered`."""
    repair: Repair | None = None
    """How the known state differed from the row of a read; None if it did not, or if it was known
    to be incomplete.
    """
    by_absence: bool = False
    """Whether the record counts as deleted only because reads did not return it. The caller decides
    whether to believe that (absences.py), and otherwise uses `parked`.
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
    stamp = None if mirrored is None else mirrored.stamp
    _apply(fold, changes, about_all, stamp)
    if read is not None and before is not None and before.reread_reason is None:
        _doubt_after(fold, changes)
    added = tuple(Entry(record_id, cue) for cue in fold.cues)
    new = mirrored
    if fold.record is not None:
        new = Mirrored(fold.record) if mirrored is None else replace(mirrored, record=fold.record)
    return Outcome(
        new,
        added,
        versions=tuple(fold.versions),
        renumbered=tuple(fold.renumbered),
    )


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
    if mirrored is not None and is_older(row, mirrored):
        return Outcome(mirrored, _read_again(record_id, read, entries, open_entries), healed)
    base = Record(
        _values(row, mirrored), row.is_deleted, not row.unfit, None, None, None, None, 0, READ
    )
    fold = Fold(fields, _placed(base, mirrored, read), since=read.since, until=read.until)
    doubts = [each.cue for each in open_entries if each.casts_doubt]
    _apply(fold, changes, doubts, row.stamp)
    if fold.record is None:
        raise AssertionError("bug in sfpubsub: a known record was lost while changes were applied")
    if row.unfit:
        _doubt_after(fold, changes)
    found = [Entry(record_id, cue) for cue in fold.cues]
    added = [each for each in found if each not in open_entries and not heals(read, each)]
    if any(_is_parked(each, record_id) for each in open_entries):
        # Parked after this read began, but there after all: a further read closes the entry.
        added.append(Entry(record_id, Cue(Reason.SWEEP, None, None, read.as_of.ingest_seq)))
    new = Mirrored(fold.record, read, row.stamp, row.derived_at)
    repair = _repair(fields, mirrored, fold.record)
    versions = _differing(mirrored, fold.record)
    return Outcome(new, tuple(added), healed, versions=versions, repair=repair)


def _repair(fields: Fields, mirrored: Mirrored | None, new: Record) -> Repair | None:
    if mirrored is None:
        return None if new.is_deleted else Repair.MISSING
    old = mirrored.record
    is_trusted = old.is_complete and old.reread_reason in (None, Reason.UNTOLD)
    if not is_trusted or not _differs(old, new):
        return None
    if old.is_deleted != new.is_deleted:
        return Repair.EXISTENCE
    numbers = (number for number, value in enumerate(old.values) if value != new.values[number])
    return Repair.DERIVED if all(n in fields.unreported for n in numbers) else Repair.CHANGED


def _differing(mirrored: Mirrored | None, new: Record) -> tuple[Record, ...]:
    """Return the version that a read has found; none if it found what was known."""
    return (new,) if _differs(None if mirrored is None else mirrored.record, new) else ()


def _differs(old: Record | None, new: Record | None) -> bool:
    """Return whether two states of a record have different values, or only one is deleted."""
    if old is None or new is None:
        return old is not new
    return old.is_deleted != new.is_deleted or [*old.values] != [*new.values]


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
    *,
    by_id: bool,
    twice: bool = True,
) -> Outcome:
    """Update the state of a record that a read covers but did not return.

    Args:
        record_id: Id of the record.
        mirrored: The state known so far; None for an unknown record.
        read: The read. It either requested the record by its id, or belongs to a read of all the
            object's records, including deleted ones. The user who made it must have been able to
            see every record, from the first read to this one.
        entries: Open entries that concern the record.
        newest: The newest merged read of all the object's records, or of a part of them that
            includes the record; None before the first.
        by_id: Whether the read requested the record by its id. Only such a read can be the second.
        twice: Whether one absence is not enough. Only tests of the other safeguards say False.
    """
    if is_outdated(read, mirrored, newest):
        return Outcome(mirrored)
    healed, open_entries = _sorted_out(record_id, read, entries)
    if mirrored is None:
        return Outcome(None, (), healed)
    if not proves_deletion(mirrored, read, open_entries):
        return Outcome(mirrored, _read_again(record_id, read, entries, open_entries), healed)
    seq = read.as_of.ingest_seq
    old = mirrored.record
    standing = _standing(record_id, old, entries, healed) if twice else Reason.CONFIRMED
    is_gone = standing is Reason.CONFIRMED or (standing is Reason.ABSENT and by_id)
    if old.is_deleted or is_gone:
        left = replace(old, is_deleted=True, is_complete=old.is_sound, reread_reason=None)
    else:
        reason = Reason.PARKED if standing is Reason.PARKED else Reason.ABSENT
        left = replace(old, is_complete=old.is_sound, reread_reason=reason)
    fold = Fold(Fields((), {}, {}), _placed(replace(left, change_type=READ), mirrored, read))
    _apply(fold, (), [each.cue for each in open_entries if each.casts_doubt])
    if fold.record is None:
        raise AssertionError("bug in sfpubsub: a known record was lost while changes were applied")
    found = replace(mirrored, record=fold.record, read=read)
    if old.is_deleted:
        return Outcome(found, (), healed)
    if is_gone:
        confirmed = twice and standing is Reason.CONFIRMED
        versions = _differing(mirrored, fold.record)
        return Outcome(found, (), healed, versions=versions, by_absence=not confirmed)
    added: tuple[Entry, ...] = (Entry(record_id, Cue(reason, None, None, seq)),)
    if any(
        each.record_id == record_id and each.cue.reason.is_about_absence for each in open_entries
    ):
        added = ()  # a later read is waited for already
    return Outcome(found, added, healed)


def _standing(
    record_id: str, record: Record, entries: Iterable[Entry], healed: Iterable[Entry]
) -> Reason | None:
    """Return how far the absence of a record was established by earlier reads.

    Return ABSENT after a first read, PARKED if a second one was not believed, CONFIRMED if a user
    has confirmed it since, and None if there was no such read, or if it no longer counts: because
    of a later event, or because the record was read since.

    Args:
        record_id: Id of the record.
        record: The record.
        entries: All open entries that concern the record.
        healed: Its own entries that the present read closes.
    """
    if record.reread_reason not in (Reason.ABSENT, Reason.PARKED):
        return None
    events = [
        each.cue.ingest_seq for each in entries if each.record_id == record_id and not each.asked
    ]
    last = max([record.ingest_seq, *events])
    known = {
        each.cue.reason
        for each in healed
        if each.cue.reason is Reason.CONFIRMED or each.cue.ingest_seq >= last
    }
    if not known & {Reason.ABSENT, Reason.PARKED}:
        return None
    order = (Reason.CONFIRMED, Reason.PARKED, Reason.ABSENT)
    return next((reason for reason in order if reason in known), None)


def parked(record_id: str, outcome: Outcome) -> Outcome:
    """Return *outcome* for a record that counts as deleted by absence, but must not be deleted.

    The record stays as it was, and is marked until a read returns it, or a user confirms.
    """
    found = outcome.mirrored
    if found is None or not outcome.by_absence:
        raise AssertionError("bug in sfpubsub: only a deletion by absence can be parked")
    record = replace(found.record, is_deleted=False, reread_reason=Reason.PARKED)
    cue = Cue(Reason.PARKED, None, None, record.ingest_seq)
    added = (*outcome.added, Entry(record_id, cue))
    return replace(
        outcome,
        mirrored=replace(found, record=record),
        added=added,
        versions=(),
        by_absence=False,
    )


def _is_parked(entry: Entry, record_id: str) -> bool:
    return entry.record_id == record_id and entry.cue.reason is Reason.PARKED


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


def is_older(row: Row, mirrored: Mirrored) -> bool:
    """Return whether *row* is an older state of the record than one that was merged before."""
    return row.stamp is not None and mirrored.stamp is not None and row.stamp < mirrored.stamp


def is_contained(change: Change, stamp: datetime | None) -> bool:
    """Return whether a row with *stamp* contains a change of its record."""
    if stamp is None or change.commit_timestamp is None:
        return False
    return change.commit_timestamp < stamp + _SECOND


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


def _read_again(
    record_id: str, read: Read, entries: Sequence[Entry], open_entries: Sequence[Entry]
) -> tuple[Entry, ...]:
    """Return an entry for a record that a read has left as it was, although it closes an entry.

    The closed entry may be one of the record, or one about all records.
    """
    if len(open_entries) == len(entries):
        return ()
    return (Entry(record_id, Cue(Reason.SWEEP, None, None, read.as_of.ingest_seq)),)


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


def _doubt_after(fold: Fold, changes: Sequence[Change]) -> None:
    """Ask for a read of a record that has changed since a read had a value that did not fit.

    The change may have replaced that value.
    """
    record = fold.record
    if not changes or fold.cues or record is None or record.is_complete or record.is_deleted:
        return
    last = changes[-1]
    cue = Cue(Reason.UNFIT, last.change_type, last.commit_timestamp, last.ingest_seq)
    fold.cues.append(cue)
    fold.mark(cue)


def _apply(
    fold: Fold, changes: Sequence[Change], cues: Iterable[Cue], stamp: datetime | None = None
) -> None:
    """Apply changes and cues (reasons to reread) to *fold*, in order of arrival.

    A change that deletes the record, or describes it completely, overrides earlier cues.

    Args:
        fold: The record so far.
        changes: The changes.
        cues: The cues.
        stamp: The stamp of the newest row that was read; None if it had none.
    """
    waiting = sorted(cues, key=lambda cue: cue.ingest_seq, reverse=True)
    before = fold.record
    contained = [each for each in changes if is_contained(each, stamp)]
    for change in changes:
        while waiting and waiting[-1].ingest_seq < change.ingest_seq:
            fold.mark(waiting.pop())
        fold.apply(change)
        if contained and change is contained[-1] and _differs(before, fold.record):
            fold.doubt(Reason.UNTOLD, change)
    while waiting:
        fold.mark(waiting.pop())
