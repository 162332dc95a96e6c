"""The mirror job: one thread merges the events and the results of reads into the tables.

The caller's thread runs every step of the engine (tables/steps.py): it applies events, merges the
results of reads, and requests new reads. A second thread reads the org and writes the results to
the read log (`ReadLog`). A third thread writes the event stream to the raw table. A read is
guaranteed to contain all changes that the tables contained one margin (`MirrorSettings.margin`, the
longest lag assumed for the org's responses) before the read was requested. Invariant: after a kill
at any point, the next process continues from the tables alone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import SparkSession

from sfpubsub.auth.session import org_id_of
from sfpubsub.errors import (
    ConfigurationError,
    SfPubSubError,
    WriteError,
)
from sfpubsub.rest import ObjectDescription, OrgReader
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.ingest.selection import Selection
from sfpubsub.spark.ingest.sidecars import KeptGap, Sidecars
from sfpubsub.spark.mirror import planning
from sfpubsub.spark.mirror.absences import Safeguards
from sfpubsub.spark.mirror.agenda import Agenda
from sfpubsub.spark.mirror.backlog import Backlog
from sfpubsub.spark.mirror.budget import Budget
from sfpubsub.spark.mirror.failures import Failures, can_resume
from sfpubsub.spark.mirror.fetching import Fetching
from sfpubsub.spark.mirror.hand import StepRunner
from sfpubsub.spark.mirror.ledger import Ledger
from sfpubsub.spark.mirror.log import Marker, id_range
from sfpubsub.spark.mirror.mailbox import Mailbox, Signal
from sfpubsub.spark.mirror.notes import Ask, Merge, Remove, Sweep
from sfpubsub.spark.mirror.planning import Wanted
from sfpubsub.spark.mirror.reading import OrgReads, Reading
from sfpubsub.spark.mirror.rights import Rights, check_object, check_rights
from sfpubsub.spark.mirror.selection_watch import SelectionWatch
from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
from sfpubsub.spark.mirror.signals import Signals
from sfpubsub.spark.mirror.since import Since
from sfpubsub.spark.mirror.status import ObjectStatus, state_of
from sfpubsub.spark.mirror.stream import StreamState
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.mirror.turns import Turns
from sfpubsub.spark.mirror.waiting import Waiting, Why
from sfpubsub.spark.records.fold import Reason
from sfpubsub.spark.records.reads import AsOf, Read
from sfpubsub.spark.records.step import Follower
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.spark.tables.identity import event_name_of
from sfpubsub.types import Gap, ReplayId

_log = logging.getLogger("sfpubsub.spark")

# Seconds between checks of the stream when there is nothing to do.
_POLL = 0.25

# Seconds between checks of the mailbox; each check lists a directory.
_SIGNALS_EVERY = 2.0


# Why an object waits when a mirror begins.
_UNCHECKED = "the org has not yet answered whether the user may see every record of the object"


class MirrorJob:
    """Mirrors objects of an org into one target. A context manager; not thread-safe.

    Args:
        spark: A classic Spark session with the format's jars.
        reader: Reads the org.
        raw: The raw table that a `MirrorStream` writes.
        to: Location of the tables: a directory, written with a slash (``./lake``) or as a `Path`; a
            URL; or ``catalog.schema``.
        objects: API names of the objects to mirror, in addition to those of earlier runs.
        format: ``delta`` or ``iceberg``.
        settings: All other settings.
        selection: Asks the org for the members of the stream's channel; called in a thread of its
            own. With None, an object that is removed from the channel goes unnoticed.
        report_gap: Stores and reports a gap that the mirror finds (`MirrorStream.report_gap`). With
            None, it is only logged.
        on_message: Called with each progress message.
        safeguards: What stands between an absence and a deleted row. Tests take parts out.
        clock: Monotonic clock in seconds, for measuring `MirrorSettings.margin`.
        wall: Wall clock in seconds since the epoch, for schedules.

    Raises:
        ConfigurationError: The raw table does not exist, or the target contains other tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        reader: OrgReader,
        raw: Destination,
        to: str | os.PathLike[str],
        objects: Sequence[str],
        *,
        format: str = "delta",  # noqa: A002  # named as in Spark
        settings: MirrorSettings | None = None,
        selection: Callable[[], Selection] | None = None,
        report_gap: Callable[[Gap], object] | None = None,
        on_message: Callable[[str], None] | None = None,
        safeguards: Safeguards | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        Destination.of_tables(to, format)  # fail before the org is asked for its id
        self.settings: MirrorSettings = settings or MirrorSettings()
        self._reader = reader
        self._say = on_message or (lambda _: None)
        self._safeguards = safeguards or Safeguards()
        self._clock, self._wall = clock, wall
        self._objects = list(dict.fromkeys(objects))
        self._named = frozenset(objects)
        self._unchecked: list[str] = []
        self._dropping: set[str] = set()
        self._unanswered: set[str] = set()  # objects whose read a signal ends; they begin none
        self._described: dict[str, ObjectDescription] = {}
        self._described_at: dict[str, float] = {}
        self._stopping = threading.Event()
        self._fetching = Fetching(self._stopping)
        self._report = MirrorReport()
        self._agenda = Agenda(self.settings.refresh_formulas, self.settings.sweep)
        self._turns = Turns()
        self._gaps: set[str] = set()
        self.waiting: Waiting = Waiting()  # used only by the mirror's thread; `status` tells others
        self._failures = Failures(self.waiting)
        self._backlog: Backlog | None = None
        self._statuses: tuple[ObjectStatus, ...] = ()
        self._is_logged = False
        self._is_held = False
        self._signals_at = float("-inf")
        self._tell_gap = report_gap or (lambda gap: _log.warning("%s", gap))
        self._position: ReplayId | None = None
        self._shown: dict[str, int] | None = None
        with ExitStack() as opened:
            self._engine = opened.enter_context(
                EventTables(
                    spark,
                    raw.address,
                    to,
                    format=format,
                    raw_format=raw.format,
                    objects=self._objects,
                    followers=[self._follower],
                    mirror=True,
                    org_id=org_id_of(reader.sessions.get().tenant_id),
                    clock=wall,
                )
            )
            opened.enter_context(self._fetching)
            target = self._engine.target
            self._objects += [name for name in self._engine.objects if name not in self._objects]
            self._ledger = Ledger(target)
            newest = self._engine.newest
            used = [] if newest is None else newest.totals.get("calls", [])
            self._budget = Budget(self.settings.api_calls_per_day, used)
            self._hand = StepRunner(
                self._engine,
                self._ledger,
                self.tables.queue,
                self._budget,
                lambda: reader.calls,
                margin=self.settings.margin,
                clock=clock,
                wall=wall,
            )
            self._selection = opened.enter_context(
                SelectionWatch(
                    selection,
                    self.tables.queue,
                    self.waiting,
                    lambda name: self._ask(name, Reason.GAP),
                    self._report_gap,
                    self._say,
                    clock=clock,
                    wall=wall,
                )
            )
            self._since = Since(self.tables)
            self._sidecars = Sidecars(spark, raw, clock=wall)
            self._rights = Rights(
                reader,
                self.tables.queue,
                self._sidecars,
                self.waiting,
                self._tell_gap,
                lambda name: self._ask(name, Reason.GAP, forgets_absences=True),
                self._say,
                clock=clock,
                wall=wall,
            )
            self._signals = Signals(Mailbox(target.spark, target.place), reader)
            for name in self._objects:
                self._open(name)
            self._opened = opened.pop_all()
        self._reads = OrgReads(
            reader,
            margin=self.settings.margin,
            bulk_from=self.settings.bulk_from,
            piece_rows=self.settings.piece_rows,
            stop=self._fetching.check_stop,
        )

    def _follower(self, target: Target) -> Follower:
        self.tables: MirrorTables = MirrorTables(
            target,
            self._describe,
            self.settings.deletes,
            self._wall,
            self._safeguards,
            history=self.settings.history,
        )
        return self.tables

    def _open(self, name: str) -> None:
        self.tables.add(name, self._ledger.of(name).newest)

    @property
    def report(self) -> MirrorReport:
        """Counts of the work done so far."""
        return replace(self._report, events=self._hand.events, api_calls=self._reader.calls)

    @property
    def engine(self) -> EventTables:
        """The engine that runs the steps."""
        return self._engine

    @property
    def objects(self) -> list[str]:
        """Names of the mirrored objects: those given, of earlier runs, and added by signals."""
        return list(self._objects)

    def status(self) -> list[ObjectStatus]:
        """Return the state of each object, as of the last unit of work; empty before `begin`.

        Thread-safe.
        """
        found, backlog = self._statuses, self._backlog
        if backlog is None:
            return list(found)
        oldest = [backlog.oldest(event_name_of(each.entity)) for each in found]
        now = self._wall()
        return [
            replace(each, behind=None if at is None else max(0.0, now - at))
            for each, at in zip(found, oldest, strict=True)
        ]

    def queued(self) -> dict[str, int]:
        """Return the number of open entries in the reread queue by object, as last counted.

        Thread-safe.
        """
        return self._hand.queued

    def stop(self) -> None:
        """Make `run` return soon, and end a read that is running. Thread-safe."""
        self._stopping.set()

    def run(self, stream: Callable[[], StreamState], *, once: bool = False) -> None:
        """Run the mirror until it is stopped.

        Args:
            stream: Returns the state of the stream (`MirrorStream.state`), or raises its error.
            once: Whether to return when all work is done (`is_settled`).

        Raises:
            WriteError: A step failed. The next process completes it.
            SfPubSubError: The stream failed, nobody is signed in, or an object that was never
                mirrored cannot be mirrored. With *once*, also if the org no longer has an object,
                or if the user may not see every record.
        """
        self.begin()
        if once:
            self._agenda.end_after(self._wall())
        while True:
            state = stream()  # may stop this job
            if self._stopping.is_set():
                return
            if self.advance(state):
                continue
            if once and self.is_settled(state):
                if parked := self._parked():
                    raise ConfigurationError("; ".join(map(self._why_gone, parked)))
                return
            if once and self._fetching.is_idle and self._hand.is_through(state.written):
                self._rights.check_present(self._objects)
            self._stopping.wait(_POLL)

    def begin(self) -> None:
        """Resume the work of an earlier process: queue the unmerged pieces of its reads."""
        for name in self._objects:
            markers = self.tables.log(name).markers()
            account = self._ledger.of(name)
            merged = account.merged
            if markers and markers[-1].piece == merged and not account.is_through(markers[-1]):
                merged -= 1  # all pieces are merged, but the read's closing step is due
            self._fetching.left(name, markers, merged)
            self._unchecked.append(name)
            self.waiting.begin(name, Why.RIGHTS, _UNCHECKED, self._wall())
            if account.is_removed:
                self._say(
                    f"{name} was removed by a signal, and is mirrored again because it was named: "
                    f"all its records are reread"
                )
        self._note_status()

    def advance(self, state: StreamState) -> bool:
        """Perform the next unit of work, and return whether there was one.

        Raises:
            WriteError: The step failed, or Spark has stopped.
            SfPubSubError: The org cannot be read.
        """
        if self._is_held and not self._failures.may_ask(self._clock()):
            return False
        self._is_held = False
        try:
            self._adopt(state.backlog)
            has_worked = self._advance(state)
            if has_worked and self._backlog is not None and not self._hand.is_between:
                self._backlog.applied(self._hand.applied_seq())
            self._note_status()
        except SPARK_ERRORS as error:
            raise WriteError(f"the mirror cannot continue: {first_line(error)}") from error
        except SfPubSubError as error:
            if scope_of(error) is not Scope.ORG:
                raise
            # A describe request failed, for example after an event with a new schema.
            self._is_held = True
            self._failures.failed_all(error, self._clock())
            self._note_status()
            return False
        return has_worked

    def _advance(self, state: StreamState) -> bool:
        self._answer_signals()
        if self._signals.is_paused:
            return False
        events = self._hand.may_have_changes(state.written)
        if self._hand.is_between:
            return events and self._hand.apply_changes(state.written)
        self._drop_reads()
        if self._check_next():
            return True
        if not state.is_anchored:
            return events and self._hand.apply_changes(state.written)
        if (
            self._ask_for_gaps(state.gaps)
            or self._watch_selection(state)
            or self._end_reading()
            or self._describe_next()
            or self._ask_for_objects()
        ):
            return True
        self._position = None if state.health is None else state.health.last_position
        present = [name for name in self._objects if name not in self._parked()]
        if self._safeguards.rights and self._rights.is_due(present):
            self._check_rights(present)
        while True:
            merge = self._fetching.has_pieces
            turn = self._turns.next(events=events, merge=merge, reads=self._possible_reads())
            if turn == "events":
                if self._hand.apply_changes(state.written):
                    return True
                events = False
            elif turn == "merge":
                return self._merge_next()
            elif turn is not None:
                return self._begin_reading(turn)
            else:
                return False

    def _adopt(self, backlog: Backlog | None) -> None:
        """Use the stream's record of unapplied rows, and add the rows that earlier runs left."""
        if backlog is None or backlog is self._backlog:
            return
        for mark in self._engine.unapplied():
            backlog.add(*mark)
        self._backlog = backlog

    def is_settled(self, state: StreamState) -> bool:
        """Return whether all events are applied, and no read is requested, due or running.

        Call this after an `advance` that returned False.
        """
        return (
            state.is_anchored
            and state.is_caught_up
            and not state.has_open_gap
            and not self._has_new_gap(state.gaps)
            and self._selection.is_done
            and self._hand.is_through(state.written)
            and self._fetching.is_idle
            and self._to_describe() is None
            and all(each.entity in self._parked() for each in self._sweeps())
            and not any(Why.READ in self.waiting.of(name) for name in self._objects)
            and all(
                self._ledger.of(name).newest is not None
                and not self._hand.entries().get(name)
                and name not in self._unchecked
                and self._is_visible(name)
                for name in self._objects
                if name not in self._parked()
            )
        )

    def _parked(self) -> list[str]:
        return [name for name in self._objects if Why.GONE in self.waiting.of(name)]

    def close(self) -> None:
        """Finish the current work and release the target. Idempotent."""
        self._opened.close()

    def __enter__(self) -> MirrorJob:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _note_status(self) -> None:
        """Replace the snapshot that `status` returns."""
        entries, oldest = self._hand.entries(), self.tables.queue.oldest()
        all_wait = self._failures.reason(self._clock())
        if all_wait is None and self._is_logged:
            all_wait = self._over_budget()
        found = []
        for name in self._objects:
            account = self._ledger.of(name)
            waits = {str(why): wait.text for why, wait in self.waiting.of(name).items()}
            if all_wait is not None and (waits or entries.get(name) or account.newest is None):
                waits.setdefault(str(Why.READ), all_wait)
            if self._signals.is_paused:
                waits["paused"] = "the mirror is paused until sfpubsub mirror signal --resume"
            is_reading = self._fetching.reads(name)
            found.append(
                ObjectStatus(
                    name,
                    state_of(waits, is_read=account.newest is not None, is_reading=is_reading),
                    waits,
                    records=account.records,
                    queued=len(entries.get(name, ())),
                    oldest_entry=oldest.get(name),
                    read_at=account.read_at,
                    parked_rows=len(self.tables.queue.parked(name)),
                )
            )
        self._statuses = tuple(found)
        parked = {each.entity: each.parked_rows for each in found if each.parked_rows}
        if parked != self._shown:
            for name, rows in parked.items():
                if rows > (self._shown or {}).get(name, 0):
                    _log.warning("%s", _parked_text(name, rows))
            self._signals.show_parked(parked)
            self._shown = parked

    # Requests.

    def _answer_signals(self) -> None:
        """Process the signals that were sent to the mirror."""
        if self._clock() < self._signals_at or self._hand.is_between:
            return
        self._signals_at = self._clock() + _SIGNALS_EVERY
        was_paused = self._signals.is_paused
        signals = self._signals.new()
        if self._signals.is_paused != was_paused:
            self._say("resumed" if was_paused else "paused until a resume signal")
        for signal in signals:
            if signal.needs_org and not self._failures.may_ask(self._clock()):
                continue  # it stays in the mailbox
            if signal.entity not in self._unanswered:  # otherwise it is repeated
                self._say(f"received signal: {signal.kind} {signal.entity}")
            try:
                is_done = self._answer(signal)
            except SfPubSubError as error:
                scope = scope_of(error)
                if scope is Scope.MIRROR:
                    raise
                is_done = scope is not Scope.ORG
                if is_done:
                    _log.warning(
                        "skipping a signal to the mirror that cannot be processed: %s", error
                    )
                else:
                    self._failures.failed_all(error, self._clock())
            if is_done:
                self._unanswered.discard(signal.entity or "")
                self._signals.done(signal)

    def _answer(self, signal: Signal) -> bool:
        """Process a signal about an object. Return whether it is done, or has to be repeated."""
        name = signal.entity
        if name is None:
            return True
        if signal.kind == "add" and name not in self._objects:
            check_rights(self._reader, [name])
            self._engine.add(name)
            self._objects.append(name)
            self._open(name)
        elif signal.kind == "add":
            return True
        elif name not in self._objects:
            if signal.kind == "remove":
                return True  # by an earlier process, which was killed
            raise ConfigurationError(
                f"{name} is not mirrored: add it with sfpubsub mirror signal --add {name}"
            )
        elif signal.kind == "reread":
            self._ask(name, Reason.ASKED, self._signals.ids(signal))
        elif signal.kind == "confirm":
            parked = self.tables.queue.parked(name)
            if len(parked) > (signal.rows or 0):
                raise ConfigurationError(
                    f"{len(parked)} rows of {name} wait for a confirmation by now, but only "
                    f"{signal.rows} were confirmed: send the signal again to confirm them all"
                )
            if parked:
                self._ask(name, Reason.CONFIRMED, parked)
        elif not self._drop(name):
            self._unanswered.add(name)
            return False
        elif signal.kind == "remove":
            self._remove(name)
        return True

    def _remove(self, name: str) -> None:
        """Stop mirroring an object. Its rows stay."""
        if name in self._unchecked:
            self._unchecked.remove(name)
        self._hand.do(Remove(name, self._wall()))
        self._engine.remove(name)
        self._objects.remove(name)
        self.tables.remove(name)
        self._failures.forget(name)
        self._rights.forget(name)
        self._selection.forget(name)
        self._say(f"{name} is no longer mirrored; its rows stay as they are")

    # Objects that come and go.

    def _check_next(self) -> bool:
        """Ask the org about an object that was not checked yet, or is gone, if that is due.

        The stream is open by then: it needs no answer.

        Returns:
            Whether an object was checked.
        """
        clock = self._clock()
        for name in self._unchecked:
            if self._failures.may_ask(clock) and self._failures.may_look(name, clock):
                self._check(name)
                return True
        return False

    def _check(self, name: str) -> None:
        is_new = name in self._named and self._ledger.of(name).merged == 0
        try:
            if is_new and self._safeguards.rights:
                check_rights(self._reader, [name])
            else:  # rights that were withdrawn since then are found by `Rights`
                check_object(self._reader, name)
        except SfPubSubError as error:
            scope = scope_of(error)
            if scope in (Scope.OBJECT, Scope.GONE) and is_new and not error.retryable:
                self._refuse(name, error)
            self._fail(name, error)
            return
        self._unchecked.remove(name)
        if not self._safeguards.rights:  # otherwise the first check of the rights does so
            self.waiting.end(name, Why.RIGHTS)
        if self._failures.is_there(name):
            self._say(f"{name}: the org has it again, so all its records are reread")
            self._ask(name, Reason.GAP)

    def _refuse(self, name: str, error: SfPubSubError) -> None:
        """Refuse an object that was named at the start, and has never been mirrored."""
        self._engine.remove(name)  # otherwise later starts would mirror it
        if scope_of(error) is not Scope.GONE:
            raise error
        raise ConfigurationError(
            f"{name} does not exist in the org, or the user cannot see it: check the name, and the "
            f"user's permissions"
        ) from error

    def _park(self, name: str) -> None:
        """Keep an object that is gone as it is, until the org has it again."""
        if name not in self._unchecked:
            self._unchecked.append(name)
        self._drop(name)
        entries = self._hand.entries().get(name, ())
        if not any(each.record_id is None and each.cue.reason is Reason.GAP for each in entries):
            self._ask(name, Reason.GAP)  # durable, so that a new process reads it too

    def _why_gone(self, name: str) -> str:
        return self.waiting.of(name)[Why.GONE].text

    def _drop(self, name: str) -> bool:
        """Give up an object's read. Return whether that is done, or the read is still ending."""
        if not self._fetching.abandon(name):
            self._dropping.add(name)
            return False
        self._dropping.discard(name)
        log = self.tables.log(name)
        log.clear(log.next - 1)
        return True

    def _drop_reads(self) -> None:
        for name in list(self._dropping):
            self._drop(name)

    def _ask_for_gaps(self, gaps: Sequence[KeptGap]) -> bool:
        """Request a new read of the objects that any of *gaps* concerns and that has not led to one
        yet: of all objects, or of the one that a gap names.

        Returns:
            Whether reads were requested.
        """
        if not self._has_new_gap(gaps):
            return False
        kept = self.tables.queue.gaps()
        new = [gap for gap in gaps if gap.name not in kept]
        if not new:
            self._gaps = {gap.name for gap in gaps}
            return False
        named = {gap.entity for gap in new}
        for name in self._objects:
            if None in named or name in named:
                self._say(f"{name}: events may be missing, so all records will be reread")
                self._ask(name, Reason.GAP)
        self.tables.queue.keep_gaps([*kept, *(gap.name for gap in new)])
        return True

    def _has_new_gap(self, gaps: Sequence[KeptGap]) -> bool:
        """Return whether *gaps* contains one that is not known to have led to reads."""
        return {gap.name for gap in gaps} != self._gaps

    def _describe_next(self) -> bool:
        """Describe an object again if that is due, and return whether one was described."""
        name = self._to_describe()
        if name is None or not self._failures.may_ask(self._clock()):
            return False
        try:
            self.tables.objects[name].describe()
        except SfPubSubError as error:
            self._fail(name, error)
            if scope_of(error) is not Scope.ORG:  # otherwise it is repeated after the back-off
                self._described_at[name] = self._clock()
            return False
        return True

    def _to_describe(self) -> str | None:
        if not self._budget.may_read(self._wall(), self._reader.calls):
            return None
        may_read = [name for name in self._objects if self.waiting.may_read(name)]
        return self._agenda.to_describe(may_read, self._described_at, self._clock())

    def _watch_selection(self, state: StreamState) -> bool:
        position = None if state.health is None else state.health.last_position
        return self._selection.advance(self._objects, state.name, position)

    def _report_gap(self, gap: Gap) -> None:
        """Store and report a gap of one object, and request its reread.

        The stream stores the gap too, but not at once.
        """
        names = self._sidecars.keep_gaps([gap])
        if gap.entity is not None:
            self._ask(gap.entity, Reason.GAP)
        kept = self.tables.queue.gaps()
        self.tables.queue.keep_gaps(list(dict.fromkeys([*kept, *names])))
        self._tell_gap(gap)

    def _ask_for_objects(self) -> bool:
        """Request the next read that is due: a first read, or one for new fields or stale formulas.

        Returns:
            Whether a read was requested.
        """
        clock = self._clock()
        for name in self._objects:
            if any(each.is_about_all for each in self._hand.entries().get(name, ())):
                continue
            if not self._failures.may_ask(clock) or not self._failures.may_read(name, clock):
                continue
            try:
                columns = self.tables.objects[name].columns
            except SfPubSubError as error:
                self._fail(name, error)
                continue
            reason = self._agenda.reason(self._ledger.of(name), columns, self._wall())
            if reason is not None:
                self._ask(name, reason)
                return True
        return False

    def _ask(
        self,
        name: str,
        reason: Reason,
        ids: Sequence[str] | None = None,
        *,
        forgets_absences: bool = False,
    ) -> None:
        seq, record_ids = self._hand.applied_seq(), None if ids is None else tuple(ids)
        note = Ask(name, record_ids, reason, seq, self._wall(), forgets_absences=forgets_absences)
        self._hand.do(note)

    # Rights.

    def _check_rights(self, names: Sequence[str]) -> bool:
        """Check the user's rights now. Return False if the org cannot be asked."""
        if not self._failures.may_ask(self._clock()):
            return False
        try:
            self._rights.check(names, self._position)
        except SfPubSubError as error:
            if scope_of(error) is Scope.MIRROR:
                raise
            self._failures.failed_all(error, self._clock())
            return False
        return True

    def _absences_count(self, name: str, markers: Sequence[Marker]) -> bool | None:
        """Return whether the absences of a read count whose last piece is ready to be merged.

        True if the pieces contain no absences. None if the org cannot be asked now.
        """
        last, safeguards = markers[-1], self._safeguards
        has_absences = any(each.absent for each in markers) if last.kind == "ids" else last.is_last
        if not has_absences or not (safeguards.rights or safeguards.twice):
            return True
        if not self._check_rights([name]):
            return None
        if last.kind != "ids" and not safeguards.rights:
            return True  # such a read deletes nothing if two are needed
        return self._rights.stands(name, last.epoch)

    def _is_visible(self, name: str) -> bool:
        """Return whether the user may see every record of an object, as of the last check."""
        return not self._safeguards.rights or self._rights.is_held(name)

    # Reads.

    def _possible_reads(self) -> list[Wanted]:
        """Return the reads that can begin now; interrupted ones come first."""
        now, clock = self._hand.as_of_now(), self._clock()
        if now is None or self._fetching.is_busy or not self._failures.may_ask(clock):
            return []
        names = [
            name
            for name in self._objects
            if not self._fetching.has(name)
            and name not in self._unanswered
            and self._failures.may_read(name, clock)
            and self._is_visible(name)
        ]
        for name in names:
            last = self._fetching.unfinished(name)
            if last is not None and last.epoch != self._rights.epoch(name):
                self._fetching.give_up(name)
        left = {name: self._fetching.unfinished(name) for name in names}
        found = [Wanted(name, last.kind) for name, last in left.items() if last is not None]
        records = {name: self._ledger.of(name).records for name in names}
        waiting = [name for name, last in left.items() if last is None]
        others = planning.smallest_first(waiting, records)
        found += planning.wanted_reads(self._hand.entries(), others, now)
        found += [each for each in self._sweeps() if each.entity in others]
        return found if found and self._may_read() else []

    def _begin_reading(self, wanted: Wanted) -> bool:
        """Begin a read, or resume it; return whether it began."""
        name, now = wanted.entity, self._hand.as_of_now()
        if now is None:
            raise AssertionError("a read was chosen although it is too early for one")
        last = self._fetching.unfinished(name)
        if last is not None:
            self._say(f"{name}: resuming a read after {last.rows} records")
        elif wanted.kind != "ids":
            what = "ids" if wanted.kind == "sweep" else "records"
            self._say(f"{name}: reading all {what}")
        try:
            if last is None and wanted.kind != "ids":
                self.tables.objects[name].describe()
            self._start(wanted, now, last)
        except SfPubSubError as error:
            self._fail(name, error)
            return False
        return True

    def _may_read(self) -> bool:
        """Return whether the API budget allows another read. If it does not, report that once."""
        if self._budget.may_read(self._wall(), self._reader.calls):
            self._is_logged = False
            return True
        if not self._is_logged:
            self._is_logged = True
            self._say(self._over_budget())
        return False

    def _over_budget(self) -> str:
        return (
            f"{self._budget.most} API calls were used in 24 hours; reads wait until the budget "
            f"allows more"
        )

    def _sweeps(self) -> list[Wanted]:
        names = [name for name in self._objects if self._is_visible(name)]
        accounts = [(name, self._ledger.of(name)) for name in names]
        return [Wanted(name, "sweep") for name in self._agenda.to_sweep(accounts, self._wall())]

    def _start(self, wanted: Wanted, now: AsOf, last: Marker | None) -> None:
        name = wanted.entity
        log, merged = self.tables.log(name), self._ledger.of(name).merged
        if name not in self._described:
            self.tables.objects[name].describe()
        has_bin = self._described[name].field("IsDeleted") is not None
        reading = Reading(self.tables.objects[name].columns, log, has_bin, self._rights.epoch(name))

        def read() -> Iterator[Marker]:
            if last is not None:
                return self._reads.resume(reading, last)
            log.clear(merged)
            return self._reads.begin(wanted, reading, now)

        self._fetching.start(name, read)

    def _end_reading(self) -> bool:
        """Handle the end of a read. Return whether a read has ended since the last call."""
        ended = self._fetching.ended()
        if ended is None:
            return False
        if ended.error is None:
            self._failures.succeeded(ended.entity)
        else:
            self._fail(ended.entity, ended.error)
        return True

    def _fail(self, name: str, error: BaseException) -> None:
        """Hold back the object, or all requests, after an error; or raise the error."""
        if not isinstance(error, SfPubSubError) or scope_of(error) is Scope.MIRROR:
            raise error
        if not can_resume(error):
            self._fetching.give_up(name)
            self._described_at.pop(name, None)  # the read may have named a field that is gone
        scope = self._failures.failed(name, error, self._clock(), self._wall())
        if scope is Scope.GONE:
            self._park(name)

    def _merge_next(self) -> bool:
        """Merge the waiting pieces of one read; return whether any pieces were waiting.

        The pieces of a sweep (a read of all record ids) are not merged. After the last one, they
        are compared with the table, all together.
        """
        found = self._fetching.take()
        if found is None:
            return False
        name, markers = found
        marker = markers[-1]
        do_count = self._absences_count(name, markers)
        if do_count is None:
            self._fetching.put_back(name, markers)
            return False
        if not do_count and marker.kind != "object":
            return True  # the records are read again when the right is back
        account, now = self._ledger.of(name), self._wall()
        if marker.kind == "sweep":  # compared as a whole, after its last piece
            if marker.is_last:
                seq, records = self._hand.applied_seq(), marker.rows
                self._hand.do(Sweep(name, marker.read, marker.piece, seq, now, records=records))
            return True
        read = Read(marker.as_of, self._since.of(name, marker.as_of.ingest_seq), None)
        new = [each for each in markers if each.piece > account.merged]
        size = sum(each.size for each in new)
        merge = Merge(
            name,
            marker.kind,
            new[0].piece if new else marker.piece,
            marker.piece,
            read,
            account.newest,
            is_last=False,
            applied_seq=self._hand.applied_seq(),
            at=now,
            size=size,
            ids=id_range(new),
            filled=marker.filled,
        )
        if size:
            self._hand.do(merge)
            self._report = replace(self._report, records=self._report.records + size)
            if marker.kind == "object":
                self._say(f"{name}: {_so_far(marker)} merged")
        if marker.is_last and marker.kind == "object" and do_count:
            self._hand.do(
                replace(
                    merge,
                    first=marker.read,
                    read=replace(read, until=marker.until),
                    is_last=True,
                    ids=None,
                    selected=marker.selected,
                    records=marker.rows - marker.deleted,
                )
            )
            self._report = replace(self._report, reads=self._report.reads + 1)
            self._say(f"{name}: all {marker.rows} records read and merged")
        return True

    def _describe(self, name: str) -> ObjectDescription:
        self._described[name] = found = self._reader.describe(name)
        self._described_at[name] = self._clock()
        return found


def _parked_text(name: str, rows: int) -> str:
    return (
        f"{name}: {rows} records are missing in the org, although no event has deleted them; their "
        f"rows are kept. If they were deleted on purpose, run sfpubsub mirror signal "
        f"--confirm-deletes {name}"
    )


def _so_far(marker: Marker) -> str:
    if marker.total is None or marker.is_last:
        return f"{marker.rows} records"
    return f"{marker.rows} of about {marker.total} records"
