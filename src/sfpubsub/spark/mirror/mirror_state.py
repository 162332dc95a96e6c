"""What a mirror's schedule knows, and the decisions that all its parts share.

This module is pure: no Spark, no I/O, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sfpubsub.errors import SfPubSubError
from sfpubsub.rest.grants import Held
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.absences import Safeguards
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.budget import DAY, Budget
from sfpubsub.spark.mirror.deadlines import Deadlines, Now
from sfpubsub.spark.mirror.failures import Failures, can_resume
from sfpubsub.spark.mirror.notes import Ask, Note
from sfpubsub.spark.mirror.pieces import Pieces
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.mirror.rights_watch import RightsWatch
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.records.columns import Columns
from sfpubsub.spark.records.fold import Reason
from sfpubsub.spark.records.reads import AsOf, DurableState, Entry, as_of, changed_from

# Seconds between checks of the raw table while the stream writes nothing: rows may be waiting for
# their schemas, and other processes may write to the table.
_LOOK_EVERY = 10.0

# Overlap of the first read of changed records in a day of an object without events, in seconds: it
# finds what has become visible long after its stamp.
LONG_OVERLAP = 2 * DAY


@dataclass(frozen=True)
class Stored:
    """What earlier processes have stored in the mirror's target, as found at the start."""

    progress: Mapping[str, ObjectProgress] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    """What is known about the user's rights, by object."""
    members: Mapping[str, str | None] = field(default_factory=dict)
    """What is known about the channel's members; see `selection.compared`."""
    gaps: Sequence[str] = ()
    """Names of the gaps for which rereads were requested."""
    calls: Sequence[tuple[float, int]] = ()
    """See `Budget.used`."""


@dataclass(frozen=True)
class TablesState:
    """The state of the mirror's tables. Only actions of the schedule change it."""

    applied_seq: int = -1
    """``ingest_seq`` of the newest raw row that was applied."""
    number: int = 0
    """Number of the newest step."""
    is_between: bool = False
    """Whether a step must be finished before any other."""
    is_waiting: bool = False
    """Whether rows of the raw table wait for their schemas."""
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    """The open entries of the reread queue by object, oldest first."""
    columns: Mapping[str, Columns] = field(default_factory=dict)
    """The columns of each object's table; an object whose columns are not known is left out."""


