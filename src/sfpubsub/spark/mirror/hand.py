"""The single worker that runs a mirror's steps.

A step (tables/steps.py) either applies events from the raw table to the mirror's tables, or carries
out a *note* (notes.py): an instruction that is stored in the step's plan, such as to merge pieces
of a read of the org.

After each step, the worker records the state that the tables have durably reached (`reads.AsOf`:
mainly, which raw row was the last to be applied), and the time on a monotonic clock. The org's
responses lag behind its events by at most the *margin* (`MirrorSettings.margin`). So a read that
begins at least one margin after the recorded time contains all changes up to the recorded state.
The worker makes no decisions about records or reads.
"""

from __future__ import annotations

from collections.abc import Callable

from sfpubsub.spark.mirror.budget import Budget
from sfpubsub.spark.mirror.ledger import Ledger
from sfpubsub.spark.mirror.notes import Note, subject_of
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.records.reads import AsOf, DurableState, Entry, as_of
from sfpubsub.spark.tables.engine import EventTables

# Seconds between checks of the raw table while the stream writes nothing: rows may be waiting for
# their schemas, and other processes may write to the table.
_LOOK_EVERY = 10.0


class StepRunner:
    """Runs the steps of one mirror. Not thread-safe.

    Args:
        engine: Performs the steps.
        ledger: Progress of the objects, updated with each `notes.Note`.
        queue: The queue of records to read again from the org.
        budget: Counts the API calls of the last 24 hours.
        calls: Returns the number of API calls that this process has made so far.
        margin: Maximum lag of the org's responses, in seconds; see `reads.as_of`.
        clock: Monotonic clock, in seconds.
        wall: Wall clock, in seconds since the epoch.
    """

    def __init__(
        self,
        engine: EventTables,
        ledger: Ledger,
        queue: MirrorQueue,
        budget: Budget,
        calls: Callable[[], int],
        *,
        margin: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._queue = queue
        self._budget = budget
        self._calls = calls
        self._margin = margin
        self._clock, self._wall = clock, wall
        self._notes: list[DurableState] = []
        self._written: int | None = None
        self._looked = float("-inf")
        self.events = 0
        """Rows applied so far."""
        self.queued: dict[str, int] = {}
        """Number of open queue entries by object, as of the last check."""

    def may_have_changes(self, written: int) -> bool:
        """Return whether the raw table may contain events that are not applied.

        Args:
            written: Counter that increases with each write to the raw table. After the table was
                found to have no more events, it is usually not read until the counter changes.
        """
        must = self._engine.is_between or self._engine.is_waiting
        return written != self._written or must or self._clock() - self._looked >= _LOOK_EVERY

    def apply_changes(self, written: int) -> bool:
        """Apply the next events, and return whether there were any.

        A step that a crashed process did not finish is completed first.

        Args:
            written: See `may_have_changes`.

        Raises:
            WriteError: The step failed.
        """
        now = self._clock()
        if self._step():
            self._note()
            return True
        if not self._notes:  # reads need to know what was durable when this process began
            self._note()
        self._written, self._looked = written, now
        return False

    def do(self, note: Note) -> None:
        """Perform the step that *note* describes. The step processes no raw rows.

        Raises:
            WriteError: The step failed.
        """
        calls = self._budget.count(self._wall(), self._calls())
        self._engine.instruct(note.to_note(), subject_of(note), {"calls": calls})
        self._ledger.take(note)
        self._note()

    @property
    def is_between(self) -> bool:
        """Whether the engine must finish a step before `do` may be called."""
        return self._engine.is_between

    def is_through(self, written: int) -> bool:
        """Return whether all rows that were written to the raw table have been applied.

        Args:
            written: The current value of the counter that is passed to `apply_changes`.
        """
        return written == self._written and not self._engine.is_waiting

    def as_of_now(self) -> AsOf | None:
        """Return what a read that begins now would be guaranteed to contain (`reads.as_of`).

        Return None if it is too early for a read.
        """
        return as_of(self._notes, self._clock(), self._margin)

    def applied_seq(self) -> int:
        """Return the ``ingest_seq`` of the newest raw row that was applied."""
        return self._engine.applied_seq()

    def entries(self) -> dict[str, list[Entry]]:
        """Return the open queue entries by object."""
        found = self._queue.entries()
        self.queued = {name: len(entries) for name, entries in found.items()}
        return found

    def _step(self) -> bool:
        report = self._engine.step()
        if report is None:
            return False
        self.events += sum(report.rows.values())
        return True

    def _note(self) -> None:
        newest = self._engine.newest
        durable = AsOf(self._engine.applied_seq(), 0 if newest is None else newest.number)
        now = self._clock()
        # Of the notes older than the margin, only the newest is still needed.
        old = [each for each in self._notes if each.time <= now - self._margin]
        self._notes = [*old[-1:], *self._notes[len(old) :], DurableState(now, durable)]
