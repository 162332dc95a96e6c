"""What a mirror does next.

All decisions about what to do when are made here and in the modules that only this one combines,
from what the job (job.py) hands in. One unit of work is done at a time: answer signals, look at
what is due, apply events, merge pieces of a read, or begin a read, which runs in the background.

Invariants: no waiting work is passed over for ever, whatever else arrives; a read begins only if
its as-of is known (reads.py) and the budget allows it; an error of one object stops no other one.
This module is pure: no Spark, no I/O, no clock, no threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sfpubsub.errors import ConfigurationError, SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.ingest.selection import Selection
from sfpubsub.spark.ingest.sidecars import KeptGap
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.absences import Safeguards
from sfpubsub.spark.mirror.actions import Action, Decision, End, Idle
from sfpubsub.spark.mirror.deadlines import Now
from sfpubsub.spark.mirror.due_reads import Periodic
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.mirror_state import MirrorState, Stored, TablesState
from sfpubsub.spark.mirror.objects_schedule import ObjectsSchedule
from sfpubsub.spark.mirror.progress import ObjectProgress
from sfpubsub.spark.mirror.reads_schedule import ReadsSchedule
from sfpubsub.spark.mirror.selection_watch import SelectionWatch
from sfpubsub.spark.mirror.settings import MirrorSettings
from sfpubsub.spark.mirror.signals import Signals
from sfpubsub.spark.mirror.status import ObjectStatus, state_of
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.mirror.waiting import Why
from sfpubsub.types import Gap

# Steps with events before waiting pieces are merged. A step takes a second or two, whatever the
# number of its events; a merge takes a few seconds, so the two get about the same time.
EVENTS_IN_A_ROW = 2


class Schedule:
    """The decisions of one mirror. Not thread-safe.

    The job hands in what happens, and calls `next`. It carries out each action that `next` returns,
    and calls `done` or `failed` before it calls `next` again.

    Args:
        settings: The settings of the mirror.
        objects: API names of the mirrored objects.
        named: Those that were named at this start.
        stored: What earlier processes have stored.
        now: The present moment.
        looks: Whether the channel can be asked for its members.
        safeguards: What stands between an absence and a deleted row.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        objects: Iterable[str],
        named: Iterable[str],
        stored: Stored,
        now: Now,
        *,
        looks: bool = False,
        safeguards: Safeguards | None = None,
    ) -> None:
        state = MirrorState(settings, objects, stored, now, safeguards or Safeguards())
        self._state = state
        self._periodic = Periodic(
            state.time,
            settings.refresh_formulas,
            settings.sweep,
            settings.drift,
            settings.poll,
            state.alone,
        )
        self._objects = ObjectsSchedule(state, self._periodic, named)
        self._reads = ReadsSchedule(state, self._periodic)
        self._selection: SelectionWatch | None = None
        if looks:
            self._selection = SelectionWatch(
                stored.members,
                state.waiting,
                state.time,
                state.reread,
                self._report_gap,
                None if settings.by == "events" else state.alone,
            )
        self._signals = Signals(state, self._selection)
        self._events_in_a_row = 0  # steps with events since the last merge
        self._is_held = False  # whether nothing is done until the org may be asked again
        self._is_once = False
        self._work: Decision[bool] | None = None
        self._result: object = None
        self._error: SfPubSubError | None = None

    # What has happened.

    def resume(self, name: str, markers: Sequence[Marker]) -> None:
        """Take over an object and the pieces in its read log. Call it for each at the start."""
        self._objects.resume(name, markers)

    def read_without_events(self, names: Iterable[str]) -> None:
        """Take the objects whose events the channel does not deliver, if `MirrorSettings.by` allows
        that. Call it before `next`; later, `members_found` tells.
        """
        self._state.alone.update(names)

    def end_once_settled(self) -> None:
        """Make `next` return `End` when all work is done (`is_settled`)."""
        self._is_once = True
        self._periodic.end_after(self._state.time.now.wall)

    def observe(self, stream: StreamState, tables: TablesState, calls: int) -> None:
        """Take the present state.

        Args:
            stream: The state of the stream.
            tables: The state of the tables, after the last action.
            calls: Number of API calls that this process has made so far.
        """
        self._state.stream, self._state.tables = stream, tables
        self._state.budget.count(calls)

    def piece_stored(self, name: str, marker: Marker) -> None:
        """Take a piece of the running read, which is durable in the read log."""
        self._state.pieces.stored(name, marker)

    def read_ended(self, name: str, error: BaseException | None) -> None:
        """Take the end of the running read. *error* is None if it succeeded, or was stopped."""
        self._reads.ended = name, error

    def members_found(self, answer: Selection | SfPubSubError) -> None:
        """Take the result of `LookAtMembers`, or its error."""
        if self._selection is not None:
            self._selection.found(answer)

    def done(self, result: object) -> None:
        """Take the result of the last action."""
        self._result = result

    def failed(self, error: SfPubSubError) -> None:
        """Take the error of the last action."""
        self._error = error

    # What to do.

    def next(self, now: Now) -> Action | Idle | End:
        """Return what to do next.

        Raises:
            SfPubSubError: The mirror cannot continue.
        """
        self._state.time.now = now
        has_acted = self._work is not None
        while True:
            if self._work is None:
                self._state.time.next = float("inf")
                self._work = self._do_next()
            result, self._result = self._result, None
            error, self._error = self._error, None
            try:
                return self._work.send(result) if error is None else self._work.throw(error)
            except StopIteration as end:
                self._work = None
                # What is due when is only known after a round in which nothing has changed.
                if not end.value and not has_acted:
                    return self._nothing_to_do()
            except SfPubSubError as failure:
                self._work = None
                if scope_of(failure) is not Scope.ORG:
                    raise
                # A describe request failed, for example after an event with a new schema.
                self._is_held = True
                self._state.failures.failed_all(failure)
            has_acted = False

    def _nothing_to_do(self) -> Idle | End:
        state = self._state
        if self._is_once and self.is_settled:
            if gone := [state.waiting.of(name)[Why.GONE].text for name in state.gone]:
                raise ConfigurationError("; ".join(gone))
            return End()
        if self._is_once and self._reads.is_idle and self.is_through:
            state.rights.check_present(state.objects)
        return Idle(state.time.next)

    def _do_next(self) -> Decision[bool]:
        """Do the next unit of work, and return whether there was one."""
        state = self._state
        if self._is_held and not state.failures.may_ask:
            return False
        self._is_held = False
        yield from self._signals.answer()
        stream = state.stream
        if self._signals.is_paused or stream is None:
            return False
        if state.tables.is_between:
            return (yield from state.apply_events(stream))
        for name in list(state.dropping):
            yield from state.drop(name)
        if (yield from self._objects.check_next()):
            return True
        if not stream.is_anchored:
            return state.may_have_events(stream) and (yield from state.apply_events(stream))
        return (
            (yield from self._reread_for_gaps(stream.gaps))
            or (yield from self._watch_selection(stream))
            or (yield from self._reads.end())
            or (yield from self._objects.describe_next())
            or (yield from self._objects.request_next())
            or (yield from self._watch_rights())
            or (yield from self._reads.learn_limit())
            or (yield from self._reads.begin())  # it takes no time
            or (yield from self._apply_or_merge(stream))
        )

    def _apply_or_merge(self, stream: StreamState) -> Decision[bool]:
        """Apply events, or merge pieces. All kinds of work can arrive without end: they alternate.

        Returns:
            Whether there was anything to do.
        """
        state = self._state
        has_turn = not len(state.pieces) or self._events_in_a_row < EVENTS_IN_A_ROW
        if has_turn and state.may_have_events(stream) and (yield from state.apply_events(stream)):
            self._events_in_a_row += 1
            return True
        if not len(state.pieces):
            return False
        self._events_in_a_row = 0
        return (yield from self._reads.merge())

    # Lost events.

    def _new_gaps(self, gaps: Iterable[KeptGap]) -> list[KeptGap]:
        """Return the gaps that have not led to rereads yet."""
        return [gap for gap in gaps if gap.name not in self._state.gaps]

    def _reread_for_gaps(self, gaps: Iterable[KeptGap]) -> Decision[bool]:
        """Request rereads of the objects that new gaps concern: of all, or those they name.

        Returns:
            Whether there were new gaps.
        """
        new = self._new_gaps(gaps)
        if not new:
            return False
        named = {gap.entity for gap in new}
        for name in self._state.objects:
            if None in named or name in named:
                yield do.Say(f"{name}: events may be missing, so all records will be reread")
                yield from self._state.reread(name)
        yield from self._keep_gaps([gap.name for gap in new])
        return True

    def _report_gap(self, gap: Gap) -> Decision[None]:
        """Store and report a gap of one object, and request its reread.

        The stream stores the gap too, but not at once.
        """
        names = yield do.StoreGap(gap)
        if gap.entity is not None:
            yield from self._state.reread(gap.entity)
        yield from self._keep_gaps(names)
        yield do.ReportGap(gap)

    def _keep_gaps(self, names: Iterable[str]) -> Decision[None]:
        gaps = self._state.gaps
        gaps += [name for name in names if name not in gaps]
        yield do.KeepGaps(tuple(gaps))

    def _watch_selection(self, stream: StreamState) -> Decision[bool]:
        if self._selection is None:
            return False
        objects, name, position = self._state.objects, stream.name, stream.position
        return (yield from self._selection.advance(objects, name, position))

    def _watch_rights(self) -> Decision[bool]:
        """Check the rights if that is due; return whether the org has answered."""
        state = self._state
        present = [name for name in state.objects if name not in state.gone]
        if not state.safeguards.rights or not state.rights.is_due(present):
            return False
        return (yield from state.check_rights(present))

    # What the mirror has reached.

    @property
    def objects(self) -> list[str]:
        """Names of the mirrored objects."""
        return list(self._state.objects)

    @property
    def pieces(self) -> int:
        """Number of pieces of reads that wait to be merged."""
        return len(self._state.pieces)

    def progress(self, name: str) -> ObjectProgress:
        """Return what the mirror has read of an object."""
        return self._state.progress(name)

    @property
    def is_through(self) -> bool:
        """Whether all rows that were written to the raw table have been applied."""
        stream = self._state.stream
        return stream is not None and self._state.is_through(stream)

    @property
    def is_settled(self) -> bool:
        """Whether all events are applied, and no read is requested, due or running.

        Use it after `next` has returned `Idle`.
        """
        state, stream = self._state, self._state.stream
        present = [name for name in state.objects if name not in state.gone]
        return (
            stream is not None
            and stream.is_anchored
            and stream.is_caught_up
            and not stream.has_open_gap
            and not self._new_gaps(stream.gaps)
            and (self._selection is None or self._selection.is_done)
            and self.is_through
            and self._reads.is_idle
            and self._objects.to_describe() is None
            and not any(each.entity in present for each in self._reads.periodic())
            and not any(Why.READ in state.waiting.of(name) for name in state.objects)
            and all(
                self.progress(name).newest is not None
                and not state.tables.entries.get(name)
                and name not in state.unchecked
                and state.is_visible(name)
                for name in present
            )
        )

    def statuses(
        self, oldest: Mapping[str, float], parked: Mapping[str, int]
    ) -> tuple[ObjectStatus, ...]:
        """Return the state of each object.

        Args:
            oldest: When the oldest open entry of each object was added.
            parked: Number of rows of each object whose deletion waits for a confirmation.
        """
        state, found = self._state, []
        all_wait = state.failures.reason or self._reads.over_budget
        for name in state.objects:
            progress, entries = self.progress(name), state.tables.entries.get(name, ())
            waits = {str(why): wait.text for why, wait in state.waiting.of(name).items()}
            if all_wait is not None and (waits or entries or progress.newest is None):
                waits.setdefault(str(Why.READ), all_wait)
            if self._signals.is_paused:
                waits["paused"] = "the mirror is paused until sfpubsub mirror signal --resume"
            is_reading = state.pieces.running == name or state.pieces.has(name)
            status = ObjectStatus(
                name,
                state_of(waits, is_read=progress.newest is not None, is_reading=is_reading),
                waits,
                records=progress.records,
                queued=len(entries),
                oldest_entry=oldest.get(name),
                read_at=progress.read_at,
                parked_rows=parked.get(name, 0),
            )
            found.append(status)
        return tuple(found)
