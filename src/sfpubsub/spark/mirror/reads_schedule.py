"""Which read of the org begins, and how its pieces are merged.

Reads run one at a time in the background. The pieces of a read of records are merged as they
arrive; those of a sweep (a read of all record ids) are compared with the table all together. This
module is pure: no Spark, no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sfpubsub.errors import SfPubSubError
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.mirror import actions as do
from sfpubsub.spark.mirror.actions import Decision
from sfpubsub.spark.mirror.budget import DAY
from sfpubsub.spark.mirror.due_reads import (
    SMALLEST_LIMIT,
    Periodic,
    Rounds,
    Wanted,
    smallest_first,
    wanted_reads,
)
from sfpubsub.spark.mirror.log import Marker, id_range
from sfpubsub.spark.mirror.mirror_state import MirrorState
from sfpubsub.spark.mirror.notes import Merge, Sweep
from sfpubsub.spark.records.reads import AsOf, Read


class ReadsSchedule:
    """The reads of one mirror. Not thread-safe.

    Args:
        state: What the schedule knows.
        periodic: Decides which sweeps are due.
    """

    def __init__(self, state: MirrorState, periodic: Periodic) -> None:
        self._state = state
        self._periodic = periodic
        self._rounds = Rounds()
        self._is_over_budget = False
        self._limit = SMALLEST_LIMIT
        self._limit_at = float("-inf")
        self.ended: tuple[str, BaseException | None] | None = None
        """The object of the read that has ended, and its error if it failed, until `end`."""

    @property
    def is_idle(self) -> bool:
        """Whether no read is running, and no piece of one waits to be merged."""
        pieces = self._state.pieces
        return pieces.running is None and not len(pieces)

    @property
    def over_budget(self) -> str | None:
        """Why reads wait for the API budget; None if they do not."""
        return (
            f"{self._state.budget.most} API calls were used in 24 hours; reads wait until the "
            f"budget allows more"
            if self._is_over_budget
            else None
        )

    def periodic(self) -> list[Wanted]:
        """Return the sweeps, and the reads of changed records, that are due."""
        state = self._state
        visible = [name for name in state.objects if state.is_visible(name)]
        due = [n for n in visible if self._periodic.is_sweep_due(n, state.progress(n))]
        found = [Wanted(name, "sweep") for name in due]
        self._periodic.stretch(state.tables.columns.values(), self._limit)
        for name in visible:
            columns = state.tables.columns.get(name)
            if columns and self._periodic.are_changes_due(state.progress(name), columns):
                first, has_events = state.changed_from(name), name not in state.alone
                found.append(Wanted(name, "changes", stamps_from=first, has_events=has_events))
        return found

    def learn_limit(self) -> Decision[bool]:
        """Ask for the org's limit of API calls if that is due; return whether it was asked."""
        state = self._state
        is_due = self._periodic.reads_changes and state.time.is_past(self._limit_at + DAY)
        if not is_due or not state.failures.may_ask or not state.budget.may_read:
            return False
        try:
            self._limit = yield do.FindLimit()
        except SfPubSubError as error:
            if scope_of(error) is Scope.MIRROR:
                raise
            if scope_of(error) is Scope.ORG:
                state.failures.failed_all(error)
                return False
            # The user may not ask for it.
            self._limit = SMALLEST_LIMIT
        self._limit_at = state.time.now.clock
        return True

    def begin(self) -> Decision[bool]:
        """Begin the next read, and return whether one has begun or failed to begin."""
        as_of = self._state.as_of_now()
        reads = [] if as_of is None else self._possible(as_of)
        if as_of is None or not reads:
            return False
        if not self._state.budget.may_read:
            if not self._is_over_budget:
                self._is_over_budget = True
                yield do.Say(str(self.over_budget))
            return False
        self._is_over_budget = False
        yield from self._begin(self._rounds.next(reads), as_of)
        return True

    def _possible(self, as_of: AsOf) -> list[Wanted]:
        """Return the reads that can begin now; interrupted ones come first."""
        state = self._state
        if state.pieces.running is not None or not state.failures.may_ask:
            return []
        names = [
            name
            for name in state.objects
            if not state.pieces.has(name)
            and name not in state.unanswered
            and state.failures.may_read(name)
            and state.is_visible(name)
        ]
        for name in names:
            last = state.pieces.unfinished(name)
            epoch = state.rights.epoch(name)
            if last is not None and (last.epoch != epoch or not last.can_resume):
                state.pieces.give_up(name)
        left = {name: state.pieces.unfinished(name) for name in names}
        found = [Wanted(name, last.kind) for name, last in left.items() if last is not None]
        records = {name: state.progress(name).records for name in names}
        others = smallest_first([name for name, last in left.items() if last is None], records)
        found += wanted_reads(state.tables.entries, others, as_of)
        return found + [each for each in self.periodic() if each.entity in others]

    def _begin(self, wanted: Wanted, as_of: AsOf) -> Decision[None]:
        """Begin a read, or resume it."""
        state, name = self._state, wanted.entity
        last = state.pieces.unfinished(name)
        if last is not None:
            yield do.Say(f"{name}: resuming a read after {last.rows} records")
        elif wanted.kind in ("object", "sweep"):
            yield do.Say(f"{name}: reading all {'ids' if wanted.kind == 'sweep' else 'records'}")
        try:
            is_whole = wanted.kind in ("object", "sweep")
            if (last is None and is_whole) or name not in state.described_at:
                yield from state.describe(name)
            state.pieces.running = name
            merged, epoch = state.progress(name).merged, state.rights.epoch(name)
            yield do.StartRead(wanted, as_of, last, merged, epoch, state.time.now.wall)
        except SfPubSubError as error:
            yield from state.fail(name, error)

    def end(self) -> Decision[bool]:
        """Handle the end of a read. Return whether a read has ended since the last call."""
        if self.ended is None:
            return False
        (name, error), self.ended = self.ended, None
        self._state.pieces.running = None
        if error is None:
            self._state.failures.succeeded(name)
        else:
            yield from self._state.fail(name, error)
        return True

    def merge(self) -> Decision[bool]:
        """Merge the pieces of the read that has waited longest.

        Return False if the org has to be asked before, and cannot be asked now.
        """
        state = self._state
        name, markers = state.pieces.first()
        do_count = yield from self._absences_count(name, markers)
        if do_count is None:
            return False
        last = markers[-1]
        if last.kind == "sweep":
            if do_count and last.is_last:  # compared as a whole, after its last piece
                seq, wall = state.tables.applied_seq, state.time.now.wall
                yield from state.take(
                    Sweep(name, last.read, last.piece, seq, wall, records=last.rows)
                )
        elif do_count or last.kind != "ids":  # or it is read again when the right is back
            yield from self._merge(name, markers, ends=do_count)
        state.pieces.merged(len(markers))
        return True

    def _merge(self, name: str, markers: Sequence[Marker], *, ends: bool) -> Decision[None]:
        """Merge some pieces of a read.

        Args:
            name: The object.
            markers: The pieces.
            ends: Whether the absences of the read count, after its last piece.
        """
        state, marker = self._state, markers[-1]
        progress, now = state.progress(name), state.time.now.wall
        since = yield do.FindOrder(name, marker.as_of.ingest_seq)
        new = [each for each in markers if each.piece > progress.merged]
        size = sum(each.size for each in new)
        merge = Merge(
            name,
            marker.kind,
            new[0].piece if new else marker.piece,
            marker.piece,
            Read(marker.as_of, since, None),
            progress.newest,
            is_last=False,
            applied_seq=state.tables.applied_seq,
            at=now,
            size=size,
            ids=id_range(new),
            filled=marker.filled,
            through=marker.through if marker.is_last and marker.kind == "changes" else None,
            began=marker.at,
            has_events=name not in state.alone,
        )
        if size:
            yield from state.take(merge)
            if marker.kind == "object":
                yield do.Say(f"{name}: {_so_far(marker)} merged")
        elif merge.through is not None:
            progress.read_through(merge.through, merge.began)
        if marker.is_last and marker.kind == "object" and ends:
            yield from state.take(
                replace(
                    merge,
                    first=marker.read,
                    read=replace(merge.read, until=marker.until),
                    is_last=True,
                    ids=None,
                    selected=marker.selected,
                    records=marker.rows - marker.deleted,
                    through=marker.through,
                )
            )
            yield do.Say(f"{name}: all {marker.rows} records read and merged")

    def _absences_count(self, name: str, markers: Sequence[Marker]) -> Decision[bool | None]:
        """Return whether the absences of a read count whose last piece is ready to be merged.

        True if the pieces contain no absences. None if the org cannot be asked now.
        """
        state, last, safeguards = self._state, markers[-1], self._state.safeguards
        has_absences = any(each.absent for each in markers)
        if last.kind in ("object", "sweep"):
            has_absences = last.is_last
        if not has_absences or not (safeguards.rights or safeguards.twice):
            return True
        if not (yield from state.check_rights([name])):
            return None
        if last.kind != "ids" and not safeguards.rights:
            return True  # such a read deletes nothing if two are needed
        return state.rights.stands(name, last.epoch)


def _so_far(marker: Marker) -> str:
    if marker.total is None or marker.is_last:
        return f"{marker.rows} records"
    return f"{marker.rows} of about {marker.total} records"
