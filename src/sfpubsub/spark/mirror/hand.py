"""The one hand that does steps: it lays events, and does what is noted beside them.

After each step it notes what is durable and laid, by a steady clock: that is what a read is worth
that begins a margin later. Decides nothing about records or reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sfpubsub.spark.mirror.budget import Budget
from sfpubsub.spark.mirror.ledger import Ledger
from sfpubsub.spark.mirror.notes import Note
from sfpubsub.spark.mirror.queue import MirrorQueue
from sfpubsub.spark.mirror.reads import AsOf, Entry, Noted, as_of
from sfpubsub.spark.tables.engine import EventTables

# Seconds between checks of the raw table when the stream has written nothing: rows may wait for
# their schemas, and others may write to the table.
_LOOK_EVERY = 10.0


class Hand:
    """Does the steps of one mirror. Not thread-safe.

    Args:
        engine: Does them.
        ledger: Learns of each.
        queue: The re-read queue.
        budget: Learns of the requests made.
        calls: Says how many those are.
        margin: In seconds; see `reads.as_of`.
        clock: Steady seconds.
        wall: Seconds since 1970 UTC.
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
        self._notes: list[Noted] = []
        self._written: int | None = None
        self._looked = float("-inf")
        self.events = 0
        """Rows laid so far."""
        self.queued: dict[str, int] = {}
        """Open entries of the queue by object, as they were last looked at."""

    def finish(self) -> None:
        """Finish what a process has left that died, and lay what there is.

        Raises:
            WriteError: It could not be done.
        """
        while self._step():
            pass
        self._note()

    def lay(self, written: int) -> bool:
        """Lay the next events, if there may be any; say whether there were.

        Args:
            written: Grows with each write to the raw table.

        Raises:
            WriteError: It was not done.
        """
        now = self._clock()
        must = self._engine.is_between or self._engine.is_waiting
        if written == self._written and not must and now - self._looked < _LOOK_EVERY:
            return False
        if self._step():
            self._note()
            return True
        self._written, self._looked = written, now
        return False

    def do(self, note: Note) -> None:
        """Do a step that is of no raw row.

        Raises:
            WriteError: It was not done.
        """
        note = replace(note, calls=self._budget.count(self._wall(), self._calls()))
        self._engine.beside(note.to_note())
        self._ledger.take(note)
        self._note()

    @property
    def is_between(self) -> bool:
        """Whether the engine has to finish something before `do`."""
        return self._engine.is_between

    def is_through(self, written: int) -> bool:
        """Whether nothing of the raw table is left to be laid, as of the last `lay`."""
        return written == self._written and not self._engine.is_waiting

    def worth(self) -> AsOf | None:
        """Return what a read is worth that begins now; None where a margin has yet to pass."""
        return as_of(self._notes, self._clock(), self._margin)

    def laid(self) -> int:
        """Return the ``ingest_seq`` of the newest raw row that was laid."""
        return self._engine.laid()

    def entries(self) -> dict[str, list[Entry]]:
        """Return the open entries of the queue, by object."""
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
        durable = AsOf(self._engine.laid(), 0 if newest is None else newest.number)
        now = self._clock()
        # Of those that are a margin old the newest one alone still counts.
        old = [each for each in self._notes if each.time <= now - self._margin]
        self._notes = [*old[-1:], *self._notes[len(old) :], Noted(now, durable)]
