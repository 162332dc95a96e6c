"""Which reads of the org are due, and in which order they begin.

Reads run one at a time. In a *round*, each object gets at most one read of queued records and one
sweep, so no object waits for ever, whatever arrives for the others.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sfpubsub.spark.mirror.deadlines import Deadlines
from sfpubsub.spark.mirror.log import Kind
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import Reason
from sfpubsub.spark.records.reads import AsOf, Entry, Read, heals

# Maximum number of ids per read (Salesforce documentation, sObject Collections with a request
# body).
IDS_AT_ONCE = 2000

# Number of queued records above which the whole object is read. Reading more records by id would
# take over ten calls; a Bulk read takes about ten.
MOST_IDS = 10 * IDS_AT_ONCE

# Seconds between requests for an object's describe result. A field that was added or changed, or
# that the user may see since, is noticed within this time even if no event arrives. An object costs
# 24 calls a day; the smallest allowance of an org is 15,000 (Salesforce documentation, API limits).
DESCRIBE_EVERY = 3600.0


@dataclass(frozen=True)
class Wanted:
    """A read that should be performed."""

    entity: str
    kind: Kind
    record_ids: tuple[str, ...] = ()
    """For the kind ``ids``: the ids to read."""


class Periodic:
    """Decides which reads are due by time, or because an object's fields have changed.

    Args:
        time: The present moment.
        refresh_formulas: Interval in seconds at which objects with fields that no event reports,
            such as formulas, are reread; 0 for never.
        sweep: Interval in seconds at which the ids in the org and the table are compared; 0 for
            never.
    """

    def __init__(self, time: Deadlines, refresh_formulas: float, sweep: float) -> None:
        self._time = time
        self._refresh_formulas = refresh_formulas
        self._sweep = sweep
        self._end_after = float("inf")

    def end_after(self, began: float) -> None:
        """Make each read due at most once in this run of the mirror.

        Otherwise a run that takes longer than an interval would never end.

        Args:
            began: Start of the run, in seconds since the epoch.
        """
        self._end_after = began

    def reason(self, progress: ObjectProgress, columns: Columns) -> Reason | None:
        """Return why a read of all records of an object is due; None if none is due.

        Args:
            progress: What the mirror has read of the object so far.
            columns: The columns of its table.
        """
        if progress.is_removed:
            return Reason.GAP  # it is mirrored again, and its rows are outdated
        if progress.newest is None or set(columns.selected) - set(progress.selected):
            return Reason.ASKED  # the first read, or fields were added in the org
        if any(progress.filled.get(name) != number for name, number in columns.filled.items()):
            return Reason.ASKED  # a field has another type, or was not visible for some time
        if columns.unreported and self._is_due(progress.read_at, self._refresh_formulas):
            return Reason.FORMULA
        return None

    def is_sweep_due(self, progress: ObjectProgress) -> bool:
        """Return whether the ids of an object are due for comparison with those in the org.

        A read of the whole object counts as a comparison.
        """
        last = max(progress.read_at or 0.0, progress.swept_at or 0.0)
        return progress.newest is not None and self._is_due(last, self._sweep)

    def _is_due(self, last: float | None, every: float) -> bool:
        if not every:
            return False
        if last is None:
            return True
        if last >= self._end_after:
            return False
        # A time in the future is that of a wrong clock.
        return last > self._time.now.wall or self._time.is_past_wall(last + every)


class Rounds:
    """Gives each object its turn to be read."""

    def __init__(self) -> None:
        self._served: set[tuple[str, bool]] = set()  # in this round: objects, and whether by sweep

    def next(self, reads: Sequence[Wanted]) -> Wanted:
        """Return the read that begins next.

        Args:
            reads: The reads that can begin now, at most one of queued records and one sweep for
                each object. Within a round, they begin in this order.
        """
        left = [each for each in reads if _lane(each) not in self._served]
        if not left:  # the round is over
            self._served.clear()
            left = list(reads)
        self._served.add(_lane(left[0]))
        return left[0]


def _lane(read: Wanted) -> tuple[str, bool]:
    return read.entity, read.kind == "sweep"


def wanted_reads(
    entries: Mapping[str, Sequence[Entry]], objects: Iterable[str], as_of: AsOf
) -> list[Wanted]:
    """Return the reads that would close queue entries if they began now, at most one per object.

    A read by id takes the oldest entries first, so new entries cannot delay it for ever.

    Args:
        entries: Open entries by object, oldest first.
        objects: The objects, in the order of the result.
        as_of: What a read that begins now is guaranteed to contain (`reads.as_of`).
    """
    now = Read(as_of, None, None)
    found = [_wanted(entity, entries.get(entity, ()), now) for entity in objects]
    return [each for each in found if each is not None]


def _wanted(entity: str, entries: Sequence[Entry], now: Read) -> Wanted | None:
    ids: dict[str, None] = {}
    doubtful = 0
    for each in entries:
        if not heals(now, each):
            continue
        if each.record_id is None or each.is_about_all:
            return Wanted(entity, "object")
        ids[each.record_id] = None
        doubtful += not each.cue.reason.is_about_absence  # only a read by id decides the others
        if doubtful > MOST_IDS:
            return Wanted(entity, "object")
    return Wanted(entity, "ids", tuple(ids)[:IDS_AT_ONCE]) if ids else None


def smallest_first(objects: Iterable[str], records: Mapping[str, int | None]) -> list[str]:
    """Return the objects in the order in which to read them whole, for instance after a gap.

    So most tables equal the org again soon, and a budget of API calls reaches as many as possible.

    Args:
        objects: The objects.
        records: Number of live records by object; None, or no entry, if it is not known. Objects
            that were never read come last, in the given order.
    """
    sizes = {name: records.get(name) for name in objects}
    return sorted(sizes, key=lambda name: (sizes[name] is None, sizes[name] or 0))
