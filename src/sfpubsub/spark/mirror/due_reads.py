"""Which reads of the org are due, and in which order they begin.

Reads run one at a time. In a *round*, each object gets at most one read of queued records, one of
changed records and one sweep, so no object waits for ever, whatever arrives for the others.

This module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime

from sfpubsub.rest.describing import STAMP
from sfpubsub.spark.mirror.budget import DAY
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


# Longest time in seconds between reads of the changed records of an object that has fields that no
# event reports: an object costs 288 calls a day.
DERIVED_EVERY = 300.0


# Largest share of the org's API calls that reads of changed records take.
MOST_SHARE = 0.1

# The smallest limit of an org's API calls in 24 hours (Salesforce documentation, API limits).
SMALLEST_LIMIT = 15_000

# Calls that such a read takes: a query, and seldom a further one.
_CALLS = 1.2


@dataclass(frozen=True)
class Wanted:
    """A read that should be performed."""

    entity: str
    kind: Kind
    record_ids: tuple[str, ...] = ()
    """For the kind ``ids``: the ids to read."""
    stamps_from: datetime | None = None
    """For the kind ``changes``: the lowest stamp to read."""
    has_events: bool = True
    """Whether events tell about changes of the object, too."""


class Periodic:
    """Decides which reads are due by time, or because an object's fields have changed.

    Args:
        time: The present moment.
        refresh_formulas: Interval in seconds at which objects with fields that no event reports,
            such as formulas, are reread; 0 for never.
        sweep: Interval in seconds at which the ids in the org and the table are compared, and
            objects without events are read; 0 for never.
        drift: See `MirrorSettings.drift`.
        poll: See `MirrorSettings.poll`.
        alone: The objects without events, as of now.
    """

    def __init__(
        self,
        time: Deadlines,
        refresh_formulas: float,
        sweep: float,
        drift: float,
        poll: float,
        alone: AbstractSet[str],
    ) -> None:
        self._time = time
        self._poll = poll
        self._alone = alone
        self._refresh_formulas = refresh_formulas
        self._sweep = sweep
        self._drift = drift
        self._stretch = 1.0
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
        if columns.entity in self._alone and self._is_due(progress.read_at, self._sweep):
            return Reason.ASKED  # no event has said which records were deleted
        return None

    def is_sweep_due(self, name: str, progress: ObjectProgress) -> bool:
        """Return whether the ids of an object are due for comparison with those in the org.

        A read of the whole object counts as a comparison. An object without events is read as a
        whole instead.
        """
        if name in self._alone:
            return False
        last = max(progress.read_at or 0.0, progress.swept_at or 0.0)
        return progress.newest is not None and self._is_due(last, self._sweep)

    @property
    def reads_changes(self) -> bool:
        """Whether changed records are read at all."""
        return self._drift > 0 or bool(self._alone)

    def are_changes_due(self, progress: ObjectProgress, columns: Columns) -> bool:
        """Return whether the records of an object that have changed are due to be read.

        A read of the whole object counts, too. They are never due if the object has no stamps.
        Without events, they are always due in a run that ends, as nothing else tells what is new.

        Args:
            progress: What the mirror has read of the object so far.
            columns: The columns of its table.
        """
        is_read = progress.through is not None and STAMP in progress.selected
        if columns.entity in self._alone and self._end_after < float("inf"):
            return is_read and (progress.changes_at or 0.0) < self._end_after
        every = self._stretch * self._changes_every(columns)
        return is_read and self._is_due(progress.changes_at, every)

    def stretch(self, objects: Iterable[Columns], limit: int) -> None:
        """Make the intervals between reads of changed records fit the org's limit of API calls.

        Args:
            objects: The columns of each object.
            limit: Number of API calls that the org allows in 24 hours.
        """
        self._stretch = stretch_of([self._changes_every(columns) for columns in objects], limit)

    def _changes_every(self, columns: Columns) -> float:
        return changes_every(
            self._drift,
            self._poll,
            is_alone=columns.entity in self._alone,
            has_derived=bool(columns.unreported),
        )

    def _is_due(self, last: float | None, every: float) -> bool:
        if not every:
            return False
        if last is None:
            return True
        if last >= self._end_after:
            return False
        # A time in the future is that of a wrong clock.
        return last > self._time.now.wall or self._time.is_past_wall(last + every)


def changes_every(drift: float, poll: float, *, is_alone: bool, has_derived: bool) -> float:
    """Return the interval in seconds between reads of changed records; 0 for never.

    Args:
        drift: See `MirrorSettings.drift`.
        poll: See `MirrorSettings.poll`.
        is_alone: Whether the object has no events.
        has_derived: Whether it has fields that no event reports.
    """
    if is_alone:
        return poll
    return min(drift, DERIVED_EVERY) if has_derived else drift


def stretch_of(intervals: Iterable[float], limit: int) -> float:
    """Return the factor by which the intervals grow to fit the org's limit of API calls.

    Args:
        intervals: Interval of each object, in seconds; 0 for never.
        limit: Number of API calls that the org allows in 24 hours.
    """
    calls = sum(_CALLS * DAY / each for each in intervals if each)
    return max(1.0, calls / (MOST_SHARE * limit))


class Rounds:
    """Gives each object its turn to be read."""

    def __init__(self) -> None:
        self._served: set[tuple[str, str]] = set()  # in this round

    def next(self, reads: Sequence[Wanted]) -> Wanted:
        """Return the read that begins next.

        Args:
            reads: The reads that can begin now, at most one of queued records, one of changed
                records and one sweep for each object. Within a round, they begin in this order.
        """
        left = [each for each in reads if _lane(each) not in self._served]
        if not left:  # the round is over
            self._served.clear()
            left = list(reads)
        self._served.add(_lane(left[0]))
        return left[0]


def _lane(read: Wanted) -> tuple[str, str]:
    return read.entity, "object" if read.kind == "ids" else read.kind


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