class MirrorState:
    """The state of one mirror's schedule. Not thread-safe.

    Args:
        settings: The settings of the mirror.
        objects: API names of the mirrored objects.
        stored: What earlier processes have stored.
        now: The present moment.
        safeguards: What stands between an absence and a deleted row.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        objects: Iterable[str],
        stored: Stored,
        now: Now,
        safeguards: Safeguards,
    ) -> None:
        self.objects: list[str] = list(objects)
        self.tables: TablesState = TablesState()
        self.stream: StreamState | None = None
        self.safeguards: Safeguards = safeguards
        self.time: Deadlines = Deadlines(now)
        self.waiting: Waiting = Waiting(self.time)
        self.failures: Failures = Failures(self.waiting, self.time)
        self.budget: Budget = Budget(settings.api_calls_per_day, self.time, stored.calls)
        self.pieces: Pieces = Pieces()
        self.gaps: list[str] = list(stored.gaps)
        """Names of the gaps that need no further rereads."""
        self.rights: RightsWatch = RightsWatch(
            stored.held, self.gaps, self.waiting, self.time, self._reread_without_absences
        )
        self.unchecked: list[str] = []
        """Objects about which the org has not answered yet, or which it does not have."""
        self.dropping: set[str] = set()
        """Objects whose read was given up, and is still ending."""
        self.unanswered: set[str] = set()
        """Those of them whose read a signal has given up. They begin no other one."""
        self.described_at: dict[str, float] = {}
        """When each object was described by this process, on the monotonic clock."""
        self.alone: set[str] = set()
        """Objects without events: only their stamps tell about changes."""
        if settings.by == "auto":
            self.alone.update(name for name, member in stored.members.items() if member is None)
        elif settings.by == "modstamp":
            self.alone.update(self.objects)
        self._has_events = settings.by != "modstamp"
        self._overlap = settings.overlap
        self._margin = settings.margin
        self._progress = dict(stored.progress)
        self._durable: list[DurableState] = []
        self._written: int | None = None
        self._looked_at = float("-inf")

    def progress(self, name: str) -> ObjectProgress:
        """Return what the mirror has read of an object."""
        return self._progress.setdefault(name, ObjectProgress())

    @property
    def gone(self) -> list[str]:
        """The objects that the org does not have."""
        return [name for name in self.objects if Why.GONE in self.waiting.of(name)]

    def is_visible(self, name: str) -> bool:
        """Return whether the user may see every record of an object, as of the last check."""
        return not self.safeguards.rights or self.rights.is_held(name)

    # Steps.

    def may_have_events(self, stream: StreamState) -> bool:
        """Return whether the raw table may contain events that are not applied.

        After it was found to have no more events, it is usually not read until more are written.
        """
        tables = self.tables
        must = stream.written != self._written or tables.is_between or tables.is_waiting
        return must or self.time.is_past(self._looked_at + _LOOK_EVERY)

    def is_through(self, stream: StreamState) -> bool:
        """Return whether all rows that were written to the raw table have been applied."""
        return stream.written == self._written and not self.tables.is_waiting

    def apply_events(self, stream: StreamState) -> Decision[bool]:
        """Apply the next events, and return whether there were any."""
        written, now = stream.written, self.time.now.clock
        if (yield do.ApplyEvents()):
            self._record_durable()
            return True
        if not self._durable:  # reads need to know what was durable when this process began
            self._record_durable()
        self._written, self._looked_at = written, now
        return False

    def take(self, note: Note) -> Decision[None]:
        """Perform the step that *note* describes."""
        yield do.TakeStep(note, self.budget.used)
        self.progress(note.entity).take(note)
        self._record_durable()

    def request(
        self,
        name: str,
        reason: Reason,
        ids: Sequence[str] | None = None,
        *,
        forgets_absences: bool = False,
    ) -> Decision[None]:
        """Request a reread of some records of an object, or of all; see `notes.Ask`."""
        seq, wall = self.tables.applied_seq, self.time.now.wall
        record_ids = None if ids is None else tuple(ids)
        yield from self.take(
            Ask(name, record_ids, reason, seq, wall, forgets_absences=forgets_absences)
        )

    def reread(self, name: str) -> Decision[None]:
        """Request a reread of all records of an object, of which changes may be missing."""
        yield from self.request(name, Reason.GAP)

    def _reread_without_absences(self, name: str) -> Decision[None]:
        yield from self.request(name, Reason.GAP, forgets_absences=True)

    def changed_from(self, name: str) -> datetime:
        """Return the lowest stamp that a read of an object's changed records asks for.

        Call this only if all its records, or changed ones, were read before.
        """
        through = self.progress(name).through
        if through is None:
            raise AssertionError("bug in sfpubsub: the object was never read")
        is_long = name in self.alone and self._is_first_of_day(name)
        overlap = max(self._overlap, LONG_OVERLAP) if is_long else self._overlap
        return changed_from(datetime.fromtimestamp(through, UTC), overlap, self._margin)

    def needs_stamps(self, name: str) -> bool:
        """Return whether an object can only be mirrored if its stamps can be read."""
        return name in self.alone or not self._has_events

    def _is_first_of_day(self, name: str) -> bool:
        at = self.progress(name).changes_at
        return at is None or at // DAY != self.time.now.wall // DAY

    def as_of_now(self) -> AsOf | None:
        """Return what a read that begins now is guaranteed to contain (`reads.as_of`).

        Return None if it is too early for a read.
        """
        for each in self._durable:
            if not self.time.is_past(each.time + self._margin):
                break
        return as_of(self._durable, self.time.now.clock, self._margin)

    def _record_durable(self) -> None:
        """Record the state that the tables have durably reached by now."""
        durable, now = AsOf(self.tables.applied_seq, self.tables.number), self.time.now.clock
        # Of the states older than the margin, only the newest is still needed.
        old = [each for each in self._durable if each.time + self._margin <= now]
        self._durable = [*old[-1:], *self._durable[len(old) :], DurableState(now, durable)]

    # Requests to the org.

    def describe(self, name: str) -> Decision[None]:
        """Describe an object."""
        yield do.Describe(name)
        self.described_at[name] = self.time.now.clock

    def check_rights(self, names: Sequence[str]) -> Decision[bool]:
        """Check the user's rights now. Return False if the org cannot be asked."""
        if not self.failures.may_ask:
            return False
        position = None if self.stream is None else self.stream.position
        try:
            yield from self.rights.check(names, position)
        except SfPubSubError as error:
            if scope_of(error) is Scope.MIRROR:
                raise
            self.failures.failed_all(error)
            return False
        return True

    def fail(self, name: str, error: BaseException) -> Decision[None]:
        """Hold back the object, or all requests, after an error; or raise the error."""
        if not isinstance(error, SfPubSubError) or scope_of(error) is Scope.MIRROR:
            raise error
        if not can_resume(error):
            self.pieces.give_up(name)
            self.described_at.pop(name, None)  # the read may have named a field that is gone
        if self.failures.failed(name, error) is Scope.GONE:
            yield from self._park(name)

    def _park(self, name: str) -> Decision[None]:
        """Keep an object that is gone as it is, until the org has it again."""
        if name not in self.unchecked:
            self.unchecked.append(name)
        yield from self.drop(name)
        entries = self.tables.entries.get(name, ())
        if not any(each.record_id is None and each.cue.reason is Reason.GAP for each in entries):
            yield from self.reread(name)  # durable, so that a new process reads it too

    def drop(self, name: str) -> Decision[bool]:
        """Give up an object's read. Return whether that is done, or the read is still ending."""
        if self.pieces.running == name:
            if name not in self.dropping:
                self.dropping.add(name)
                yield do.StopRead()
            return False
        self.dropping.discard(name)
        self.pieces.drop(name)
        yield do.ClearLog(name)
        return True
