"""Reads of the org: what they are sure to contain, and which entries of the queue they heal.

Pure: no Spark, no I/O, no clock. An answer of the org may lag behind its own events by some
seconds, so the moment of a read does not say what is in it. What does is its as-of: what was
durable here a margin before the request was sent. Whatever is durable had been committed in the
org, so an answer that lags by no more than the margin contains it. Invariant: a read is never
taken to contain more than its as-of.

Two numbers make an as-of, because not everything that asks for a read is an event. The number of
the newest raw row orders reads against events. It does not advance while nothing happens in the
org, and so cannot tell a read that began before a sweep, a refresh of formulas or a lost position
from one that began after it. Those are numbered themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sfpubsub.spark.tables.records import Cue, Reason

# Reasons for a read that say nothing against the row that is there.
_NO_DOUBT = (Reason.ASKED, Reason.FORMULA, Reason.SWEEP)


@dataclass(frozen=True, slots=True, order=True)
class AsOf:
    """What was durable at one moment. Later moments compare as greater or equal."""

    ingest_seq: int
    """Of the newest raw row; -1 while the table was empty."""
    asked: int = 0
    """Of the newest entry of the queue that no event gave (`Entry.asked`)."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What was durable at a moment, for as-ofs of later reads."""

    time: float
    """By a monotonic clock of this process, in seconds, read after it was durable. A new process
    starts without notes: its clock has nothing in common with that of another one."""
    durable: AsOf


def as_of(notes: Iterable[Noted], sent: float, margin: float) -> AsOf | None:
    """Return the as-of of a read.

    Args:
        notes: Of this process.
        sent: When the request is sent, or a Bulk job is created, by the clock of *notes*.
        margin: In seconds; at least as long as answers lag behind the bus.

    Returns:
        None when nothing was noted early enough: wait for the rest of the margin.
    """
    return max((each.durable for each in notes if each.time <= sent - margin), default=None)


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the org: one answer, or one piece of an object's."""

    as_of: AsOf
    since: tuple[datetime, int, int] | None
    """The greatest `Change.order` of all events up to the as-of, of whatever record. All that came
    before it in the org is in the answer, so a change from before that arrives later is late.
    Without this, an event decoded after all would be laid over a row that is newer, and nobody
    would know: what made the row newer may be an overflow, which is not among the record's own
    events."""
    until: datetime | None
    """The org's time (the answer's Date header) when the answer was complete, and a margin for
    differences between its clocks: no change committed later is in the answer. Not a number of a
    raw row: events may be consumed hours after the read."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as a read returned it."""

    values: Sequence[Any]
    """By `Fields.columns`, all of them."""
    is_deleted: bool = False
    """True of a record in the Recycle Bin, which a queryAll returns."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the re-read queue that is still open."""

    record_id: str | None
    """A record; None or a prefix and an asterisk (``001*``) for all records of the object."""
    cue: Cue
    """Its `Cue.ingest_seq`, of an entry that no event gave, is that of the newest raw row."""
    asked: int = 0
    """Counts, from 1, the entries that no event gave; 0 of one that an event gave. Given once the
    reason holds: that of a lost position when the new stream is anchored."""

    @property
    def is_about_all(self) -> bool:
        """Whether it is about all records of the object, or all with a prefix."""
        return self.record_id is None or self.record_id.endswith("*")

    @property
    def casts_doubt(self) -> bool:
        """Whether a row that it is about may be wrong, apart from what no event names."""
        return self.cue.reason not in _NO_DOUBT

    def concerns(self, record_id: str) -> bool:
        """Whether it is about a record, by itself or among others."""
        if self.is_about_all:
            return record_id.startswith((self.record_id or "").rstrip("*"))
        return self.record_id == record_id


def heals(read: Read, entry: Entry) -> bool:
    """Whether a read began a margin after an entry's cue arrived, and has what that left out.

    An earlier read may lack it, and cannot tell. Its row is provisional, and the entry stays open.
    """
    cue = entry.cue
    return cue.ingest_seq <= read.as_of.ingest_seq and entry.asked <= read.as_of.asked


def healed_by_object(entries: Iterable[Entry], pieces: Sequence[Read]) -> tuple[Entry, ...]:
    """Return the entries about all records that a read of the whole object has healed.

    Args:
        entries: Open ones.
        pieces: The reads that together have every record of the object, all of them merged. What
            the oldest of them does not heal is not healed.
    """
    return tuple(
        each for each in entries if each.is_about_all and all(heals(read, each) for read in pieces)
    )


def nominated(live: AbstractSet[str], swept: AbstractSet[str]) -> AbstractSet[str]:
    """Return the records to read because a sweep and the table do not agree on them.

    The sweep proves nothing itself: it has no as-of, takes long, and may miss what its user cannot
    see. A read by id decides.

    Args:
        live: Ids of the records that the table has, without deleted ones.
        swept: Ids that the org has.
    """
    return live ^ swept
