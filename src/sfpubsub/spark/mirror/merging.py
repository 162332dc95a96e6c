"""The merge rule: what a mirror knows of a record after events and reads of it.

Pure: no Spark, no I/O, no clock. How a change is laid over a record is `Fold`'s, as in current
tables; decided here is what it is laid over, and which entries of the queue are done with.

**A row.** A read contains every event up to its as-of, and perhaps later ones. So its row replaces
what was known, and every event after the as-of is laid over it in order of arrival. An event that
the row contains already does no harm: what it names is named again by every later event that
changed it, up to what the row has. A diff of a text cannot be laid twice; in a text that has it
already it finds nothing to change, and is skipped.

**An entry.** What events do not name can be set back in this way, because the row may be from
before it. Whatever leaves something unnamed has an entry in the queue, which only a read that
began a margin after it closes (`reads.heals`).

**Absence.** A record that a read does not return is deleted only if no event about it came after
the as-of; else it may have been created, or restored, since.

**Order.** Events up to a read's as-of are laid before the read is merged. An older read merged
after a newer one changes nothing. Invariant: a row that may differ from the org, in more than what
no event names, has an open entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sfpubsub.spark.mirror.reads import Entry, Read, Row, heals
from sfpubsub.spark.tables.records import Change, Cue, Fields, Fold, Record

# A change type of ours, for a record as it was read.
READ = "READ"


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What is known of one record: what its row of the table holds."""

    record: Record
    """Its `Record.ingest_seq` is never below the as-of of `read`."""
    read: Read | None = None
    """The newest read that was merged; None while there are only events."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one record, and what that does to the queue."""

    mirrored: Mirrored | None
    """None where nothing is known of the record."""
    added: tuple[Entry, ...] = ()
    """Durable before the record is, so that no row is marked without its entry. An entry may be
    added again after a crash; the queue is a set."""
    healed: tuple[Entry, ...] = ()
    """The record's own entries that are done with. Removed once the record is durable."""


def lay(
    fields: Fields,
    record_id: str,
    mirrored: Mirrored | None,
    changes: Sequence[Change],
    about_all: Sequence[Cue],
    newest: Read | None = None,
) -> Outcome:
    """Lay the next events over what is known of a record.

    Args:
        fields: Where fields are in a record's values.
        record_id: Of the record.
        mirrored: What is known before.
        changes: The record's, in order of arrival.
        about_all: Cues of the same raw rows about all records, this one among them.
        newest: See `is_outdated`. Of a record that it did not return, a change from before it is
            late, too: that record may be gone.
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
    """Take a record as a read returned it, and lay the events over it that came since.

    Args:
        fields: Where fields are in a record's values.
        record_id: Of the record.
        mirrored: What is known before.
        read: The read.
        row: What it returned.
        changes: All of the record's after the as-of that were laid already, in order of arrival.
            If their raw rows are gone, the read cannot be merged and must be done again.
        entries: The open ones that concern the record.
        newest: See `is_outdated`.
    """
    if is_outdated(read, mirrored, newest):
        return Outcome(mirrored)
    healed, open_entries = _sorted_out(record_id, read, entries)
    base = Record(row.values, row.is_deleted, True, None, None, None, None, 0, READ)
    fold = Fold(fields, _placed(base, mirrored, read), since=read.since, until=read.until)
    _apply(fold, changes, [each.cue for each in open_entries if each.casts_doubt])
    if fold.record is None:
        raise AssertionError("a fold that begins with a record ends with one")
    found = [Entry(record_id, cue) for cue in fold.cues]
    added = [each for each in found if each not in open_entries and not heals(read, each)]
    return Outcome(Mirrored(fold.record, read), tuple(added), healed)


def merge_absence(
    record_id: str,
    mirrored: Mirrored | None,
    read: Read,
    entries: Sequence[Entry],
    newest: Read | None = None,
) -> Outcome:
    """Take it that a read did not return a record that it was to return if it is there.

    Args:
        record_id: Of the record.
        mirrored: What is known before.
        read: By id, or of a piece of the object with deleted records, by a user who sees all.
        entries: The open ones that concern the record.
        newest: See `is_outdated`.
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
        raise AssertionError("a fold that begins with a record ends with one")
    return Outcome(Mirrored(fold.record, read), (), healed)


def is_outdated(read: Read, mirrored: Mirrored | None, newest: Read | None) -> bool:
    """Whether a newer read of the record was merged, so that this one is left out.

    Args:
        read: The read.
        mirrored: What is known of the record.
        newest: The newest merged read of the object, or of the piece of it, that would
            have returned the record. A record that it did not return, and that no event was about,
            is not known; an older read would bring it back.
    """
    merged = [newest, None if mirrored is None else mirrored.read]
    return any(each is not None and read.as_of < each.as_of for each in merged)


def proves_deletion(mirrored: Mirrored, read: Read, entries: Iterable[Entry]) -> bool:
    """Whether a read that lacks a record began a margin after the last event about it.

    Args:
        mirrored: What is known of the record.
        read: The read.
        entries: Open ones that concern the record. An event that was not laid, because it was
            late, is known by its entry alone.
    """
    last = max(
        [mirrored.record.ingest_seq, *(each.cue.ingest_seq for each in entries if not each.asked)]
    )
    return last <= read.as_of.ingest_seq


def _sorted_out(
    record_id: str, read: Read, entries: Iterable[Entry]
) -> tuple[tuple[Entry, ...], list[Entry]]:
    """Return the record's own entries that a read heals, and all that concern it and stay open."""
    known = list(entries)
    healed = tuple(each for each in known if each.record_id == record_id and heals(read, each))
    return healed, [each for each in known if not heals(read, each)]


def _placed(record: Record, mirrored: Mirrored | None, read: Read) -> Record:
    """Return a record with its place among the changes: which of those to come are late."""
    placed = replace(
        record,
        commit_timestamp=None if read.since is None else read.since[0],
        commit_number=None,
        sequence_number=None,
        ingest_seq=read.as_of.ingest_seq,
    )
    # Events after the as-of are laid again, so that their place must not count yet.
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
    """Take changes and cues in order of arrival: a change that says all outdoes earlier cues."""
    waiting = sorted(cues, key=lambda cue: cue.ingest_seq, reverse=True)
    for change in changes:
        while waiting and waiting[-1].ingest_seq < change.ingest_seq:
            fold.mark(waiting.pop())
        fold.apply(change)
    while waiting:
        fold.mark(waiting.pop())
