"""What a read of the org is guaranteed to contain, and which reread entries it closes ("heals").

The org's responses may lag a few seconds behind its own events, so the time of a read does not say
which changes it contains. Its *as-of* does. This is the state that the mirror's tables had reached
one *margin* (`MirrorSettings.margin`, the longest lag assumed) before the request was sent. The
changes in that state had been committed in the org by then, so a response that lags by no more than
the margin contains them. Invariant: a read is never assumed to contain more than its as-of.

An as-of consists of two numbers, because not every read is requested by an event. The number of the
newest applied row orders reads relative to events. It does not advance while the org is idle, so it
cannot distinguish a read that began before a sweep, a formula refresh or a lost position from one
that began after it. So requests with these reasons are numbered separately.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sfpubsub.spark.records.fold import Cue, Reason

# Rows that `Seen` keeps for each object, about 20 MB. Further ones are merged again each time.
MOST_SEEN = 100_000


@dataclass(frozen=True, slots=True, order=True)
class AsOf:
    """How far the mirror's tables had been updated at one moment.

    Values can be compared: a later one is never less than an earlier one.
    """

    ingest_seq: int
    """``ingest_seq`` of the newest raw row that had been applied; -1 before the first."""
    asked: int = 0
    """Number of the newest queue entry that was not caused by an event (`Entry.asked`)."""


@dataclass(frozen=True, slots=True)
class DurableState:
    """A state of the mirror's tables, with a time at which it was durable.

    `as_of` selects one of these for each read. Its argument *notes* contains such states, not
    `notes.Note` objects.
    """

    time: float
    """Monotonic clock of this process in seconds, read after the data was durable. A new process
    starts without any, because monotonic clocks of two processes cannot be compared.
    """
    durable: AsOf


def as_of(notes: Iterable[DurableState], sent: float, margin: float) -> AsOf | None:
    """Return the as-of of a read: the newest state that was durable *margin* seconds before it.

    Args:
        notes: The states that this process has recorded, with their times.
        sent: When the read's request is sent or its Bulk job is created, on the same clock as
            `DurableState.time`.
        margin: Maximum time in seconds by which responses lag behind the event bus.

    Returns:
        The as-of; None if none of *notes* is old enough yet, in which case the caller must wait.
    """
    return max((each.durable for each in notes if each.time + margin <= sent), default=None)


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the org: a single response, or one piece of the read of a whole object."""

    as_of: AsOf
    since: tuple[datetime, int, int] | None
    """The greatest `Change.order` of all events up to the as-of, of any record. The response
    contains everything earlier in the org, so an earlier change that arrives later is late. Without
    this value, an event that is decoded late would silently be applied to a newer row, which may be
    newer because of an overflow event that does not name the record.
    """
    until: datetime | None
    """The org's time (the response's Date header) when the response was complete, plus a margin
    for differences between the org's clocks. The response contains no change committed later. This
    is a time, not the number of a raw row, because events may be consumed hours after the read.
    """


@dataclass(frozen=True, slots=True)
class Row:
    """A record that a read returned."""

    values: Sequence[Any]
    """One value for each of `Fields.columns`."""
    is_deleted: bool = False
    """True for a record in the Recycle Bin, as returned by queryAll."""
    unread: tuple[int, ...] = ()
    """Indexes of the columns that the read did not select, whose known values are kept."""
    unfit: bool = False
    """Whether a value did not fit its column, and is null instead."""
    stamp: datetime | None = None
    """The record's SystemModstamp; None if the object has none."""
    derived_at: datetime | None = None
    """The org's time as of which the row contains every change, also of fields that no event
    reports; a margin before the request.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """One open entry of the reread queue."""

    record_id: str | None
    """Id of a record, a prefix and an asterisk (``001*``) for all records with the prefix, or None
    for all records of the object.
    """
    cue: Cue
    """Why the entry exists. For an entry not caused by an event, `Cue.ingest_seq` is that of the
    newest raw row.
    """
    asked: int = 0
    """Number of the step that added an entry not caused by an event; 0 for an entry caused by an
    event. The step must not run before the reason has taken effect: for a lost position, not before
    the new stream is anchored.
    """

    @property
    def is_about_all(self) -> bool:
        """Whether the entry concerns all records of the object, or all with a certain id prefix."""
        return self.record_id is None or self.record_id.endswith("*")

    @property
    def casts_doubt(self) -> bool:
        """Whether the entry's reason means that fields reported by events may have wrong values."""
        return self.cue.reason.casts_doubt

    def concerns(self, record_id: str) -> bool:
        """Return whether the entry concerns the record *record_id*, alone or among others."""
        if self.is_about_all:
            return record_id.startswith((self.record_id or "").rstrip("*"))
        return self.record_id == record_id


def numbered(entry: Entry, step: int) -> Entry:
    """Return an entry that a merge added with the number of its step, if no event has caused it.

    A merge adds such entries only because of what a read did or did not return.
    """
    return replace(entry, asked=step) if is_numbered(entry.cue.reason) else entry


def is_numbered(reason: Reason) -> bool:
    """Return whether no event causes entries that a merge adds for this reason."""
    return reason is Reason.SWEEP or reason.is_about_absence


def heals(read: Read, entry: Entry) -> bool:
    """Return whether *read* began late enough to close *entry*.

    It must have begun at least one margin after the reason for the entry arrived. Such a read
    contains the changes that caused the entry. An earlier read may lack them: its row is
    provisional, and the entry stays open.
    """
    cue = entry.cue
    return cue.ingest_seq <= read.as_of.ingest_seq and entry.asked <= read.as_of.asked


def changed_from(through: datetime, overlap: float, margin: float) -> datetime:
    """Return the lowest stamp that a read of changed records asks for (`Row.stamp`).

    A record has its stamp before its transaction is committed, and a response shows it up to a
    margin later. So the previous read may have missed records with stamps before its own time.

    Args:
        through: The org's time when the previous read of the object's changed records, or of the
            whole object, was sent.
        overlap: Longest time in seconds that a transaction takes.
        margin: Maximum time in seconds by which responses lag.
    """
    return through - timedelta(seconds=overlap + margin)


class Seen:
    """The rows that reads of changed records have returned, to skip those that have not changed.

    Because reads overlap, most of the rows are returned several times. A row is skipped only if all
    its values are as before: two changes within a second have the same stamp. Not thread-safe.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[datetime, bytes]] = {}

    def is_new(self, record_id: str, row: bytes, stamp: datetime) -> bool:
        """Return whether a row is not the one that was returned for the record before.

        Args:
            record_id: Id of the record.
            row: All values of the row, as bytes or a hash of them.
            stamp: Its stamp.
        """
        if self._rows.get(record_id) == (stamp, row):
            return False
        if len(self._rows) < MOST_SEEN or record_id in self._rows:
            self._rows[record_id] = stamp, row
        return True

    def forget_before(self, stamp: datetime) -> None:
        """Forget the rows that no further read asks for: those with an earlier stamp."""
        self._rows = {each: row for each, row in self._rows.items() if row[0] >= stamp}
