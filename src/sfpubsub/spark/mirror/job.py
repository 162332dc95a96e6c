"""The mirror job: carries out what its schedule decides (schedule.py).

The caller's thread runs every step of the engine (tables/steps.py): it applies events, merges the
results of reads, and requests new reads. A second thread reads the org and writes the results to
the read log (`ReadLog`). A third thread writes the event stream to the raw table. This module makes
no decisions. Invariant: after a kill at any point, the next process continues from the tables
alone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from sfpubsub.auth.session import org_id_of
from sfpubsub.errors import SfPubSubError, WriteError
from sfpubsub.rest import ObjectDescription, OrgReader
from sfpubsub.rest.describing import STAMP
from sfpubsub.rest.scope import Scope, scope_of
from sfpubsub.spark.formats.destination import Destination
from sfpubsub.spark.formats.target import Target
from sfpubsub.spark.ingest.background import Background
from sfpubsub.spark.ingest.selection import Selection
from sfpubsub.spark.ingest.sidecars import Sidecars
from sfpubsub.spark.mirror import actions
from sfpubsub.spark.mirror.absences import Safeguards
from sfpubsub.spark.mirror.deadlines import Now
from sfpubsub.spark.mirror.fetching import Fetching, StoppedError
from sfpubsub.spark.mirror.history import Since, stored_progress
from sfpubsub.spark.mirror.log import Marker
from sfpubsub.spark.mirror.mailbox import Mailbox
from sfpubsub.spark.mirror.mirror_state import Stored, TablesState
from sfpubsub.spark.mirror.notes import subject_of
from sfpubsub.spark.mirror.reading import OrgReads, Reading, ids_where
from sfpubsub.spark.mirror.reporting import Reporting
from sfpubsub.spark.mirror.rights import check_object, check_stamps, grants_of, present_grant
from sfpubsub.spark.mirror.schedule import Schedule
from sfpubsub.spark.mirror.settings import MirrorReport, MirrorSettings
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.spark.mirror.stream_state import StreamState
from sfpubsub.spark.mirror.tables import MirrorTables
from sfpubsub.spark.records.step import Follower
from sfpubsub.spark.runtime.session import SPARK_ERRORS, first_line
from sfpubsub.spark.tables.engine import EventTables
from sfpubsub.types import Gap

_log = logging.getLogger("sfpubsub.spark")

# Longest time between checks of the stream when there is nothing to do, in seconds.
_POLL = 0.25

# Maximum seconds to wait at the end for the channel's members, if they are being asked for.
_JOIN = 1.0


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
        self._described: dict[str, ObjectDescription] = {}
        self._stopping = threading.Event()
        self._fetching = Fetching(self._stopping)
        self._look = selection
        self._members: Background[Selection] = Background("channel members", _JOIN)
        self._looking: Future[Selection] | None = None
        self._tell_gap = report_gap or (lambda gap: _log.warning("%s", gap))
        self._has_ended = False
        with ExitStack() as opened:
            self._engine = opened.enter_context(
                EventTables(
                    spark,
                    raw.address,
                    to,
                    format=format,
                    raw_format=raw.format,
                    objects=objects,
                    followers=[self._follower],
                    mirror=True,
                    maintain=self.settings.maintain,
                    org_id=org_id_of(reader.sessions.get().tenant_id),
                    clock=wall,
                )
            )
            opened.enter_context(self._fetching)
            opened.enter_context(self._members)
            target, newest = self._engine.target, self._engine.newest
            queue = self.tables.queue
            self._schedule = Schedule(
                self.settings,
                dict.fromkeys([*objects, *self._engine.objects]),
                objects,
                Stored(
                    stored_progress(target),
                    queue.rights(),
                    queue.selected(),
                    queue.gaps(),
                    [] if newest is None else newest.totals.get("calls", []),
                ),
                self._now(),
                looks=selection is not None,
                safeguards=self._safeguards,
            )
            self._since = Since(self.tables)
            self._sidecars = Sidecars(spark, raw, clock=wall)
            self._mailbox = Mailbox(target.spark, target.place)
            self._reporting = Reporting(
                self._engine, queue, self._mailbox, self.tables.repaired, wall
            )
            for name in self.objects:
                self.tables.add(name, self._schedule.progress(name).newest)
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

    def _now(self) -> Now:
        return Now(self._clock(), self._wall())

    @property
    def report(self) -> MirrorReport:
        """Counts of the work done so far."""
        return replace(self._reporting.report, api_calls=self._reader.calls)

    @property
    def engine(self) -> EventTables:
        """The engine that runs the steps."""
        return self._engine

    @property
    def objects(self) -> list[str]:
        """Names of the mirrored objects: those given, of earlier runs, and added by signals."""
        return self._schedule.objects

    def status(self) -> list[ObjectStatus]:
        """Return the state of each object, as of the last unit of work; empty before `begin`.

        Thread-safe.
        """
        return self._reporting.status()

    def stop(self) -> None:
        """Make `run` return soon, and end a read that is running. Thread-safe."""
        self._stopping.set()

    def run(
        self, stream: Callable[[], StreamState], *, once: bool = False, alone: Sequence[str] = ()
    ) -> None:
        """Run the mirror until it is stopped.

        Args:
            stream: Returns the state of the stream (`MirrorStream.state`), or raises its error.
            once: Whether to return when all work is done (`is_settled`).
            alone: The objects of which it is known that the channel does not deliver their events.

        Raises:
            WriteError: A step failed. The next process completes it.
            SfPubSubError: The stream failed, nobody is signed in, or an object that was never
                mirrored cannot be mirrored. With *once*, also if the org no longer has an object,
                or if the user may not see every record.
        """
        self.begin()
        if self.settings.by == "auto":
            self._schedule.read_without_events(alone)
        if once:
            self._schedule.end_once_settled()
        while True:
            state = stream()  # may stop this job
            if self._stopping.is_set():
                return
            if not self.advance(state) and not self._engine.maintain():
                if self._has_ended:
                    return
                self._stopping.wait(_POLL)

    def begin(self) -> None:
        """Resume the work of an earlier process: queue the unmerged pieces of its reads."""
        for name in self.objects:
            self._schedule.resume(name, self.tables.log(name).markers())
        self._reporting.note(self._schedule)

    def advance(self, state: StreamState) -> bool:
        """Perform the next action of the schedule, and return whether there was one.

        Raises:
            WriteError: The step failed, or Spark has stopped.
            SfPubSubError: The mirror cannot continue.
        """
        try:
            return self._advance(state)
        except SPARK_ERRORS as error:
            raise WriteError(f"the mirror cannot continue: {first_line(error)}") from error

    def _advance(self, state: StreamState) -> bool:
        self._reporting.adopt(state.backlog)
        self._observe(state)
        action = self._schedule.next(self._now())
        if isinstance(action, actions.Action):
            try:
                self._schedule.done(self._perform(action))
            except SfPubSubError as error:
                if scope_of(error) is Scope.MIRROR:
                    raise
                self._schedule.failed(error)
        self._has_ended = isinstance(action, actions.End)
        self._reporting.note(self._schedule)
        return isinstance(action, actions.Action)

    def is_settled(self, state: StreamState) -> bool:
        """Return whether all events are applied, and no read is requested, due or running.

        Call this after an `advance` that returned False.
        """
        self._observe(state)
        return self._schedule.is_settled

    def close(self) -> None:
        """Finish the current work and release the target. Idempotent."""
        self._opened.close()

    def __enter__(self) -> MirrorJob:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What has happened.

    def _observe(self, state: StreamState) -> None:
        """Hand the present state, and what has happened in the background, to the schedule."""
        engine, schedule = self._engine, self._schedule
        number = 0 if engine.newest is None else engine.newest.number
        known = {name: each for name, each in self.tables.objects.items() if each.table.exists()}
        tables = TablesState(
            engine.applied_seq(),
            number,
            engine.is_between,
            engine.is_waiting,
            self.tables.queue.entries(),
            {name: each.columns for name, each in known.items()},
        )
        schedule.observe(state, tables, self._reader.calls)
        if (news := self._fetching.news()) is not None:
            name, markers, result = news
            for marker in markers:
                schedule.piece_stored(name, marker)
            if result is not None:
                error = result.exception()
                schedule.read_ended(name, None if isinstance(error, StoppedError) else error)
        self._fetching.unmerged = schedule.pieces
        if self._looking is not None and self._looking.done():
            looked, self._looking = self._looking, None
            refused = looked.exception()
            answer = refused if isinstance(refused, SfPubSubError) else looked.result()
            schedule.members_found(answer)

    # What to do.

    def _perform(self, action: actions.Action) -> Any:
        """Perform an action, and return its result."""
        queue = self.tables.queue
        match action:
            case actions.Say(text):
                self._say(text)
            case actions.ApplyEvents():
                return self._reporting.stepped(self._engine.step())
            case actions.TakeStep(note, calls):
                self._engine.instruct(note.to_note(), subject_of(note), {"calls": calls})
                self._reporting.took(note)
            case actions.Describe(name):
                self.tables.objects[name].describe()
            case actions.CheckObject(name, with_rights, with_stamps):
                check_object(self._reader, name)
                if with_stamps:
                    check_stamps(self._reader, name)
                if with_rights:
                    present_grant(self._reader, name)
            case actions.AddObject(name):
                self._engine.add(name)
                self.tables.add(name, self._schedule.progress(name).newest)
            case actions.RemoveObject(name):
                self._engine.remove(name)
                self.tables.remove(name)
            case actions.ListSignals():
                return self._mailbox.waiting()
            case actions.MarkSignals(ids):
                self._mailbox.done(ids)
            case actions.FindRecords(signal, most):
                return ids_where(self._reader, str(signal.entity), str(signal.where), most)
            case actions.FindParked(name):
                return queue.parked(name)
            case actions.ReadGrants(names):
                return grants_of(self._reader, names)
            case actions.FindLimit():
                return self._reader.limits().most
            case actions.LookAtMembers():
                self._looking = None if self._look is None else self._members.start(self._look)
            case actions.KeepRights(held, gaps):
                queue.keep_rights(held, gaps)
            case actions.KeepMembers(known):
                queue.keep_selected(known)
            case actions.KeepGaps(gaps):
                queue.keep_gaps(gaps)
            case actions.StoreGap(gap):
                return self._sidecars.keep_gaps([gap])
            case actions.ReportGap(gap):
                self._tell_gap(gap)
            case actions.FindOrder(name, last):
                return self._since.of(name, last)
            case actions.StartRead():
                self._start(action)
            case actions.StopRead():
                self._fetching.give_up()
            case actions.ClearLog(name):
                log = self.tables.log(name)
                log.clear(log.next - 1)
                self._reads.forget(name)
        return None

    def _start(self, action: actions.StartRead) -> None:
        wanted, last = action.wanted, action.last
        log = self.tables.log(wanted.entity)
        described = self._described[wanted.entity]
        reading = Reading(
            self.tables.objects[wanted.entity].columns,
            log,
            has_bin=described.field("IsDeleted") is not None,
            has_stamp=described.field(STAMP) is not None,
            epoch=action.epoch,
            at=action.at,
        )

        def read() -> Iterator[Marker]:
            if last is not None:
                return self._reads.resume(reading, last)
            log.clear(action.merged)
            return self._reads.begin(wanted, reading, action.as_of)

        self._fetching.start(wanted.entity, read)

    def _describe(self, name: str) -> ObjectDescription:
        self._described[name] = found = self._reader.describe(name)
        return found
