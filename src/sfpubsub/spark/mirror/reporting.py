"""What a mirror tells about itself: its counts, the state of its objects, and parked rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from sfpubsub.spark.mirror.backlog import Backlog
from sfpubsub.spark.mirror.mailbox import Mailbox
from sfpubsub.spark.mirror.notes import Merge, Note
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.schedule import Schedule
from sfpubsub.spark.mirror.settings import MirrorReport
from sfpubsub.spark.mirror.status import ObjectStatus
from sfpubsub.spark.tables.engine import EventTables, StepReport
from sfpubsub.spark.tables.identity import event_name_of

_log = logging.getLogger("sfpubsub.spark")


class Reporting:
    """Keeps what a mirror tells. Used by the mirror's thread; any thread may call `status`.

    Args:
        engine: Performs the steps.
        queue: The reread queue.
        mailbox: Where senders of signals look for the number of parked rows.
        repaired: See `MirrorTables.repaired`.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        engine: EventTables,
        queue: MirrorQueue,
        mailbox: Mailbox,
        repaired: Mapping[str, Mapping[str, int]],
        wall: Callable[[], float],
    ) -> None:
        self._repaired = repaired
        self._engine = engine
        self._queue = queue
        self._mailbox = mailbox
        self._wall = wall
        self._backlog: Backlog | None = None
        self._statuses: tuple[ObjectStatus, ...] = ()
        self._parked: dict[str, int] | None = None  # as senders of signals were told
        self.report: MirrorReport = MirrorReport()
        """Counts of the work done so far, without API calls."""

    def status(self) -> list[ObjectStatus]:
        """Return the state of each object, as of the last `note`."""
        found, backlog = self._statuses, self._backlog
        if backlog is None:
            return list(found)
        oldest = [backlog.oldest(event_name_of(each.entity)) for each in found]
        now = self._wall()
        return [
            replace(each, behind=None if at is None else max(0.0, now - at))
            for each, at in zip(found, oldest, strict=True)
        ]

    def adopt(self, backlog: Backlog | None) -> None:
        """Use the stream's record of unapplied rows, and add the rows that earlier runs left."""
        if backlog is None or backlog is self._backlog:
            return
        for mark in self._engine.unapplied():
            backlog.add(*mark)
        self._backlog = backlog

    def stepped(self, step: StepReport | None) -> bool:
        """Count a step with events, and return whether there was one."""
        if step is None:
            return False
        events = self.report.events + sum(step.rows.values())
        self.report = replace(self.report, events=events)
        self._applied()
        return True

    def took(self, note: Note) -> None:
        """Count a step that processed no raw rows."""
        if isinstance(note, Merge) and note.is_last:
            self.report = replace(self.report, reads=self.report.reads + 1)
        elif isinstance(note, Merge):
            self.report = replace(self.report, records=self.report.records + note.size)
        self._applied()

    def note(self, schedule: Schedule) -> None:
        """Replace the snapshot that `status` returns."""
        parked = {name: len(self._queue.parked(name)) for name in schedule.objects}
        self._statuses = tuple(
            replace(each, repaired=dict(self._repaired.get(each.entity, {})))
            for each in schedule.statuses(self._queue.oldest(), parked)
        )
        parked = {name: rows for name, rows in parked.items() if rows}
        if parked == self._parked:
            return
        for name, rows in parked.items():
            if rows > (self._parked or {}).get(name, 0):
                _log.warning("%s", _parked_text(name, rows))
        self._mailbox.show_parked(parked)
        self._parked = parked

    def _applied(self) -> None:
        if self._backlog is not None and not self._engine.is_between:
            self._backlog.applied(self._engine.applied_seq())


def _parked_text(name: str, rows: int) -> str:
    return (
        f"{name}: {rows} records are missing in the org, although no event has deleted them; their "
        f"rows are kept. If they were deleted on purpose, run sfpubsub mirror signal "
        f"--confirm-deletes {name}"
    )
